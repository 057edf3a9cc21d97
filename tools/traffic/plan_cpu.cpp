#include <algorithm>
#include <functional>
#include <memory>
#include <optional>

#include "cpu/backward/backward.hpp"
#include "cpu/budgets.hpp"
#include "cpu/expressions.hpp"
#include "cpu/forward/few_rows.hpp"
#include "cpu/forward/partial.hpp"
#include "cpu/forward/splits.hpp"
#include "cpu/pairs.hpp"
#include "cpu/tasks.hpp"
#include "traffic/model.hpp"
#include "traffic/plan.hpp"

namespace attn::traffic {
namespace {

using cpu::Attention;
using cpu::kBlockK;
using cpu::KeyRange;
using cpu::Pair;
using cpu::RowTask;

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

// Dense tensors of the problem's sizes without memory: only their shapes are used.
Inputs shapes_of(const Problem& p) {
  const auto rows = [&](std::int64_t n, std::int64_t heads, std::int64_t d) {
    return tensor(static_cast<void*>(nullptr), p.dtype, {p.batch, n, heads, d});
  };
  Inputs inputs;
  inputs.q = rows(p.seqlen_q, p.heads_q, p.head_dim);
  inputs.k = rows(p.seqlen_k, p.heads_k, p.head_dim);
  inputs.v = rows(p.seqlen_k, p.heads_k, p.head_dim_v);
  return inputs;
}

bool lacks_data(const expr::Expr& e) {
  const auto buffers = expr::buffers(e);
  return std::any_of(buffers.begin(), buffers.end(),
                     [](const auto& buffer) { return buffer->tensor().data == nullptr; });
}

Plan countable(Plan plan) {
  Problem& p = plan.problem;
  p.layout_q = p.layout_k = Layout::dense;
  if (!p.mask.empty() && lacks_data(p.mask)) p.mask = {};
  p.score = {};                 // moves nothing that is counted
  p.dropout.rng_state = false;  // nothing is drawn, and no tensor has memory
  return plan;
}

// The plan's loops without the arithmetic.
class Count {
 public:
  explicit Count(const Plan& plan)
      : plan_(countable(plan)),
        workspace_(nullptr, 0),
        inputs_(shapes_of(plan_.problem)),
        expressions_(plan_),
        a_(plan_.problem, inputs_, cpu::tile_ops(plan_.isa, plan_.compute), expressions_,
           workspace_),
        element_(static_cast<double>(size_of(plan_.problem.dtype))),
        operand_(static_cast<double>(size_of(a_.ops.operand))) {}

  Traffic operator()() {
    if (plan_.phase == Phase::backward) {
      for_each_pair([&](const Pair& pair) { count_delta(pair); });
      plan_.algorithm == Algorithm::standard ? backward_standard() : backward_flash();
    } else {
      switch (plan_.algorithm) {
        case Algorithm::standard:
          forward_standard();
          break;
        case Algorithm::flash_attention:
        case Algorithm::block_sparse:
          forward_flash_attention();
          break;
        case Algorithm::flash_decoding:
          forward_flash_decoding();
          break;
        case Algorithm::memory_efficient:
          forward_parts();
          break;
        case Algorithm::automatic:
        case Algorithm::flash_attention_2:
          forward_flash_attention_2();
          break;
      }
    }
    return traffic_;
  }

 private:
  template <class Visit>
  void for_each_pair(const Visit& visit) {
    for (std::int64_t i = 0; i < cpu::pair_count(a_); ++i) visit(cpu::pair_at(a_, i));
  }
  // Bytes of rows of a tensor of the problem's dtype.
  double row_bytes(std::int64_t rows, int dim) const {
    return static_cast<double>(rows) * dim * element_;
  }
  // Bytes of K and V of keys as they are packed.
  double packed_bytes(std::int64_t keys) const {
    return static_cast<double>(keys) * (cpu::leading_dim(a_.dim) + cpu::leading_dim(a_.dim_v)) *
           operand_;
  }
  static double floats(double count) { return count * 4; }
  std::int64_t blocks(std::int64_t rows) const { return ceil_div(rows, a_.ops.rows); }

