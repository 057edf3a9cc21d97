// FlashAttention-2, algorithm 1, in double: a task holds some Q blocks with their O, and passes
// over the keys once for all of them. It packs keys, but for so few rows that reading K and V is
// what takes the time.
#include <algorithm>
#include <cmath>
#include <limits>

#include "core/ceil_div.hpp"
#include "core/problem/max_logit.hpp"
#include "cpu/f64/f64.hpp"
#include "cpu/f64/tiles.hpp"
#include "cpu/tasks.hpp"

namespace attn::cpu::f64 {
namespace {

// The least finite number, so that e^(-inf - m) is 0 and never NaN.
constexpr double kStart = -std::numeric_limits<double>::max();

// Rows of a sequence and K, V head whose keys are not packed.
constexpr std::int64_t kFewRows = 4;

struct Block {
  QueryRows rows;
  double* q = nullptr;  // [kRows][leading dimension]
  double* o = nullptr;
  double m[kRows], l[kRows];
};

// Whether s[row][0, keys) of `rows` rows holds a -inf.
bool has_infinite_score(const double* s, int rows, int keys) {
  bool found = false;
  for (int r = 0; r < rows; ++r) {
    for (int j = 0; j < keys; ++j) {
      found |= s[r * kTileLd + j] == -std::numeric_limits<double>::infinity();
    }
  }
  return found;
}

struct Scratch {
  int dim = 0, dim_v = 0;
  Tile tile;
  Block* blocks = nullptr;  // [kMaxBlocksPerTask]
  Keys keys;
  bool again = false;  // O was not finite (cpu/nonfinite.hpp)

  void carve(Carver& c) {
    tile.carve(c);
    c.take(blocks, kMaxBlocksPerTask);
    Block counted;
    for (int i = 0; i < kMaxBlocksPerTask; ++i) {
      Block& block = blocks == nullptr ? counted : blocks[i];
      c.take(block.q, std::size_t{kRows} * static_cast<std::size_t>(leading_dim_f64(dim)));
      c.take(block.o, std::size_t{kRows} * static_cast<std::size_t>(leading_dim_f64(dim_v)));
    }
    c.take(keys.k_t, static_cast<std::size_t>(dim) * kTileLd);
    c.take(keys.v, std::size_t{kBlockK} * static_cast<std::size_t>(leading_dim_f64(dim_v)));
  }
};

class Forward {
 public:
  Forward(const Attention& a, const Outputs& outputs) : a_(a), tiles_(a), outputs_(outputs) {}

  void run(const RowTask& task, Scratch& s) const {
    const Pair pair = pair_at(a_, task.pair);
    const core::Sequence& sequence = pair.sequence;
    const int head_k = pair.head_k;
    if (a_.problem.key_list == 0) return run_rows(sequence, head_k, task, s);
    for (RowTask rows = task; rows.row0 < task.row0 + task.rows; rows.row0 += rows.rows) {
      const std::int64_t query = rows.row0 / a_.group;  // each has a list of its own
      rows.rows = std::min(task.row0 + task.rows, (query + 1) * a_.group) - rows.row0;
      run_rows(sequence, head_k, rows, s);
    }
  }

 private:
  void run_rows(const core::Sequence& sequence, int head_k, const RowTask& task, Scratch& s) const {
    const std::int64_t queries = a_.problem.key_list > 0 ? 1 : sequence.length_q;
    s.keys.in_place = queries * a_.group <= kFewRows;  // not by the task: threads decide its rows
    const auto blocks = static_cast<int>(core::ceil_div(task.rows, kRows));
    for (int i = 0; i < blocks; ++i) {
      Block& block = s.blocks[i];
      const std::int64_t first = std::int64_t{i} * kRows;
      tiles_.describe(sequence, head_k, task.row0 + first,
                      static_cast<int>(std::min<std::int64_t>(kRows, task.rows - first)),
                      block.rows);
      Tiles::load_rows(sequence.q, block.rows, a_.dim, block.q);
    }
    s.again = false;
    attend(sequence, head_k, task, blocks, s);
    s.again = !a_.has_score() && !std::all_of(s.blocks, s.blocks + blocks, [&](const Block& block) {
      return tiles_.all_finite(block.o, block.rows.count, a_.dim_v);
    });
    if (s.again) attend(sequence, head_k, task, blocks, s);
    for (int i = 0; i < blocks; ++i) store(sequence, s.blocks[i]);
  }

  // m, l and O of the blocks.
  void attend(const core::Sequence& sequence, int head_k, const RowTask& task, int blocks,
              Scratch& s) const {
    for (int i = 0; i < blocks; ++i) {
      std::fill_n(s.blocks[i].o, kRows * leading_dim_f64(a_.dim_v), 0.0);
      std::fill_n(s.blocks[i].m, kRows, kStart);
      std::fill_n(s.blocks[i].l, kRows, 0.0);
    }
    if (a_.problem.key_list > 0) {
      add_listed(sequence, head_k, task.row0 / a_.group, blocks, s);
    } else {
      add_visible(sequence, head_k, task, blocks, s);
    }
  }

  // The keys of the list of a query, whose rows the blocks hold.
  void add_listed(const core::Sequence& sequence, int head_k, std::int64_t query, int blocks,
                  Scratch& s) const {
    const core::KeyList list = core::key_list(a_.problem, a_.inputs, sequence, query, head_k);
    for (std::int64_t entry = 0; entry < list.count; entry += kBlockK) {
      const ListedKeys keys(list, entry);
      if (!keys.any) continue;
      const expr::Coverage coverage =
          keys.all && !a_.has_mask() ? expr::Coverage::full : expr::Coverage::mixed;
      tiles_.load_keys(sequence, head_k, keys, s.again || tiles_.may_hide(coverage), s.keys);
      for (int i = 0; i < blocks; ++i) add(s.blocks[i], coverage, s);
    }
  }

