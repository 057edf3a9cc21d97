// PlanOptions::batch_invariant: O and LSE of a sequence that is computed alone have the bits of the
// same sequence in a batch of others, which pad it.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "attn/context.hpp"
#include "attn/run.hpp"
#include "conformance/support.hpp"
#include "core/problem/rows.hpp"
#include "verify/conformance.hpp"
#include "verify/data.hpp"

namespace attn::verify {
namespace {

constexpr std::uint64_t kSeed = 11;

// `count` places of an axis from `first` on.
Tensor part(Tensor t, int axis, std::int64_t first, std::int64_t count) {
  const auto at = static_cast<std::size_t>(axis);
  t.data = static_cast<std::byte*>(t.data) +
           first * t.strides[at] * static_cast<std::int64_t>(size_of(t.dtype));
  t.shape[at] = count;
  return t;
}

// Sequence `b` of a batch in a problem of its own: seqlen_k is its length, the page table has its
// pages alone. Inputs are views of the batch's.
class Alone {
 public:
  Alone(const CaseData& batch, std::int64_t b)
      : problem(batch.problem),
        sequence_(core::sequence(batch.problem, batch.inputs, b)),
        starts_q_{0, sequence_.length_q},
        starts_k_{0, sequence_.length_k} {
    problem.batch = 1;
    inputs = batch.inputs;
    const std::int64_t keys = sequence_.length_k;
    std::vector<std::int64_t> rows{1, problem.seqlen_q};
    if (problem.layout_q == Layout::packed) {
      rows = {sequence_.length_q};
      inputs.q = part(inputs.q, 0, start(batch.inputs.cu_seqlens_q, b), sequence_.length_q);
      inputs.cu_seqlens_q = tensor(starts_q_.data(), {2});
      inputs.seqused_q = {};
    } else {
      inputs.q = part(inputs.q, 0, b, 1);
      if (inputs.seqused_q.given()) inputs.seqused_q = part(inputs.seqused_q, 0, b, 1);
    }
    problem.seqlen_k = keys;
    switch (problem.layout_k) {
      case Layout::packed:
        for (Tensor* t : {&inputs.k, &inputs.v}) {
          *t = part(*t, 0, start(batch.inputs.cu_seqlens_k, b), keys);
        }
        inputs.cu_seqlens_k = tensor(starts_k_.data(), {2});
        inputs.seqused_k = {};
        break;
      case Layout::paged: {
        const std::int64_t pages = (keys + problem.page_size - 1) / problem.page_size;
        inputs.page_table = part(part(inputs.page_table, 0, b, 1), 1, 0, pages);
        inputs.seqused_k = part(inputs.seqused_k, 0, b, 1);
        problem.seqlen_k = pages * problem.page_size;
        break;
      }
      case Layout::dense:
        for (Tensor* t : {&inputs.k, &inputs.v}) *t = part(part(*t, 0, b, 1), 1, 0, keys);
        inputs.seqused_k = {};
        break;
    }
    outputs.o = make(problem.dtype, rows, true);
    outputs.lse = make(batch.outputs.lse.dtype, rows, false);
  }
  Alone(const Alone&) = delete;
  Alone& operator=(const Alone&) = delete;

  // Where its results differ from those of the batch; empty where none does.
  std::string difference(const CaseData& batch) const {
    const Problem& p = batch.problem;
    const core::Rows o = core::rows_like_q(p, batch.inputs, batch.outputs.o, sequence_.batch);
    const core::Rows lse = core::lse_rows(p, batch.inputs, batch.outputs.lse, sequence_.batch);
    const core::Rows own_o = core::rows_like_q(problem, inputs, outputs.o, 0);
    const core::Rows own_lse = core::lse_rows(problem, inputs, outputs.lse, 0);
    const std::size_t bytes = static_cast<std::size_t>(p.head_dim_v) * size_of(p.dtype);
    for (std::int64_t i = 0; i < sequence_.length_q; ++i) {
      for (std::int64_t h = 0; h < p.heads_q; ++h) {
        const bool same_lse =
            std::memcmp(lse.row(i, h), own_lse.row(i, h), size_of(outputs.lse.dtype)) == 0;
        if (same_lse && std::memcmp(o.row(i, h), own_o.row(i, h), bytes) == 0) continue;
        return std::string(same_lse ? "o" : "lse") + " of sequence " +
               std::to_string(sequence_.batch) + " differs at query " + std::to_string(i) +
               ", head " + std::to_string(h);
      }
    }
    return {};
  }

