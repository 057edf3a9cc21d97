// dist::forward_cached: decoding with pages of K and V on several ranks.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <memory>
#include <vector>

#include "attn/error.hpp"
#include "core/expr/build.hpp"
#include "core/problem/rows.hpp"
#include "core/tensor/element.hpp"
#include "core/tensor/integers.hpp"
#include "core/text/echo.hpp"
#include "core/validate/validate.hpp"
#include "cpu/cpu.hpp"
#include "dist/call.hpp"
#include "dist/rewrite.hpp"

namespace attn::dist {
namespace {

using expr::Expr;
using expr::Op;

// Keys of a sequence of `length` that lie on the rank.
std::int64_t own_keys(std::int64_t length, std::int64_t page, int rank, int ranks) {
  const std::int64_t whole = length / page;
  const std::int64_t pages = (whole + ranks - 1 - rank) / ranks;
  return pages * page + (whole % ranks == rank ? length % page : 0);
}

// A rank's keys as a problem and its inputs, which look at what is here.
struct CachedPart {
  Problem problem;
  Inputs inputs;
  std::vector<std::int32_t> lengths, used;  // of the whole sequences, and here

  CachedPart(const Problem& given, const Inputs& whole, const Group& group)
      : problem(given), inputs(whole) {
    const core::ArgumentCheck check(&given);
    if (given.layout_k != Layout::paged || given.seqlen_prefix != 0 || given.key_list != 0 ||
        given.dropout.probability > 0) {
      throw Error(ErrorCode::unsupported,
                  "forward_cached takes paged K and V without a shared prefix, lists of keys and "
                  "dropout (problem " +
                      core::echo(given) + ")");
    }
    const Tensor& given_lengths = whole.seqused_k;
    if (!given_lengths.given()) {
      check.refuse("seqused_k is not given; accepted are the lengths of the whole sequences");
    }
    check.integers("seqused_k", given_lengths, {core::kAnySize});
    check.contiguous("seqused_k", given_lengths);
    if (whole.k.rank != 4) {
      check.refuse(fmt::format("k is {}; accepted is [pages, page_size, heads, head_dim] (paged)",
                               to_string(whole.k)));
    }
    const std::int64_t page = given.page_size != 0 ? given.page_size : whole.k.shape[1];
    if (page < 1) {
      check.refuse(fmt::format("page_size is {} and k is {}; accepted are pages of 1 key or more",
                               given.page_size, to_string(whole.k)));
    }
    const std::int64_t ranks = group.size();
    const core::Integers values(given_lengths);
    const std::int64_t batch = given_lengths.shape[0];
    for (std::int64_t b = 0; b < batch; ++b) {
      if (values[b] < 0 || values[b] > std::numeric_limits<std::int32_t>::max()) {
        check.refuse(fmt::format("seqused_k[{}] is {}; accepted are 0 to 2^31 - 1", b, values[b]));
      }
      lengths.push_back(static_cast<std::int32_t>(values[b]));
      used.push_back(static_cast<std::int32_t>(
          own_keys(values[b], page, group.rank(), static_cast<int>(ranks))));
    }
    inputs.seqused_k = tensor(used.data(), {batch});
    // Page i here is page i * ranks + rank of the sequence.
    const Expr& key = expr::symbols().key;
    const auto number = [](std::int64_t n) { return expr::int32(static_cast<std::int32_t>(n)); };
    const expr::Buffer length(kOwnLength,
                              tensor(static_cast<const std::int32_t*>(nullptr), {std::int64_t{0}}));
    const Rewriter rewrite({{Op::key, key + key / number(page) * number(page * (ranks - 1)) +
                                          number(page * group.rank())},
                            {Op::seqlen_k, length[expr::symbols().batch]}});
    problem.mask = rewrite(given.mask);
    problem.score = rewrite(given.score);
    problem.seqlen_k = 0;  // of this rank's pages
    problem.sink = given.sink && group.rank() == 0;
    if (!problem.sink) inputs.sink = {};
    for (const Expr* e : {&problem.mask, &problem.score}) {
      if (e->empty() || is_bound()) continue;
      for (const auto& buffer : expr::buffers(*e)) {
        if (buffer->name() == kOwnLength) {
          inputs.buffers.emplace_back(kOwnLength, tensor(lengths.data(), {batch}));
        }
      }
    }
    problem = complete(problem, inputs);
  }
  CachedPart(const CachedPart&) = delete;
  CachedPart& operator=(const CachedPart&) = delete;