  void load_q(std::int64_t rows) { traffic_[Operand::q].read += row_bytes(rows, a_.dim); }
  void load_keys(std::int64_t keys) {
    traffic_[Operand::k].read += row_bytes(keys, a_.dim);
    traffic_[Operand::v].read += row_bytes(keys, a_.dim_v);
  }
  void store_o(std::int64_t rows) {
    traffic_[Operand::o].written += row_bytes(rows, a_.dim_v);
    traffic_[Operand::lse].written += floats(static_cast<double>(rows));
  }
  void move(Operand operand, double bytes, double times_read, double times_written) {
    traffic_[operand].read += bytes * times_read;
    traffic_[operand].written += bytes * times_written;
  }

  // visit(key0, keys of the block, keys that the longest tile takes) for K, V blocks in `range`
  // that some of the rows may see; 0 keys where no single Q block does.
  void for_blocks(const Pair& pair, std::int64_t row0, std::int64_t rows, KeyRange range,
                  const std::function<void(int, int, int)>& visit) const {
    const expr::Tile group = a_.tile(pair.sequence, pair.head_k, row0, rows);
    cpu::for_visible_blocks(
        a_, group, range.begin, range.end, [&](int key0, int n, expr::Coverage coverage) {
          int most = 0;
          for (std::int64_t r = 0; r < rows && most < n; r += a_.ops.rows) {
            const expr::Tile own = a_.tile(pair.sequence, pair.head_k, row0 + r,
                                           std::min<std::int64_t>(rows - r, a_.ops.rows));
            const expr::Coverage of_block =
                coverage == expr::Coverage::full ? coverage : a_.coverage(own, key0, n);
            if (of_block == expr::Coverage::empty) continue;
            most = std::max(most,
                            of_block == expr::Coverage::mixed ? a_.visible_keys(own, key0, n) : n);
          }
          visit(key0, n, most);
        });
  }

  // S and P of each head, written and read whole: [Q block][key][rows of a block].
  void forward_standard() {
    for_each_pair([&](const Pair& pair) {
      const std::int64_t rows = a_.rows(pair.sequence);
      const double s =
          floats(static_cast<double>(blocks(rows) * a_.ops.rows) * pair.sequence.length_k);
      load_q(rows);
      traffic_[Operand::k].read +=
          static_cast<double>(blocks(rows)) * row_bytes(pair.sequence.length_k, a_.dim);
      traffic_[Operand::v].read +=
          static_cast<double>(blocks(rows)) * row_bytes(pair.sequence.length_k, a_.dim_v);
      move(Operand::s, s, 2, 1);                        // its maximum; the exponentials
      move(Operand::p, s, 2, 2);                        // divided by l in place; P V
      if (a_.has_dropout()) move(Operand::p, s, 0, 1);  // dropped elements are set to zero
      store_o(rows);
    });
  }

  // K, V outer: O^T, l and m of every Q block in the workspace.
  void forward_flash_attention() {
    const bool skip = plan_.algorithm == Algorithm::block_sparse;
    for_each_pair([&](const Pair& pair) {
      const std::int64_t rows = a_.rows(pair.sequence);
      const double o = floats(static_cast<double>(a_.ops.rows) * a_.dim_v);
      const double lse = floats(static_cast<double>(a_.ops.rows) * 2);
      const auto count = static_cast<double>(blocks(rows));
      move(Operand::o, o * count, 1, 1);
      move(Operand::lse, lse * count, 1, 1);
      load_keys(pair.sequence.length_k);
      for (int key0 = 0; key0 < pair.sequence.length_k; key0 += kBlockK) {
        const int keys = std::min(kBlockK, pair.sequence.length_k - key0);
        for (std::int64_t r = 0; r < rows; r += a_.ops.rows) {
          const std::int64_t n = std::min<std::int64_t>(rows - r, a_.ops.rows);
          const expr::Tile tile = a_.tile(pair.sequence, pair.head_k, r, n);
          if (skip && a_.coverage(tile, key0, keys) == expr::Coverage::empty) continue;
          load_q(n);
          move(Operand::o, o, 1, 1);
          move(Operand::lse, lse, 1, 1);
        }
      }
      store_o(rows);
    });
  }