  Problem problem;
  Inputs inputs;
  Outputs outputs;

 private:
  static std::int32_t start(const Tensor& cu_seqlens, std::int64_t b) {
    return static_cast<const std::int32_t*>(cu_seqlens.data)[b];
  }
  // O, or with the heads before the rows LSE, of these leading sizes.
  Tensor make(DType dtype, const std::vector<std::int64_t>& rows, bool is_o) {
    const std::int64_t heads = problem.heads_q, dim = problem.head_dim_v;
    std::vector<double>& memory = is_o ? o_ : lse_;
    memory.assign(static_cast<std::size_t>(rows[0] * rows.back() * heads * dim + 1), NAN);
    if (rows.size() == 1) {
      return is_o ? tensor(memory.data(), dtype, {rows[0], heads, dim})
                  : tensor(memory.data(), dtype, {heads, rows[0]});
    }
    return is_o ? tensor(memory.data(), dtype, {1, rows[1], heads, dim})
                : tensor(memory.data(), dtype, {1, heads, rows[1]});
  }

  core::Sequence sequence_;
  std::vector<std::int32_t> starts_q_, starts_k_;
  std::vector<double> o_, lse_;
};

struct How {
  Algorithm algorithm = Algorithm::automatic;
  InstructionSet isa = InstructionSet::automatic;
  int threads_batch = 1, threads_alone = 1;
  bool batch_invariant = true;
};

// Where a sequence alone differs from itself in the batch; empty where none does. Of problems with
// dropout, which is drawn by the place in the batch, the first sequence is compared.
std::string difference(CaseData& batch, const How& how) {
  const auto run = [&](const Problem& problem, const Inputs& inputs, const Outputs& outputs,
                       int threads) {
    const Context context{.executor = make_thread_pool(threads), .isa = how.isa, .log = nullptr};
    forward(problem, inputs, outputs,
            {.backend = Backend::cpu,
             .algorithm = how.algorithm,
             .threads = threads,
             .batch_invariant = how.batch_invariant},
            context);
  };
  batch.poison();
  run(batch.problem, batch.inputs, batch.outputs, how.threads_batch);
  const std::int64_t compared = batch.problem.dropout.probability > 0 ? 1 : batch.problem.batch;
  for (std::int64_t b = 0; b < compared; ++b) {
    Alone alone(batch, b);
    run(alone.problem, alone.inputs, alone.outputs, how.threads_alone);
    const std::string found = alone.difference(batch);
    if (!found.empty()) return found;
  }
  return {};
}

std::string text_of(const std::string& descriptor, const How& how) {
  return descriptor + ", " + std::string(name(how.algorithm)) + ", " + std::string(name(how.isa)) +
         ", threads " + std::to_string(how.threads_batch) + " and " +
         std::to_string(how.threads_alone);
}

// Problems whose bits differ without the option on the instruction set that every machine has; on
// others, whose blocks are larger, a batch may be cut as a sequence alone is.
struct Dependent {
  const char* descriptor;
  Algorithm algorithm = Algorithm::automatic;
};
constexpr Dependent kDependent[] = {
    // Few rows: fewer splits in a batch than alone.
    {"b9_sq1_sk2000_hq4_hk2_d64_f32/usedk700,2000,1500,9,8,7,6,5,4"},
    {"b9_sq2_sk1400_h3_d40_causal_paged16_sink_f16/usedk1400,600,1,1300,9,8,7,6,5"},
    {"b8_sq3_sk1900_hq4_hk2_d32_causal_packed_softcap5_f32/"
     "cuq0,3,4,7,8,9,10,11,12_cuk0,1300,1900,3800,3809,3818,3827,3836,3845"},
    // More rows: the keys of one sequence are split, those of the batch are not.
    {"b9_sq20_sk1500_h2_d16_f32/usedk1100,1500,9,8,7,6,5,4,3"},
    {"b6_sq20_sk2600_hq2_hk1_d16_causal_bf16/usedk2600,9,8,7,6,5", Algorithm::flash_decoding},
    // The paper's sqrt(n) chunks.
    {"b2_sq9_sk5000_h1_d8_f32/usedk4500,5000", Algorithm::memory_efficient},
};

TEST(BatchInvariant, EqualBitsWhereTheyDifferWithoutIt) {
  for (const Dependent& c : kDependent) {
    const Case parsed = parse_case(c.descriptor);
    CaseData batch(parsed, kSeed);
    for (const InstructionSet isa : available_instruction_sets()) {
      How how{.algorithm = c.algorithm, .isa = isa};
      for (const int threads : {1, 3}) {
        how.threads_batch = threads;
        how.threads_alone = 4 - threads;
        EXPECT_EQ(difference(batch, how), "") << text_of(c.descriptor, how);
      }
      how.batch_invariant = false;
      if (isa == InstructionSet::portable) {
        EXPECT_NE(difference(batch, how), "") << text_of(c.descriptor, how);
      }
    }
    const Report report =
        check(parsed, {.backend = Backend::cpu, .algorithm = c.algorithm, .batch_invariant = true},
              kSeed);
    EXPECT_EQ(report.status, Status::passed) << to_string(report);
  }
}

class Draw {
 public:
  explicit Draw(std::uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15u + 1) {}
  std::int64_t below(std::int64_t limit) {  // splitmix64
    std::uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return static_cast<std::int64_t>((z ^ (z >> 31)) % static_cast<std::uint64_t>(limit));
  }
  template <class T, std::size_t kCount>
  const T& one_of(const T (&list)[kCount]) {
    return list[below(kCount)];
  }