  void add_visible(const core::Sequence& sequence, int head_k, const RowTask& task, int blocks,
                   Scratch& s) const {
    for_visible_blocks(a_, a_.tile(sequence, head_k, task.row0, task.rows), 0, sequence.length_k,
                       [&](int key0, int keys, expr::Coverage coverage) {
                         tiles_.load_keys(sequence, head_k, key0, keys,
                                          s.again || tiles_.may_hide(coverage), s.keys);
                         for (int i = 0; i < blocks; ++i) {
                           Block& block = s.blocks[i];
                           const expr::Coverage of_block =
                               coverage == expr::Coverage::full
                                   ? coverage
                                   : a_.coverage(block.rows.tile, key0, keys);
                           if (of_block != expr::Coverage::empty) add(block, of_block, s);
                         }
                       });
  }

  // O <- alpha O + P V over the keys of s.
  void add(Block& block, expr::Coverage coverage, Scratch& s) const {
    const QueryRows& q = block.rows;
    double alpha[kRows];
    tiles_.scores(q, block.q, s.keys, coverage, s.tile);
    const bool careful =
        !s.keys.finite && (tiles_.may_hide(coverage) ||
                           (s.again && has_infinite_score(s.tile.s, q.count, s.keys.keys)));
    tiles_.verbs().softmax(s.tile.s, q.count, whole_lines(s.keys.keys), block.m, block.l, alpha);
    if (a_.has_dropout()) {
      tiles_.draw_dropout(q, s.keys, s.tile);
      Tiles::drop(q, s.keys, s.tile, 1, s.tile.s);
    }
    const int ld = leading_dim_f64(a_.dim_v);
    if (s.keys.in_place) {
      for (int r = 0; r < q.count; ++r) {
        tiles_.verbs().add_weighted(s.tile.s + r * kTileLd, s.keys.v_row, s.keys.keys, a_.dim_v,
                                    alpha[r], careful, block.o + r * ld);
      }
      return;
    }
    tiles_.verbs().multiply({.a = s.tile.s,
                             .a_row = kTileLd,
                             .a_step = 1,
                             .b = s.keys.v,
                             .b_row = ld,
                             .c = block.o,
                             .c_row = ld,
                             .rows = q.count,
                             .columns = whole_lines(a_.dim_v),
                             .depth = s.keys.keys,
                             .keep = alpha,
                             .careful = careful});
  }

  // O / l, LSE and max_logit of a finished block, with the sink's share of l where there is one.
  void store(const core::Sequence& sequence, const Block& block) const {
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    const Problem& problem = a_.problem;
    const core::Rows o_rows = core::rows_like_q(problem, a_.inputs, outputs_.o, sequence.batch);
    const core::Rows lse = core::lse_rows(problem, a_.inputs, outputs_.lse, sequence.batch);
    const LseRest rest(a_, sequence);
    const core::MaxLogit max_logit(outputs_.max_logit);
    for (int r = 0; r < block.rows.count; ++r) {
      const std::int32_t query = block.rows.query[r], head = block.rows.head[r];
      double m = block.m[r], l = block.l[r], rescale = 1;
      const bool empty = l == 0;  // the sink alone is LSE then, whatever it is
      if (!empty) max_logit.raise(head, std::isnan(l) ? l : m);
      const double sink =
          problem.sink ? static_cast<const float*>(a_.inputs.sink.data)[head] : -kInfinity;
      if (problem.sink && !empty) {
        const double maximum = std::max(m, sink);
        rescale = std::exp(m - maximum);
        l = l * rescale + std::exp(sink - maximum);
        m = maximum;
      }
      const double factor = empty ? 0 : rescale * tiles_.dropout_scale() / l;
      const double* const o = block.o + r * leading_dim_f64(a_.dim_v);
      auto* const to = reinterpret_cast<double*>(o_rows.row(query, head));
      for (int d = 0; d < a_.dim_v; ++d) to[d] = factor * o[d];
      if (!outputs_.lse.given()) continue;
      *reinterpret_cast<double*>(lse.row(query, head)) = empty ? sink : m + std::log(l);
      rest.store(query, head, m, empty ? 1 : l);
    }
  }

  const Attention& a_;
  Tiles tiles_;
  const Outputs& outputs_;
};

Scratch sizes(const Problem& p, const Expressions& expressions) {
  Scratch s;
  s.dim = static_cast<int>(p.head_dim);
  s.dim_v = static_cast<int>(p.head_dim_v);
  s.tile = Tiles::scratch(expressions);
  return s;
}

}  // namespace

void forward(const Attention& a, const Plan& plan, const Outputs& outputs, const Workers& workers) {
  Workspace& workspace = workers.workspace();
  const WorkerScratch<Scratch> scratch(workspace, workers.count(), sizes(a.problem, a.programs));
  const RowTasks tasks = row_tasks(a, plan.rows_per_task, workspace);
  const Forward pass(a, outputs);
  workers.parallel_for(static_cast<std::int64_t>(tasks.size()),
                       [&](std::int64_t index, int worker) {
                         Scratch s = scratch.of(worker);
                         pass.run(tasks[static_cast<std::size_t>(index)], s);
                       });
}

core::Size forward_bytes(const Plan& plan, const Expressions& expressions) {
  const Problem& p = plan.problem;
  return plan.threads * WorkerScratch<Scratch>::bytes(sizes(p, expressions)) +
         core::Size(plan.tasks) * core::Size(sizeof(RowTask)) + core::Size(2 * kAlignment);
}

}  // namespace attn::cpu::f64
