// Every listed case in every dtype, and random ones, on a GPU against fp64.
#include <algorithm>
#include <string_view>
#include <tuple>

#include "core/cache_type.hpp"
#include "cuda/gpu.hpp"
#include "verify/cases.hpp"

namespace attn::cuda {
namespace {

using verify::Case;
using verify::Conformance;
using verify::ListedCase;
using verify::Report;
using verify::Status;

constexpr std::uint64_t kSeed = 20261121;
constexpr std::int64_t kQuickScores = 100'000;
constexpr Algorithm kAlgorithms[] = {Algorithm::flash_attention_2, Algorithm::flash_decoding};

// The papers' other orders. Each case meets one of them, in one dtype: they have one arithmetic,
// and every kernel takes a second to compile.
constexpr Algorithm kOrders[] = {Algorithm::standard, Algorithm::flash_attention,
                                 Algorithm::block_sparse};

constexpr std::string_view kKernels[] = {"forward_sm80_few_rows", "forward_sm90",
                                         "forward_sm80",          "forward_sm90_wide",
                                         "forward_sm80_wide",     "forward_simt"};

// Whether `forward_sm80_few_rows` reads K and V of these types as they are stored.
bool reads_stored_types(const Problem& p) {
  const auto whole = [](CacheType type, std::int64_t dim, std::int64_t columns) {
    return dim % columns == 0 && core::row_bytes(type, dim) % 4 == 0;
  };
  return whole(core::type_of_k(p), p.head_dim, 16) && whole(core::type_of_v(p), p.head_dim_v, 32);
}

// Whether a kernel has to take the case, as docs/cuda-forward.md, "Which kernel" says. Where it
// depends on addresses and pages it may take the case or not.
bool must_take(std::string_view kernel, const Case& c) {
  const Problem& p = c.problem;
  if (p.dtype == DType::f64) return false;
  if (kernel == "forward_simt") return true;
  const std::int64_t most = kernel.ends_with("_wide") ? 512 : 256;
  const auto fits = [&](std::int64_t d) { return d % 8 == 0 && d <= most; };
  if (p.dtype == DType::f32 || !fits(p.head_dim) || !fits(p.head_dim_v)) return false;
  if (c.hints.strided || c.hints.far) return false;
  const bool lists = p.key_list > 0;  // for each query alone
  const bool stored =
      p.type_q != CacheType::as_q || p.type_k != CacheType::as_q || p.type_v != CacheType::as_q;
  if (stored && lists && kernel != "forward_sm80_few_rows") return false;  // nothing converts them
  if (kernel == "forward_sm80_wide") return true;
  if (kernel == "forward_sm80") return !lists;
  const std::int64_t rows = (lists ? 1 : p.seqlen_q) * (p.heads_q / p.heads_k);
  const bool hopper = device_info(kGpu.index).arch == 90;
  if (kernel == "forward_sm90_wide") return hopper && rows > 32;
  if (kernel == "forward_sm80_few_rows") {
    const bool narrow = std::max(p.head_dim, p.head_dim_v) <= 64;
    // The rows of all sequences over a shared prefix may be many.
    return rows <= (narrow ? 32 : 16) && p.dropout.probability == 0 && p.seqlen_prefix == 0 &&
           (!stored || reads_stored_types(p));
  }
  return hopper && p.layout_k != Layout::paged && !lists;
}

// The number of kernels and algorithms that took the case; all of them agree, and none refuses that
// must take it. -1: the memory that the case needs is not to be had.
int check_all(const Case& c, std::uint64_t seed) {
  Conformance conformance(c, seed, false);
  int took = 0;
  for (const std::string_view kernel : kKernels) {
    for (const Algorithm algorithm : kAlgorithms) {
      const Report report = conformance.check({.phase = Phase::forward,
                                               .algorithm = algorithm,
                                               .device = kGpu,
                                               .kernel = std::string(kernel)});
      if (without_memory(c, report)) return -1;
      EXPECT_NE(report.status, Status::failed) << to_string(report);
      if (must_take(kernel, c)) {
        EXPECT_NE(report.status, Status::unsupported) << to_string(report);
      }
      took += report.status == Status::unsupported ? 0 : 1;
    }
  }
  return took;
}

using Parameter = std::tuple<std::size_t, DType>;  // index into listed_cases()

class CudaListed : public ::testing::TestWithParam<Parameter> {};

TEST_P(CudaListed, AgreesWithTheReference) {
  ATTN_NEEDS_GPU();
  const auto [index, dtype] = GetParam();
  const ListedCase& listed = verify::listed_cases()[index];
  SCOPED_TRACE(listed.reason);
  const Case c = verify::with_dtype(verify::parse_case(listed.descriptor), dtype);
  if (verify::quick() && (verify::scores(c) > kQuickScores || c.hints.far)) {
    GTEST_SKIP() << "skipped: ATTN_TEST_QUICK is set";
  }
  ATTN_NEEDS_KERNEL(c.problem);
  constexpr DType kDtypes[] = {DType::f32, DType::bf16, DType::f16};
  if (dtype == kDtypes[index % 3]) {
    Conformance conformance(c, kSeed + index, false);
    const Report report = conformance.check(
        {.phase = Phase::forward, .algorithm = kOrders[index / 3 % 3], .device = kGpu});
    if (without_memory(c, report)) GTEST_SKIP() << kWithoutMemory;
    EXPECT_NE(report.status, Status::failed) << to_string(report);
  }
  const int took = check_all(c, kSeed + index);
  if (took < 0) GTEST_SKIP() << kWithoutMemory;
  EXPECT_GT(took, 0);
}

// None without a GPU, so that one line says what is skipped instead of hundreds.
std::size_t cases_here() { return why_no_driver() ? 0 : verify::listed_cases().size(); }

TEST(CudaConformance, ListedCasesAreRun) {
  ATTN_NEEDS_GPU();
  EXPECT_EQ(cases_here(), verify::listed_cases().size());
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(CudaListed);
INSTANTIATE_TEST_SUITE_P(Conformance, CudaListed,
                         ::testing::Combine(::testing::Range<std::size_t>(0, cases_here()),
                                            ::testing::Values(DType::bf16, DType::f16, DType::f32)),
                         [](const ::testing::TestParamInfo<Parameter>& info) {
                           const ListedCase& listed =
                               verify::listed_cases()[std::get<0>(info.param)];
                           return verify::test_name(std::string(listed.descriptor) + "_" +
                                                    std::string(name(std::get<1>(info.param))));
                         });

std::uint64_t random_cases() { return why_no_driver() ? 0 : verify::quick() ? 10 : 100; }

// A test a problem, so that parts of the tests can run side by side: each compiles several kernels.
class CudaRandom : public ::testing::TestWithParam<std::uint64_t> {};

TEST_P(CudaRandom, AgreesWithTheReference) {
  ATTN_NEEDS_GPU();
  if (check_all(verify::random_case(GetParam()), GetParam()) == 0) {
    GTEST_SKIP() << "skipped: no kernel takes the problem";
  }
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(CudaRandom);
INSTANTIATE_TEST_SUITE_P(Seed, CudaRandom, ::testing::Range(std::uint64_t{1}, 1 + random_cases()));

}  // namespace
}  // namespace attn::cuda
