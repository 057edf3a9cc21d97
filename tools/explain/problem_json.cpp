#include "explain/problem_json.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "attn/error.hpp"
#include "attn/machine.hpp"
#include "core/validate/validate.hpp"
#include "explain/sample.hpp"
#include "explain/source_lines.hpp"
#include "verify/data.hpp"

namespace attn::explain {
namespace {

// All buffers that have no data may have so many elements together.
constexpr std::int64_t kMaxBufferElements = std::int64_t{1} << 28;
constexpr std::int64_t kReferenceBlock = 64;  // the reference has no blocks; the map needs some

void require(bool holds, std::string_view argument, std::int64_t value, const std::string& why) {
  if (holds) return;
  throw Error(ErrorCode::invalid_argument, fmt::format("{} is {}; {}", argument, value, why));
}

void check(const Request& r) {
  const Problem& p = r.problem;
  core::validate_problem(p);
  require(p.seqlen_q > 0, "seqlen_q", p.seqlen_q, "a page needs at least one query");
  require(p.seqlen_k > 0, "seqlen_k", p.seqlen_k, "a page needs at least one key");
  require(p.key_list == 0, "key_list", p.key_list, "a page knows no lists of keys; accepted is 0");
  require(r.batch >= 0 && r.batch < p.batch, "batch", r.batch,
          fmt::format("accepted are 0 to {}", p.batch - 1));
  require(r.head >= 0 && r.head < p.heads_q, "head", r.head,
          fmt::format("accepted are 0 to {}", p.heads_q - 1));
  std::int64_t elements = 0;
  for (const expr::Expr* e : {&p.mask, &p.score}) {
    if (e->empty()) continue;
    for (const auto& buffer : expr::buffers(*e)) {
      if (buffer->tensor().data != nullptr) continue;
      elements += buffer->tensor().size();
      if (elements > kMaxBufferElements) {
        throw Error(ErrorCode::out_of_memory,
                    fmt::format("buffer {} brings the elements to make up to {}; accepted are {}",
                                buffer->name(), elements, kMaxBufferElements));
      }
    }
  }
}

// The problem's mask and score over one query and one key: for the buffers, whose shapes stay.
verify::Case small_case(const Problem& p) {
  Problem small{.batch = 1,
                .seqlen_q = 1,
                .seqlen_k = 1,
                .heads_q = 1,
                .heads_k = 1,
                .head_dim = 1,
                .head_dim_v = 1,
                .mask = p.mask,
                .score = p.score};
  return {.problem = small, .hints = {}};
}

Plan plan_of(const Request& r) {
  PlanOptions options{.algorithm = r.algorithm};
  if (r.problem.dtype == DType::f64) options = {.backend = Backend::reference};
  return make_plan(r.problem, r.phase, options);
}

Json problem_part(const Request& r, const expr::Bindings& made_up) {
  const Problem& p = r.problem;
  Json names = Json::array();
  for (const auto& [name, tensor] : made_up) names.push_back(name);
  return {{"text", to_string(p)},
          {"phase", name(r.phase)},
          {"batch", p.batch},
          {"seqlen_q", p.seqlen_q},
          {"seqlen_k", p.seqlen_k},
          {"heads_q", p.heads_q},
          {"heads_k", p.heads_k},
          {"head_dim", p.head_dim},
          {"head_dim_v", p.head_dim_v},
          {"dtype", name(p.dtype)},
          {"dtype_bytes", size_of(p.dtype)},
          {"mask", p.mask.empty() ? Json(nullptr) : Json(expr::to_string(p.mask))},
          {"score", p.score.empty() ? Json(nullptr) : Json(expr::to_string(p.score))},
          {"sink", p.sink},
          {"dropout", p.dropout.probability},
          {"shown_batch", r.batch},
          {"shown_head", r.head},
          {"made_up_buffers", names}};
}

// It leaves out Plan::flops(), which looks at every element of a mask that nothing is proven about.
Json plan_part(const Plan& plan) {
  return {{"algorithm", name(plan.algorithm)},
          {"backend", name(plan.backend)},
          {"isa", name(plan.isa)},
          {"operands", name(plan.compute)},
          {"block_q", plan.block_q},
          {"block_k", plan.block_k},
          {"rows_per_task", plan.rows_per_task},
          {"tasks", plan.tasks},
          {"num_splits", plan.num_splits},
          {"workspace_bytes", plan.workspace_bytes},
          {"reasons", plan.reasons}};
}

// Tiles each way that are counted at most: 256, and fewer for masks of more than 64 nodes, so that
// even a mask about which nothing is proven takes half a second at most for a pair of block sizes.
std::int64_t most_tiles(const expr::Expr& mask) {
  constexpr std::int64_t kMost = 256, kMostVisits = kMost * kMost * 64;  // of nodes
  std::int64_t most = kMost;
  while (!mask.empty() && most > 1 && most * most * mask.node().size > kMostVisits) most /= 2;
  return most;
}

// Block sizes of the sliders: powers of two up to the length, of which so many tiles cover it.
std::vector<std::int64_t> sizes(std::int64_t length, std::int64_t chosen, std::int64_t most) {
  constexpr std::int64_t kSmallest = 8, kLargest = 4096;
  std::set<std::int64_t> result{chosen};
  for (std::int64_t size = kSmallest; size <= kLargest; size *= 2) {
    if (length <= size * most) result.insert(size);
    if (size >= length) break;
  }
  return {result.begin(), result.end()};
}

// Over all heads of all sequences: those that the mask does not tell apart are counted once.
Json all_tilings(const Problem& p, Scores scores, const Tiling& chosen) {
  const bool by_batch = !p.mask.empty() && expr::depends_on(p.mask, expr::Op::batch);
  const bool by_head = !p.mask.empty() && expr::depends_on(p.mask, expr::Op::head);
  const std::int64_t weight = (by_batch ? 1 : p.batch) * (by_head ? 1 : p.heads_q);
  Json rows = Json::array();
  const std::int64_t most = most_tiles(p.mask);
  for (const std::int64_t block_q : sizes(p.seqlen_q, chosen.block_q, most)) {
    for (const std::int64_t block_k : sizes(p.seqlen_k, chosen.block_k, most)) {
      TileCounts total;
      for (std::int64_t b = 0; b < (by_batch ? p.batch : 1); ++b) {
        for (std::int64_t h = 0; h < (by_head ? p.heads_q : 1); ++h) {
          scores.batch = static_cast<std::int32_t>(b);
          scores.head = static_cast<std::int32_t>(h);
          total += count_tiles(scores, {block_q, block_k});
        }
      }
      total *= weight;
      rows.push_back({{"block_q", block_q}, {"block_k", block_k}, {"counts", to_json(total)}});
    }
  }
  return rows;
}

Json memories() {
  const Machine machine = describe_machine();
  Json list = Json::array();
  if (machine.l2_bytes > 0) {
    list.push_back({{"name", "L2 cache of a core of this machine"}, {"bytes", machine.l2_bytes}});
  }
  if (machine.l1d_bytes > 0) {
    list.push_back({{"name", "L1 cache of a core of this machine"}, {"bytes", machine.l1d_bytes}});
  }
  constexpr std::int64_t kKiB = 1024;
  list.push_back({{"name", "A100: shared memory of a block"}, {"bytes", 163 * kKiB}});
  list.push_back({{"name", "H100: shared memory of a block"}, {"bytes", 227 * kKiB}});
  return list;
}

// What the parts of the page are made of. The request has been checked.
struct Shown {
  explicit Shown(const Request& r) : data(small_case(r.problem), r.seed), plan(plan_of(r)) {
    const auto block = [](std::int64_t asked, std::int64_t planned) {
      return asked > 0 ? asked : planned > 0 ? planned : kReferenceBlock;
    };
    scores = {.mask = r.problem.mask,
              .buffers = data.inputs.buffers,
              .batch = static_cast<std::int32_t>(r.batch),
              .head = static_cast<std::int32_t>(r.head),
              .seqlen_q = static_cast<std::int32_t>(r.problem.seqlen_q),
              .seqlen_k = static_cast<std::int32_t>(r.problem.seqlen_k)};
    tiling = {block(r.block_q, plan.block_q), block(r.block_k, plan.block_k)};
  }

  verify::CaseData data;
  Plan plan;
  Scores scores{};
  Tiling tiling{};
};

}  // namespace

Json problem_json(const Request& r, std::int64_t max_cells) {
  check(r);
  const Shown shown(r);
  return {{"problem", problem_part(r, shown.data.inputs.buffers)},
          {"plan", plan_part(shown.plan)},
          {"map", tile_map(shown.scores, shown.tiling, max_cells)},
          {"tilings", all_tilings(r.problem, shown.scores, shown.tiling)},
          {"sample", sample(r.problem, shown.scores, r.seed)},
          {"memories", memories()},
          {"sources", source_lines_json()}};
}

Json map_json(const Request& r, std::int64_t max_cells) {
  check(r);
  const Shown shown(r);
  return tile_map(shown.scores, shown.tiling, max_cells);
}

}  // namespace attn::explain