  void forward_flash_attention_2() {
    const auto bytes_of = [&](const Pair& pair) {
      return a_.rows(pair.sequence) <= plan_.rows_per_task
                 ? cpu::kNotPacked
                 : cpu::PackedKeys::packed_bytes(a_, pair.sequence);
    };
    const cpu::Waves all =
        cpu::waves(a_, static_cast<std::size_t>(cpu::kKeyPackBudget),
                   static_cast<std::size_t>(cpu::kKeyPackBudget), bytes_of, workspace_);
    for (const cpu::Wave& wave : all.list) {
      for (std::int64_t i = wave.first; i < wave.last; ++i) {
        if (all.offset_of(i) == cpu::kNotPacked) continue;
        const Pair pair = cpu::pair_at(a_, i);
        load_keys(pair.sequence.length_k);
        traffic_[Operand::packed].written += packed_bytes(pair.sequence.length_k);
      }
      const auto is_whole = [&](const RowTask& task) {
        return all.offset_of(task.pair) == cpu::kNotPacked;
      };
      const cpu::RowTasks tasks = cpu::divide_last(
          cpu::row_tasks(a_, plan_.rows_per_task, wave.first, wave.last, workspace_),
          plan_.threads > 1 ? 2 * static_cast<std::size_t>(plan_.threads) : 0,
          std::max<std::int64_t>(plan_.rows_per_task / 4,
                                 std::int64_t{a_.ops.q_blocks} * a_.ops.rows),
          is_whole, workspace_);
      for (const RowTask& task : tasks) {
        const Pair pair = cpu::pair_at(a_, task.pair);
        load_q(task.rows);
        for_blocks(pair, task.row0, task.rows, {0, pair.sequence.length_k},
                   [&](int, int n, int most) {
                     if (is_whole(task)) {
                       load_keys(n);
                     } else {
                       traffic_[Operand::packed].read += packed_bytes(most);
                     }
                   });
        store_o(task.rows);
      }
    }
  }

  // Tasks over part of the keys each; their results are merged.
  void forward_parts() {
    const cpu::Splits splits(plan_);
    for (const RowTask& task : cpu::row_tasks(a_, plan_.rows_per_task, workspace_)) {
      const Pair pair = cpu::pair_at(a_, task.pair);
      const std::int64_t parts = splits.of(pair.sequence);
      for (std::int64_t part = 0; part < parts; ++part) {
        load_q(task.rows);
        for_blocks(pair, task.row0, task.rows, splits.range(pair.sequence, part),
                   [&](int, int n, int) { load_keys(n); });
      }
      count_partials(blocks(task.rows) * parts);
      store_o(task.rows);
    }
  }
  void count_partials(std::int64_t count) {
    move(Operand::partial,
         floats(static_cast<double>(count) * cpu::partial_rows(a_.problem, a_.ops.rows) *
                (a_.dim_v + 2)),
         1, 1);
  }

  void forward_flash_decoding() {
    if (!cpu::has_few_rows(plan_.problem)) return forward_parts();
    const std::int64_t heads = cpu::heads_per_group(a_);
    const cpu::Splits splits(plan_);
    for (const core::Sequence& sequence : a_.sequences) {
      if (a_.rows(sequence) == 0) continue;
      const std::int64_t parts = splits.of(sequence);
      for (std::int64_t first = 0; first < a_.problem.heads_k; first += heads) {
        const std::int64_t last = std::min(first + heads, a_.problem.heads_k);
        expr::Tile rows = a_.tile(sequence, static_cast<int>(first), 0, a_.rows(sequence));
        rows.head_max =
            a_.tile(sequence, static_cast<int>(last - 1), 0, a_.rows(sequence)).head_max;
        for (std::int64_t split = 0; split < parts; ++split) {
          const KeyRange range = splits.range(sequence, split);
          load_q((last - first) * a_.rows(sequence));
          cpu::for_visible_blocks(
              a_, rows, range.begin, range.end,
              [&](int, int n, expr::Coverage) { load_keys((last - first) * n); });
        }
        count_partials((last - first) * parts);
        store_o((last - first) * a_.rows(sequence));
      }
    }
  }

  // D and LSE of every row.
  void count_delta(const Pair& pair) {
    const std::int64_t rows = a_.rows(pair.sequence);
    traffic_[Operand::o].read += row_bytes(rows, a_.dim_v);
    traffic_[Operand::d_o].read += row_bytes(rows, a_.dim_v);
    traffic_[Operand::lse].read += floats(static_cast<double>(rows));
    const double padded = floats(static_cast<double>(blocks(rows) * a_.ops.rows));
    traffic_[Operand::lse].written += padded;
    traffic_[Operand::d].written += padded;
  }
  void load_gradient_block(std::int64_t rows) {
    load_q(rows);
    traffic_[Operand::d_o].read += row_bytes(rows, a_.dim_v);
  }
  void read_row_terms() {
    traffic_[Operand::lse].read += floats(a_.ops.rows);
    traffic_[Operand::d].read += floats(a_.ops.rows);
  }