 private:
  static constexpr const char* kOwnLength = "dist_seqlen_k";
  bool is_bound() const {
    return std::any_of(inputs.buffers.begin(), inputs.buffers.end(),
                       [](const auto& binding) { return binding.first == kOwnLength; });
  }
};

// O in float, or in double, and LSE in double with its rest (cpu::Attention::lse_rest) of one rank:
// where an additive mask puts LSE near 1e9, float would not tell 200 keys from 10.
class Part {
 public:
  Part(const Problem& p, const Tensor& o) : like_(o) {
    like_.dtype = p.dtype == DType::f64 ? DType::f64 : DType::f32;
    std::int64_t elements = 1;
    for (std::int32_t d = like_.rank; d-- > 0;) {
      like_.strides[static_cast<std::size_t>(d)] = elements;
      elements *= like_.shape[static_cast<std::size_t>(d)];
    }
    rows_ = o.shape[o.rank == 4 ? 1 : 0];
    heads_ = p.heads_q;
    const std::int64_t logs = elements / std::max<std::int64_t>(1, p.head_dim_v);
    lse_bytes_ = static_cast<std::size_t>(logs) * sizeof(double);
    memory_.resize(2 * lse_bytes_ + static_cast<std::size_t>(elements) * size_of(like_.dtype));
    like_.data = memory_.data() + 2 * lse_bytes_;
  }
  std::byte* data() { return memory_.data(); }
  std::size_t bytes() const { return memory_.size(); }
  Outputs outputs() {
    Outputs to{.o = like_};
    auto* const lse = reinterpret_cast<double*>(memory_.data());
    to.lse = like_.rank == 4 ? tensor(lse, {like_.shape[0], heads_, rows_})
                             : tensor(lse, {heads_, rows_});
    return to;
  }
  Tensor lse_rest() {
    Tensor rest = outputs().lse;
    rest.data = memory_.data() + lse_bytes_;
    return rest;
  }

 private:
  Tensor like_;
  std::int64_t rows_ = 0, heads_ = 0;
  std::size_t lse_bytes_ = 0;  // of LSE, which comes first, as of its rest, which is next
  std::vector<std::byte> memory_;
};

double element(const Tensor& t, std::int64_t offset) {
  return core::load_element(
      static_cast<const std::byte*>(t.data) + offset * static_cast<std::int64_t>(size_of(t.dtype)),
      t.dtype);
}
void set_element(const Tensor& t, std::int64_t offset, double value) {
  core::store_element(
      static_cast<std::byte*>(t.data) + offset * static_cast<std::int64_t>(size_of(t.dtype)),
      t.dtype, value);
}

// Row (b, i, h): O = sum_p exp(LSE_p - LSE) O_p, in double, by rising p. rests: of LSE_p.
void merge_row(const std::vector<Outputs>& parts, const std::vector<Tensor>& rests,
               const Outputs& to, std::int64_t b, std::int64_t i, std::int64_t h) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const bool packed = to.o.rank == 3;
  const auto lse_at = [&](const Tensor& t) {
    return packed ? t.offset({h, i}) : t.offset({b, h, i});
  };
  const auto o_at = [&](const Tensor& t) {
    return packed ? t.offset({i, h, 0}) : t.offset({b, i, h, 0});
  };
  double largest = -kInfinity;
  for (const Outputs& part : parts)
    largest = std::max(largest, element(part.lse, lse_at(part.lse)));
  std::vector<double> weights;
  double sum = 0;
  for (std::size_t p = 0; p < parts.size(); ++p) {
    const Tensor& of_part = parts[p].lse;
    const double lse = element(of_part, lse_at(of_part));
    const double rest = element(rests[p], lse_at(rests[p]));
    weights.push_back(lse == -kInfinity ? 0 : std::exp(lse - largest + rest));
    sum += weights.back();
  }
  const std::int64_t width = to.o.shape[static_cast<std::size_t>(to.o.rank - 1)];
  for (std::int64_t c = 0; c < width; ++c) {
    double value = 0;
    for (std::size_t p = 0; p < parts.size(); ++p) {
      if (weights[p] != 0) value += weights[p] * element(parts[p].o, o_at(parts[p].o) + c);
    }
    set_element(to.o, o_at(to.o) + c, sum == 0 ? 0 : value / sum);
  }
  if (to.lse.given()) {
    set_element(to.lse, lse_at(to.lse), sum == 0 ? -kInfinity : largest + std::log(sum));
  }
}

}  // namespace

