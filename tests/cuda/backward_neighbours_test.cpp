// What the other sequences of a packed batch hold changes no bit of a sequence's gradients, not
// even NaN: rows past its end, which belong to the next one, are never read or never count.
#include <cmath>
#include <cstring>

#include "cuda/gpu.hpp"
#include "cuda/rows.hpp"
#include "verify/data.hpp"

namespace attn::cuda {
namespace {

using verify::CaseData;

constexpr std::uint64_t kSeed = 11;
// Of the smallest tile of keys that backward_sm80 has, which adds to dQ in no fixed order once for
// each of them: of a single one the order is fixed.
constexpr std::int64_t kKeysOfATile = 32;

// Q, K, V and dO of all sequences but b.
void change_others(const CaseData& data, std::int64_t b, const std::function<double(double)>& f) {
  for (std::int64_t other = 0; other < data.problem.batch; ++other) {
    if (other == b) continue;
    for (const Tensor* t : {&data.inputs.q, &data.inputs.k, &data.inputs.v, &data.d_o}) {
      const bool like_q = t == &data.inputs.q || t == &data.d_o;
      const Rows rows{data, like_q, other};
      for (std::int64_t head = 0; head < t->shape[1]; ++head) {
        change(*t, rows, 0, rows.count(), head, f);
      }
    }
  }
}

// Bits of the gradients of sequence b.
std::vector<std::uint64_t> gradients_of(const CaseData& data, std::int64_t b, bool with_dq) {
  std::vector<std::uint64_t> bits;
  for (const Tensor* t : {&data.gradients.dq, &data.gradients.dk, &data.gradients.dv}) {
    const bool is_dq = t == &data.gradients.dq;
    if (is_dq && !with_dq) continue;
    const Rows rows{data, is_dq, b};
    for (std::int64_t row = 0; row < rows.count(); ++row) {
      for (std::int64_t head = 0; head < t->shape[1]; ++head) {
        for (std::int64_t i = 0; i < t->shape[2]; ++i) {
          const double x = verify::load_element(*t, rows.element(*t, row, head, i));
          bits.emplace_back();
          std::memcpy(&bits.back(), &x, sizeof(x));
        }
      }
    }
  }
  return bits;
}

class CudaBackwardNeighbours
    : public ::testing::TestWithParam<std::tuple<const char*, const char*>> {
 protected:
  static bool in_order() { return std::get<1>(GetParam()) != std::string("backward_sm80"); }
  static PlanOptions options() {
    return {.device = kGpu, .kernel = std::get<1>(GetParam()), .deterministic = in_order()};
  }
  // O and LSE of the host, so that what differs is of the backward pass.
  static void run(CaseData& data) {
    data.poison();
    forward(data.problem, data.inputs, data.outputs);
    verify::backward_on_device(data, options(), {});
  }
  static bool takes(const Problem& problem) {
    try {
      make_plan(problem, Phase::backward, options());
      return true;
    } catch (const Error& error) {
      if (error.code() != ErrorCode::unsupported) throw;
      return false;
    }
  }
};

TEST_P(CudaBackwardNeighbours, DoNotChangeEachOther) {
  ATTN_NEEDS_GPU();
  const verify::Case c = verify::parse_case(std::get<0>(GetParam()));
  CaseData before(c, kSeed);
  if (!takes(before.problem)) GTEST_SKIP() << "skipped: the kernel does not take the case";
  run(before);
  for (std::int64_t b = 0; b < before.problem.batch; ++b) {
    SCOPED_TRACE("sequence " + std::to_string(b));
    const bool with_dq = in_order() || Rows{before, false, b}.count() <= kKeysOfATile;
    const std::vector<std::uint64_t> expected = gradients_of(before, b, with_dq);
    for (const bool to_nan : {false, true}) {
      if (to_nan && std::get<1>(GetParam()) == std::string("backward_sm90")) continue;
      CaseData after(c, kSeed);
      change_others(after, b, [&](double x) { return to_nan ? std::nan("") : -2 * x; });
      run(after);
      EXPECT_TRUE(gradients_of(after, b, with_dq) == expected)
          << (to_nan ? "NaN in" : "other numbers in") << " its neighbours";
      const std::int64_t other = b == 0 ? 1 : 0;
      EXPECT_FALSE(gradients_of(after, other, true) == gradients_of(before, other, true))
          << "nothing was changed in sequence " << other;
    }
  }
}

constexpr auto kName =
    [](const ::testing::TestParamInfo<std::tuple<const char*, const char*>>& info) {
      return verify::test_name(std::string(std::get<1>(info.param)) + "_" +
                               std::get<0>(info.param));
    };

// Sequences that end inside a tile, of one row, of one tile of keys and of several. Of
// backward_sm90 other numbers alone: where the K of the next sequence holds a NaN, it computes dQ
// again, element by element, which may round it otherwise
// (CudaBackward.NaNReachesOnlyThoseWhoSeeIt).
INSTANTIATE_TEST_SUITE_P(
    Cuda, CudaBackwardNeighbours,
    ::testing::Combine(
        ::testing::Values(
            "b3_n150_hq4_hk2_d64_packed_bf16/cuq0,20,21,150_cuk0,30,180,200",
            "b3_n90_h2_d40_causal_packed_alibi_dropout0.2_seed3_f16/cuq0,31,90,95_cuk0,17,40,130"),
        ::testing::Values("backward_sm90", "backward_sm80", "backward_sm80_deterministic",
                          "backward_simt")),
    kName);

}  // namespace
}  // namespace attn::cuda