 private:
  std::uint64_t state_;
};

// Rows, keys and heads are drawn so that each kernel has its turn and none takes long.
std::string random_descriptor(Draw& draw) {
  static const char* const kHeads[] = {"h1", "h2", "hq4_hk1", "hq6_hk3", "hq2_hk1"};
  static const char* const kMasks[] = {"",         "_causal",      "_causal",
                                       "_prefix9", "_window300x0", "_mask((query+key)%5!=0)"};
  static const char* const kScores[] = {"", "", "_softcap5", "_alibi"};
  static const char* const kTypes[] = {"_f32", "_bf16", "_f16", "_f64"};
  static const char* const kLayouts[] = {"",         "_packed",  "_packedq",
                                         "_packedk", "_paged16", "_packedq_paged7"};
  static const char* const kHints[] = {"/padded", "/padded_headmajor", "/padded_strided"};
  static const std::int64_t kDims[] = {8, 16, 40, 64};
  const bool few_keys = draw.below(4) == 0;
  const std::int64_t queries = few_keys ? 1 + draw.below(150) : 1 + draw.below(24);
  const std::int64_t keys = few_keys ? 1 + draw.below(400) : 400 + draw.below(1800);
  std::string text = "b" + std::to_string(2 + draw.below(4)) + "_sq" + std::to_string(queries) +
                     "_sk" + std::to_string(keys) + "_" + draw.one_of(kHeads) + "_d" +
                     std::to_string(draw.one_of(kDims));
  const std::string layout = draw.one_of(kLayouts);
  text += layout + draw.one_of(kMasks) + draw.one_of(kScores);
  if (draw.below(3) == 0) text += "_sink";
  if (draw.below(6) == 0) text += "_dropout0.3_seed5";
  return text + draw.one_of(kTypes) + draw.one_of(kHints);
}

TEST(BatchInvariant, EqualBitsInRandomProblems) {
  const std::vector<InstructionSet> sets = available_instruction_sets();
  const std::uint64_t count = quick() ? 20 : 60;
  for (std::uint64_t seed = 1; seed <= count; ++seed) {
    Draw draw(seed);
    const std::string descriptor = random_descriptor(draw);
    const Case parsed = parse_case(descriptor);
    const std::vector<Algorithm> known = algorithms_for(parsed.problem.dtype, Phase::forward);
    const How how{
        .algorithm = draw.below(2) == 0 ? Algorithm::automatic
                                        : known[static_cast<std::size_t>(
                                              draw.below(static_cast<std::int64_t>(known.size())))],
        .isa = sets[static_cast<std::size_t>(draw.below(static_cast<std::int64_t>(sets.size())))],
        .threads_batch = draw.below(2) == 0 ? 1 : 3,
        .threads_alone = draw.below(2) == 0 ? 1 : 3};
    CaseData batch(parsed, seed);
    EXPECT_EQ(difference(batch, how), "") << text_of(descriptor, how) << ", seed " << seed;
  }
}

}  // namespace
}  // namespace attn::verify