  void backward_standard() {
    for_each_pair([&](const Pair& pair) {
      const std::int64_t rows = a_.rows(pair.sequence);
      const std::int64_t length_k = pair.sequence.length_k;
      const double s = floats(static_cast<double>(blocks(rows) * a_.ops.rows * length_k));
      for (std::int64_t r = 0; r < rows; r += a_.ops.rows) {
        load_gradient_block(std::min<std::int64_t>(rows - r, a_.ops.rows));
        read_row_terms();
        load_keys(length_k);
      }
      move(Operand::p, s, 1, 1);
      move(Operand::ds, s, 1, 1);
      traffic_[Operand::dq].written += row_bytes(rows, a_.dim);
      for (std::int64_t j = 0; j < length_k; j += kBlockK) load_gradient_block(rows);
      store_key_gradients(length_k);
    });
  }
  void store_key_gradients(std::int64_t keys) {
    traffic_[Operand::dk].written += row_bytes(keys, a_.dim);
    traffic_[Operand::dv].written += row_bytes(keys, a_.dim_v);
  }

  // Chunks of keys against groups of Q blocks; dQ of each range of keys in the workspace.
  void backward_flash() {
    // Q^T, dO^T and their rows.
    const double block =
        operand_ * a_.ops.rows *
        (a_.dim + a_.dim_v + cpu::leading_dim(a_.dim) + cpu::leading_dim(a_.dim_v));
    const double dq = floats(static_cast<double>(a_.dim) * a_.ops.rows);
    for_each_pair([&](const Pair& pair) {
      const std::int64_t rows = a_.rows(pair.sequence);
      const bool packed =
          pair.sequence.length_k > cpu::kChunkKeys &&
          static_cast<double>(blocks(rows)) * block <= static_cast<double>(cpu::kQueryPackBudget);
      if (packed) {
        load_gradient_block(rows);
        traffic_[Operand::packed].written += static_cast<double>(blocks(rows)) * block;
      }
      const double all_dq = dq * static_cast<double>(blocks(rows));
      for (std::int64_t split = 0; split < plan_.num_splits; ++split) {
        traffic_[Operand::dq].written += all_dq;  // zeros
        const KeyRange range = cpu::split_range(pair.sequence.length_k, plan_.num_splits, split);
        for (std::int64_t key = range.begin; key < range.end; key += cpu::kChunkKeys) {
          const KeyRange chunk{key, std::min<std::int64_t>(key + cpu::kChunkKeys, range.end)};
          load_keys(chunk.end - chunk.begin);
          count_chunk(pair, rows, chunk, packed ? block : 0, dq);
          store_key_gradients(chunk.end - chunk.begin);
        }
      }
      traffic_[Operand::dq].read += all_dq * plan_.num_splits;
      traffic_[Operand::dq].written += row_bytes(rows, a_.dim);
    });
  }
  // packed: bytes of a packed Q block, or 0 where it is packed anew.
  void count_chunk(const Pair& pair, std::int64_t rows, KeyRange chunk, double packed, double dq) {
    for (std::int64_t r = 0; r < rows; r += a_.ops.rows) {
      const std::int64_t n = std::min<std::int64_t>(rows - r, a_.ops.rows);
      bool seen = false;
      for_blocks(pair, r, n, chunk, [&](int, int, int most) { seen = seen || most > 0; });
      if (!seen) continue;
      packed > 0 ? move(Operand::packed, packed, 1, 0) : load_gradient_block(n);
      read_row_terms();
      move(Operand::dq, dq, 1, 1);
    }
  }

  Plan plan_;
  cpu::Workspace workspace_;
  Inputs inputs_;
  cpu::Expressions expressions_;
  Attention a_;
  double element_, operand_;
  Traffic traffic_;
};

}  // namespace

PlanTraffic cpu_plan_traffic(const Plan& plan) {
  refuse_key_lists(plan.problem);
  return {.traffic = Count(plan)(),
          .backend = Backend::cpu,
          .algorithm = plan.algorithm,
          .target = std::string(name(plan.isa)),
          .block_q = plan.block_q,
          .block_k = plan.block_k,
          .rows_per_task = plan.rows_per_task,
          .num_splits = plan.num_splits};
}

}  // namespace attn::traffic
