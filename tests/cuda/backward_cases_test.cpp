// The backward pass on a GPU: listed and random cases against fp64, by every kernel.
#include <string>
#include <tuple>
#include <utility>

#include "cuda/gpu.hpp"
#include "verify/cases.hpp"

namespace attn::cuda {
namespace {

using verify::Case;
using verify::Report;
using verify::Status;

constexpr std::uint64_t kSeed = 20261122;
constexpr std::int64_t kQuickScores = 100'000;

// backward_simt takes everything that has a backward pass but lists of keys, of which
// backward_simt_key_list takes what asks for no gradient of a buffer;
// backward_sm80_deterministic what tensor cores do, backward_sm80 that and wider heads where there
// are queries and keys and the GPU's shared memory holds them, and backward_sm90, in order too,
// where the GPU is one.
void check_all(const Case& c, std::uint64_t seed) {
  const Problem& p = c.problem;
  const bool lists = p.key_list > 0, taken = verify::has_backward(p);
  verify::Conformance conformance(c, seed, taken);
  const bool without_tensor_cores =
      p.head_dim % 8 != 0 || p.head_dim_v % 8 != 0 || p.dtype == DType::f32;
  const bool wide = p.head_dim > 256 || p.head_dim_v > 256;
  const bool none = p.seqlen_q == 0 || p.seqlen_k == 0;
  for (const auto& [kernel, deterministic] : {std::pair<std::string, bool>{"backward_sm90", false},
                                              {"backward_sm90", true},
                                              {"backward_sm80", false},
                                              {"backward_sm80_deterministic", false},
                                              {"backward_simt", false},
                                              {"backward_sm80_key_list", false},
                                              {"backward_simt_key_list", false}}) {
    const Report report = conformance.check({.phase = Phase::backward,
                                             .device = kGpu,
                                             .kernel = kernel,
                                             .deterministic = deterministic});
    if (without_memory(c, report)) GTEST_SKIP() << kWithoutMemory;
    const auto says = [&](const char* text) {
      return report.message.find(text) != std::string::npos;
    };
    // Where strides are not multiples of 16 bytes, tensor cores refuse too.
    const bool one_pass = kernel == "backward_sm90" || kernel == "backward_sm80";
    const bool simt = kernel.starts_with("backward_simt"), of_lists = kernel.ends_with("key_list");
    const bool refuses =
        !taken || lists != of_lists || says("gradient of the buffer") ||
        (!simt && (without_tensor_cores || says("16 bytes"))) ||
        (!simt && !of_lists && kernel != "backward_sm80" && wide) ||
        (one_pass && (none || says("the architecture is") || says("shared memory hold"))) ||
        (of_lists && says("of shared memory"));
    EXPECT_EQ(report.status, refuses ? Status::unsupported : Status::passed) << to_string(report);
  }
}

using Parameter = std::tuple<std::size_t, DType>;  // index into listed_cases()

class CudaBackwardListed : public ::testing::TestWithParam<Parameter> {};

TEST_P(CudaBackwardListed, AgreesWithTheReference) {
  ATTN_NEEDS_GPU();
  const auto [index, dtype] = GetParam();
  const verify::ListedCase& listed = verify::listed_cases()[index];
  SCOPED_TRACE(listed.reason);
  const Case c = verify::with_dtype(verify::parse_case(listed.descriptor), dtype);
  if (verify::quick() && (verify::scores(c) > kQuickScores || c.hints.far)) {
    GTEST_SKIP() << "skipped: ATTN_TEST_QUICK is set";
  }
  check_all(c, kSeed + index);
}

// None without a GPU, so that one line says what is skipped instead of hundreds.
std::size_t cases_here() { return why_no_driver() ? 0 : verify::listed_cases().size(); }

TEST(CudaBackward, ListedCasesAreRun) {
  ATTN_NEEDS_GPU();
  EXPECT_EQ(cases_here(), verify::listed_cases().size());
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(CudaBackwardListed);
INSTANTIATE_TEST_SUITE_P(Backward, CudaBackwardListed,
                         ::testing::Combine(::testing::Range<std::size_t>(0, cases_here()),
                                            ::testing::Values(DType::bf16, DType::f16, DType::f32)),
                         [](const ::testing::TestParamInfo<Parameter>& info) {
                           const verify::ListedCase& listed =
                               verify::listed_cases()[std::get<0>(info.param)];
                           return verify::test_name(std::string(listed.descriptor) + "_" +
                                                    std::string(name(std::get<1>(info.param))));
                         });

std::uint64_t random_cases() { return why_no_driver() ? 0 : verify::quick() ? 10 : 100; }

// A test a problem, so that parts of the tests can run side by side: each compiles five kernels.
class CudaBackwardRandom : public ::testing::TestWithParam<std::uint64_t> {};

TEST_P(CudaBackwardRandom, AgreesWithTheReference) {
  ATTN_NEEDS_GPU();
  check_all(verify::random_case(GetParam()), GetParam());
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(CudaBackwardRandom);
INSTANTIATE_TEST_SUITE_P(Seed, CudaBackwardRandom,
                         ::testing::Range(std::uint64_t{1}, 1 + random_cases()));

}  // namespace
}  // namespace attn::cuda