void forward_cached(const Problem& problem, const Group& group, const Inputs& inputs,
                    const Outputs& outputs, const PlanOptions& options, const Context& context) {
  Greeting greeting("forward_cached");
  std::unique_ptr<CachedPart> own;
  attn::Plan plan;
  try {
    const auto text = [](const Expr& e) { return e.empty() ? "" : expr::to_string(e); };
    greeting.add("mask", text(problem.mask));
    greeting.add("score", text(problem.score));
    if (options.device.type != DeviceType::cpu) {
      throw Error(ErrorCode::unsupported,
                  "device is " + to_string(options.device) + "; accepted by forward_cached is cpu");
    }
    greeting.add("types", fmt::format("q {} k {} v {}", name(problem.type_q), name(problem.type_k),
                                      name(problem.type_v)));
    greeting.add("max_logit", outputs.max_logit.given() ? "asked" : "");
    own = std::make_unique<CachedPart>(problem, inputs, group);
    const Problem& p = own->problem;
    greeting.add("type_o", name(core::type_of_o(p)));
    core::validate_forward(p, own->inputs, outputs);
    core::validate_options(p, Phase::forward, options, context.local);
    plan = cpu::plan(p, Phase::forward, options, context.local);
    greeting.add("sizes",
                 fmt::format("{} b{} sq{} hq{} hk{} d{} dv{} page {} scale {} sink {}",
                             name(p.dtype), p.batch, p.seqlen_q, p.heads_q, p.heads_k, p.head_dim,
                             p.head_dim_v, p.page_size, p.scale(), problem.sink));
    greeting.add("lengths", fmt::format("{}", fmt::join(own->lengths, ",")));
  } catch (const Error& error) {
    greeting.refuse(error.code(), error.what());
  }
  agree(group, greeting, context.timeout);
  try {
    std::vector<std::shared_ptr<Part>> parts;
    for (int r = 0; r < group.size(); ++r) {
      parts.push_back(std::make_shared<Part>(own->problem, outputs.o));
    }
    const auto& mine = parts[static_cast<std::size_t>(group.rank())];
    Outputs to = mine->outputs();
    std::vector<double> largest;
    if (outputs.max_logit.given()) {
      largest.resize(static_cast<std::size_t>(own->problem.heads_q),
                     -std::numeric_limits<double>::infinity());
      to.max_logit = tensor(largest.data(), {own->problem.heads_q});
    }
    cpu::forward_pass(plan, own->inputs, to, context.local, mine->lse_rest());
    std::vector<Send> sends;
    std::vector<Receive> receives;
    for (int r = 0; r < group.size(); ++r) {
      if (r == group.rank()) continue;
      const std::shared_ptr<Part>& theirs = parts[static_cast<std::size_t>(r)];
      sends.push_back({r, mine->data(), mine->bytes(), mine});
      receives.push_back({r, theirs->data(), theirs->bytes(), theirs});
    }
    group.engine().exchange(sends, receives, context.timeout);
    if (!largest.empty()) largest_of_ranks(group, largest, context.timeout);
    for (std::size_t h = 0; h < largest.size(); ++h) {
      set_element(outputs.max_logit, static_cast<std::int64_t>(h) * outputs.max_logit.strides[0],
                  largest[h]);
    }
    std::vector<Outputs> results;
    std::vector<Tensor> rests;
    for (const auto& part : parts) {
      results.push_back(part->outputs());
      rests.push_back(part->lse_rest());
    }
    const bool packed = outputs.o.rank == 3;
    const std::int64_t sequences = packed ? 1 : outputs.o.shape[0];
    const std::int64_t rows = outputs.o.shape[packed ? 0 : 1];
    for (std::int64_t b = 0; b < sequences; ++b) {
      for (std::int64_t i = 0; i < rows; ++i) {
        for (std::int64_t h = 0; h < own->problem.heads_q; ++h) {
          merge_row(results, rests, outputs, b, i, h);
        }
      }
    }
  } catch (const std::exception& error) {
    group.engine().fail(fmt::format("rank {}: {}", group.rank(), error.what()));
    throw;
  }
}

}  // namespace attn::dist
