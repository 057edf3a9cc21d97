// A plan's count of bytes against a run whose verbs note every row they are given.
#include "traffic/plan.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <random>
#include <string>

#include "attn/error.hpp"
#include "core/cache_type.hpp"
#include "cpu/backward/backward.hpp"
#include "cpu/forward/forward.hpp"
#include "traffic/tiles.hpp"
#include "verify/data.hpp"

namespace attn::traffic {
namespace {

// What the verbs below are given, by the tensor that it lies in.
struct Seen {
  const cpu::TileOps* ops = nullptr;
  std::map<std::string, std::pair<const std::byte*, const std::byte*>> tensors;
  std::map<std::string, double> by_pack_q, by_pack_k, by_pack_v, by_decode;
  double bytes_stored = 0;
  // K blocks that scores() was given, one after the other: keys of each, once a task.
  const void* k_block = nullptr;
  int k_block_keys = 0;
  double keys_scored = 0;
  void end_block() {
    keys_scored += k_block_keys;
    k_block = nullptr;
    k_block_keys = 0;
  }

  void note(std::map<std::string, double>& sums, const std::byte* row, double bytes) const {
    for (const auto& [name, range] : tensors) {
      if (row >= range.first && row < range.second) sums[name] += bytes;
    }
  }
};
Seen seen;  // a verb is a plain function

double bytes_of_row(int dim, DType source) {
  return static_cast<double>(dim) * static_cast<double>(size_of(source));
}
double bytes_of_row(int dim, CacheType source) {
  return static_cast<double>(core::row_bytes(source, dim));
}
void pack_q(const std::byte* const* row, int count, int dim, CacheType source, const float* scales,
            float scale, void* q_t) {
  seen.end_block();
  for (int r = 0; r < count; ++r) seen.note(seen.by_pack_q, row[r], bytes_of_row(dim, source));
  seen.ops->pack_q(row, count, dim, source, scales, scale, q_t);
}
void pack_k(const std::byte* const* row, int keys, int dim, CacheType source, const float* scale,
            void* k) {
  for (int r = 0; r < keys; ++r) seen.note(seen.by_pack_k, row[r], bytes_of_row(dim, source));
  seen.ops->pack_k(row, keys, dim, source, scale, k);
}
void dot_rows(const std::byte* const* x, const std::byte* const* y, int count, int dim,
              DType source, float* dot) {
  for (int r = 0; r < count; ++r) {
    seen.note(seen.by_pack_k, x[r], bytes_of_row(dim, source));
    seen.note(seen.by_pack_k, y[r], bytes_of_row(dim, source));
  }
  seen.ops->dot_rows(x, y, count, dim, source, dot);
}
void pack_v(const std::byte* const* row, int keys, int dim, CacheType source, const float* scale,
            void* v) {
  for (int r = 0; r < keys; ++r) seen.note(seen.by_pack_v, row[r], bytes_of_row(dim, source));
  seen.ops->pack_v(row, keys, dim, source, scale, v);
}
void scores(const cpu::ScoreTile* tile, int tiles, const void* k, int keys, int dim) {
  if (k != seen.k_block) seen.end_block();
  seen.k_block = k;
  seen.k_block_keys = std::max(seen.k_block_keys, keys);
  seen.ops->scores(tile, tiles, k, keys, dim);
}
void decode_scores(const float* q, int count, const std::byte* const* k,
                   const std::byte* const* ahead, int keys, int dim, CacheType source, float* s) {
  for (int r = 0; r < keys; ++r) seen.note(seen.by_decode, k[r], bytes_of_row(dim, source));
  seen.ops->decode_scores(q, count, k, ahead, keys, dim, source, s);
}
void decode_accumulate(const float* p, int count, const std::byte* const* v,
                       const std::byte* const* ahead, int keys, int dim, CacheType source,
                       const float* alpha, float* o) {
  for (int r = 0; r < keys; ++r) seen.note(seen.by_decode, v[r], bytes_of_row(dim, source));
  seen.ops->decode_accumulate(p, count, v, ahead, keys, dim, source, alpha, o);
}
void unpack_o(const float* o_t, int dim, const float* factor, DType target, std::byte* const* row,
              int count) {
  for (int r = 0; r < count; ++r) {
    if (row[r] != nullptr) seen.bytes_stored += bytes_of_row(dim, target);
  }
  seen.ops->unpack_o(o_t, dim, factor, target, row, count);
}

void note_tensor(const std::string& name, const Tensor& t) {
  const auto* base = static_cast<const std::byte*>(t.data);
  const auto bytes =
      static_cast<std::ptrdiff_t>(static_cast<std::size_t>(t.size()) * size_of(t.dtype));
  seen.tensors[name] = {base, base + bytes};
}

class CpuPlan : public ::testing::Test {
 protected:
  // One thread runs the plan with verbs that note; returns what the plan says.
  static PlanTraffic run(const Problem& problem, Phase phase, Algorithm algorithm) {
    Context context;
    context.executor = make_thread_pool(1);
    verify::CaseData data({problem, {}}, 5);
    const Plan plan = make_plan(data.problem, phase, {.algorithm = algorithm}, context);
    cpu::TileOps ops = cpu::tile_ops(plan.isa, plan.compute);
    const cpu::TileOps true_ops = ops;
    seen = {};
    seen.ops = &true_ops;
    note_tensor("q", data.inputs.q);
    note_tensor("k", data.inputs.k);
    note_tensor("v", data.inputs.v);
    note_tensor("o", data.outputs.o);
    note_tensor("do", data.d_o);
    ops.pack_q = pack_q;
    ops.pack_k = pack_k;
    ops.dot_rows = dot_rows;
    ops.pack_v = pack_v;
    ops.scores = scores;
    ops.decode_scores = decode_scores;
    ops.decode_accumulate = decode_accumulate;
    ops.unpack_o = unpack_o;
    if (phase == Phase::backward) forward(data.problem, data.inputs, data.outputs);
    cpu::Workspace workspace(nullptr, 0);
    const cpu::Workers workers(*context.executor, 1, workspace);
    const cpu::Expressions expressions(plan);
    const cpu::Attention a(plan.problem, data.inputs, ops, expressions, workspace);
    if (phase == Phase::backward) {
      const cpu::GradientContext g(a, data.outputs, data.d_o, workers);
      plan.algorithm == Algorithm::standard
          ? cpu::backward_standard(a, g, data.gradients, workers)
          : cpu::backward_flash(a, g, plan, data.gradients, workers);
    } else {
      switch (plan.algorithm) {
        case Algorithm::standard:
          cpu::forward_standard(a, plan, data.outputs, workers);
          break;
        case Algorithm::flash_attention:
        case Algorithm::block_sparse:
          cpu::forward_flash_attention(a, plan, data.outputs, workers);
          break;
        case Algorithm::flash_decoding:
          cpu::forward_flash_decoding(a, plan, data.outputs, workers);
          break;
        case Algorithm::memory_efficient:
          cpu::forward_memory_efficient(a, plan, data.outputs, workers);
          break;
        default:
          cpu::forward_flash_attention_2(a, plan, data.outputs, workers);
      }
    }
    seen.end_block();
    operand_bytes = static_cast<double>(size_of(ops.operand));
    return cpu_plan_traffic(plan);
  }
  static inline double operand_bytes = 0;
};

const char* const kProblems[] = {
    "b1_n300_h2_d32_f32",
    "b2_sq130_sk700_hq4_hk2_d24_dv40_causal_f32",
    "b1_n520_hq4_hk1_d16_window100x0_bf16",
    "b1_n900_h1_d64_causal_f16",
    "b2_sq3_sk1100_hq4_hk2_d64_causal_f32",
    "b1_sq1_sk2600_hq8_hk8_d64_f32",
    "b1_sq40_sk2100_h1_d16_prefix70_f32",
    "b1_n64_h1_d16_causal_f32",               // the first Q block needs half a K block
    "b1_n70_h1_d16_dropout0.2_rngstate_f32",  // a tensor that the model does not have
};

TEST_F(CpuPlan, ForwardReadsWhatItsVerbsRead) {
  int packed = 0;
  for (const char* text : kProblems) {
    for (const Algorithm algorithm : algorithms(Phase::forward)) {
      SCOPED_TRACE(fmt::format("{} {}", text, name(algorithm)));
      const Traffic t = run(parse_problem(text), Phase::forward, algorithm).traffic;
      // Few rows are packed by pack_k and read in place.
      EXPECT_EQ(t[Operand::q].read, seen.by_pack_q["q"] + seen.by_pack_k["q"]);
      EXPECT_EQ(t[Operand::k].read, seen.by_pack_k["k"] + seen.by_decode["k"]);
      EXPECT_EQ(t[Operand::v].read, seen.by_pack_v["v"] + seen.by_decode["v"]);
      EXPECT_GT(t[Operand::k].read, 0);
      if (algorithm != Algorithm::flash_attention && algorithm != Algorithm::block_sparse) {
        EXPECT_EQ(t[Operand::o].written, seen.bytes_stored);
      }
      if (t[Operand::packed].written > 0) {
        ++packed;
        const Problem p = parse_problem(text);
        const int row = cpu::leading_dim(static_cast<int>(p.head_dim)) +
                        cpu::leading_dim(static_cast<int>(p.head_dim_v));
        EXPECT_EQ(t[Operand::packed].read, seen.keys_scored * row * operand_bytes);
        EXPECT_EQ(t[Operand::packed].written,
                  static_cast<double>(p.batch * p.heads_k * p.seqlen_k) * row * operand_bytes);
      }
    }
  }
  EXPECT_GE(packed, 4);
}

TEST_F(CpuPlan, BackwardReadsWhatItsVerbsRead) {
  for (const char* text : kProblems) {
    for (const Algorithm algorithm : algorithms(Phase::backward)) {
      SCOPED_TRACE(fmt::format("{} {}", text, name(algorithm)));
      const Problem p = parse_problem(text);
      const Traffic t = run(p, Phase::backward, algorithm).traffic;
      EXPECT_EQ(t[Operand::q].read, seen.by_pack_q["q"]);
      EXPECT_EQ(t[Operand::k].read, seen.by_pack_k["k"]);
      EXPECT_EQ(t[Operand::o].read, seen.by_pack_k["o"]);
      // Once for D.
      const double d_o = static_cast<double>(p.batch * p.seqlen_q * p.heads_q * p.head_dim_v) *
                         static_cast<double>(size_of(p.dtype));
      EXPECT_EQ(t[Operand::d_o].read, seen.by_pack_q["do"] + d_o);
    }
  }
}

TEST(CudaPlan, LoadsVisibleBlocks) {
  const cuda::Arch arch = cuda::parse_arch("sm_90a");
  const Problem full = parse_problem("b8_n1000_h8_d64_bf16");
  const PlanTraffic plan = cuda_plan_traffic(full, Phase::forward, arch, 132);
  ASSERT_EQ(plan.num_splits, 1);
  const double rows = 8 * 8 * 1000;
  const double tiles = std::ceil(1000 / static_cast<double>(plan.block_q));
  EXPECT_EQ(plan.traffic[Operand::q].read, rows * 64 * 2);
  EXPECT_EQ(plan.traffic[Operand::k].read, rows * 64 * 2 * tiles);
  EXPECT_EQ(plan.traffic[Operand::o].written, rows * 64 * 2);
  EXPECT_EQ(plan.traffic[Operand::lse].written, rows * 4);
  // Element by element: a block is loaded where one of its elements is seen.
  const Problem causal = parse_problem("b8_n1000_h8_d64_causal_bf16");
  const PlanTraffic some = cuda_plan_traffic(causal, Phase::forward, arch, 132);
  double keys = 0;
  for (std::int64_t i = 0; i < 1000; i += some.block_q) {
    const std::int64_t last = std::min<std::int64_t>(i + some.block_q, 1000) - 1;
    for (std::int64_t j = 0; j < 1000; j += some.block_k) {
      if (j <= last) keys += static_cast<double>(std::min<std::int64_t>(some.block_k, 1000 - j));
    }
  }
  EXPECT_EQ(some.traffic[Operand::k].read, 8 * 8 * keys * 64 * 2);
  EXPECT_THROW(cuda_plan_traffic(full, Phase::backward, arch, 132, {}, "backward_simt"), Error);
  // A decoding step is split, and its parts are merged.
  const PlanTraffic decode =
      cuda_plan_traffic(parse_problem("b1_sq1_sk16384_h4_d128_bf16"), Phase::forward, arch, 132);
  EXPECT_GT(decode.num_splits, 1);
  EXPECT_EQ(decode.traffic[Operand::partial].written, 4.0 * 4 * 130 * decode.num_splits);
}

// Element by element, as the kernels' head comments say what they load and store.
TEST(CudaPlan, OrdersOfThePapers) {
  const cuda::Arch arch = cuda::parse_arch("sm_90a");
  for (const char* text :
       {"b2_sq100_sk200_h3_d40_causal_f32", "b1_n130_hq4_hk2_d64_window20x9_bf16"}) {
    const Problem p = parse_problem(text);
    const auto element = static_cast<double>(size_of(p.dtype));
    for (const Algorithm algorithm :
         {Algorithm::standard, Algorithm::flash_attention, Algorithm::block_sparse}) {
      const std::string kernel =
          algorithm == Algorithm::standard ? "" : "forward_flash_attention/n64";
      const PlanTraffic plan = cuda_plan_traffic(p, Phase::forward, arch, 132, algorithm, kernel);
      EXPECT_EQ(plan.algorithm, algorithm);
      Traffic seen;
      for (std::int64_t head = 0; head < p.batch * p.heads_q; ++head) {
        for (std::int64_t i = 0; i < p.seqlen_q; ++i) {
          seen[Operand::o].written += element * static_cast<double>(p.head_dim_v);
          seen[Operand::lse].written += 4;
        }
        if (algorithm == Algorithm::standard) {
          for (std::int64_t i = 0; i < p.seqlen_q; ++i) {
            seen[Operand::q].read += element * static_cast<double>(p.head_dim);
            for (std::int64_t j = 0; j < p.seqlen_k; ++j) {
              seen[Operand::s].written += 4;
              seen[Operand::s].read += 3 * 4;
              seen[Operand::p].written += 4;
              seen[Operand::p].read += 4;
              if (i % plan.block_q != 0) continue;
              seen[Operand::k].read += element * static_cast<double>(p.head_dim);
              seen[Operand::v].read += element * static_cast<double>(p.head_dim_v);
            }
          }
          continue;
        }
        for (std::int64_t j = 0; j < p.seqlen_k; j += 64) {
          const std::int64_t keys = std::min<std::int64_t>(64, p.seqlen_k - j);
          seen[Operand::k].read += element * static_cast<double>(keys * p.head_dim);
          seen[Operand::v].read += element * static_cast<double>(keys * p.head_dim_v);
          const bool first = j == 0, last = j + 64 >= p.seqlen_k;
          for (std::int64_t i = 0; i < p.seqlen_q; ++i) {
            const std::int64_t row = i / plan.block_q * plan.block_q;
            const std::int64_t rows = std::min<std::int64_t>(plan.block_q, p.seqlen_q - row);
            const bool all = algorithm == Algorithm::flash_attention || first || last;
            if (!all && !visible(p, 0, head % p.heads_q, row, rows, j, keys)) continue;
            seen[Operand::q].read += element * static_cast<double>(p.head_dim);
            const double kept = 4 * static_cast<double>(p.head_dim_v);
            seen[Operand::o].read += first ? 0 : kept;
            seen[Operand::lse].read += first ? 0 : 8;
            seen[Operand::o].written += last ? 0 : kept;
            seen[Operand::lse].written += last ? 0 : 8;
          }
        }
      }
      for (std::size_t i = 0; i < kOperands; ++i) {
        const auto operand = static_cast<Operand>(i);
        EXPECT_EQ(plan.traffic[operand].read, seen[operand].read) << text << ' ' << name(operand);
        EXPECT_EQ(plan.traffic[operand].written, seen[operand].written)
            << text << ' ' << name(operand);
      }
    }
  }
}

// Likewise of the backward pass: algorithm 4, its form that leaves out empty tiles, and the order
// of FlashAttention-2.
TEST(CudaPlan, BackwardOrders) {
  const cuda::Arch arch = cuda::parse_arch("sm_90a");
  for (const char* text :
       {"b2_sq100_sk200_h3_d40_causal_bf16", "b1_n130_hq4_hk2_d64_window20x9_bf16"}) {
    const Problem p = parse_problem(text);
    const double row = 2 * static_cast<double>(p.head_dim),
                 sums = 4 * static_cast<double>(p.head_dim);
    for (const Algorithm algorithm :
         {Algorithm::flash_attention, Algorithm::block_sparse, Algorithm::flash_attention_2}) {
      const PlanTraffic plan = cuda_plan_traffic(p, Phase::backward, arch, 132, algorithm);
      EXPECT_EQ(plan.algorithm, algorithm);
      const bool one_pass = algorithm == Algorithm::flash_attention_2;
      Traffic seen;
      const auto add_keys = [&] {
        for (const Operand x : {Operand::k, Operand::v}) seen[x].read += row;
        for (const Operand x : {Operand::dk, Operand::dv}) seen[x].written += row;
      };
      for (std::int64_t i = 0; i < p.batch * p.heads_k * p.seqlen_k; ++i) add_keys();
      for (std::int64_t head = 0; head < p.batch * p.heads_q; ++head) {
        for (std::int64_t i = 0; i < p.seqlen_q && one_pass; ++i) {
          seen[Operand::o].read += row;
          seen[Operand::d_o].read += row;
          seen[Operand::lse].read += 4;
          seen[Operand::d].written += 8;
          seen[Operand::dq].written += row;
        }
        // Rows of whole blocks have a sum, whether they exist or not.
        const std::int64_t blocks = (p.seqlen_q + plan.block_q - 1) / plan.block_q;
        for (std::int64_t i = 0; i < blocks * plan.block_q; ++i) {
          if (one_pass) {
            seen[Operand::dq].written += sums;
            seen[Operand::dq].read += sums;
          }
          const std::int64_t tile = i / plan.block_q * plan.block_q;
          const std::int64_t rows = std::min<std::int64_t>(plan.block_q, p.seqlen_q - tile);
          for (std::int64_t j = 0; j < p.seqlen_k; j += plan.block_k) {
            const bool first = j == 0, last = j + plan.block_k >= p.seqlen_k;
            const bool all = algorithm == Algorithm::flash_attention ||
                             (algorithm == Algorithm::block_sparse && (first || last));
            const std::int64_t keys = std::min<std::int64_t>(plan.block_k, p.seqlen_k - j);
            if (!all && !visible(p, 0, head % p.heads_q, tile, rows, j, keys)) continue;
            if (one_pass) seen[Operand::dq].written += sums;
            if (i >= p.seqlen_q) continue;
            seen[Operand::q].read += row;
            seen[Operand::d_o].read += row;
            if (one_pass) {
              seen[Operand::d].read += 8;
              continue;
            }
            seen[Operand::o].read += row;
            seen[Operand::lse].read += 4;
            seen[Operand::dq].read += first ? 0 : sums;
            seen[Operand::dq].written += last ? row : sums;
          }
        }
      }
      for (std::size_t i = 0; i < kOperands; ++i) {
        const auto operand = static_cast<Operand>(i);
        EXPECT_EQ(plan.traffic[operand].read, seen[operand].read) << text << ' ' << name(operand);
        EXPECT_EQ(plan.traffic[operand].written, seen[operand].written)
            << text << ' ' << name(operand);
      }
    }
  }
}

// Standard attention's backward pass, launch by launch as the head comment of its kernel has them.
TEST(CudaPlan, BackwardStandard) {
  for (const char* text :
       {"b2_sq100_sk200_h3_d40_causal_f32", "b1_n130_hq4_hk2_d160_dv64_window20x9_bf16"}) {
    const Problem p = parse_problem(text);
    const auto element = static_cast<double>(size_of(p.dtype));
    const double row = element * static_cast<double>(p.head_dim);
    const double row_v = element * static_cast<double>(p.head_dim_v);
    const PlanTraffic plan =
        cuda_plan_traffic(p, Phase::backward, cuda::parse_arch("sm_80"), 108, Algorithm::standard);
    EXPECT_EQ(plan.algorithm, Algorithm::standard);
    Traffic seen;
    for (std::int64_t i = 0; i < p.batch * p.heads_k * p.seqlen_k; ++i) {
      seen[Operand::dk].written += row;
      seen[Operand::dv].written += row_v;
    }
    // Rows of a tile of each gradient, by the registers that its columns take.
    const std::int64_t rows_d = p.head_dim > 128 ? 32 : 64, rows_dv = p.head_dim_v > 128 ? 32 : 64;
    for (std::int64_t head = 0; head < p.batch * p.heads_q; ++head) {
      for (std::int64_t i = 0; i < p.seqlen_q; ++i) {
        seen[Operand::dq].written += row;
        for (std::int64_t j = 0; j < p.seqlen_k; ++j) {
          for (const Operand x : {Operand::p, Operand::dp, Operand::ds}) seen[x].written += 4;
          for (const Operand x : {Operand::p, Operand::ds}) seen[x].read += 2 * 4;
          seen[Operand::dp].read += 4;
          if (j % 64 == 0) {  // P and dP
            seen[Operand::q].read += row;
            seen[Operand::d_o].read += row_v;
            seen[Operand::lse].read += 4;
          }
          if (i % 64 == 0) {
            seen[Operand::k].read += row;
            seen[Operand::v].read += row_v;
          }
          if (i % rows_d == 0) seen[Operand::k].read += row;       // dQ
          if (j % rows_d == 0) seen[Operand::q].read += row;       // dK
          if (j % rows_dv == 0) seen[Operand::d_o].read += row_v;  // dV
        }
      }
    }
    for (std::size_t i = 0; i < kOperands; ++i) {
      const auto operand = static_cast<Operand>(i);
      EXPECT_EQ(plan.traffic[operand].read, seen[operand].read) << text << ' ' << name(operand);
      EXPECT_EQ(plan.traffic[operand].written, seen[operand].written)
          << text << ' ' << name(operand);
    }
  }
}

}  // namespace
}  // namespace attn::traffic
