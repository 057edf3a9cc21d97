// Matrix products on a GPU: every rung on ragged shapes, both 16-bit types, all orders, against
// fp64.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <string>
#include <vector>

#include "attn/attn.hpp"
#include "cuda/driver/memory.hpp"
#include "cuda/matmul/config.hpp"
#include "cuda/support.hpp"
#include "harness/device_matmul.hpp"

namespace attn::cuda {
namespace {

using harness::MatmulData;

constexpr Device kGpu{DeviceType::cuda, 0};

// The gap between rows keeps them at multiples of 16 bytes, or not.
std::string failure(const MatmulProblem& problem, const std::string& rung, std::int64_t gap,
                    std::uint64_t seed) {
  MatmulOptions options;
  options.rung = rung;
  options.device = kGpu;
  const std::string what = to_string(problem) + " " + rung;
  MatmulPlan plan;
  try {
    plan = make_plan(problem, options);
  } catch (const Error& error) {
    return error.code() == ErrorCode::unsupported ? "" : error.what();
  }
  MatmulData data(problem, seed, gap);
  data.poison();
  harness::matmul_on_device(data, plan, {});
  const harness::MatmulCheck check = check_matmul(data);
  if (!check.passed()) return what + ": " + check.where;
  return data.damage().empty() ? "" : what + ": " + data.damage();
}

MatmulProblem problem_of(std::array<std::int64_t, 4> shape, DType dtype, int variant) {
  const auto order = [&](int bit) {
    return (variant >> bit & 1) != 0 ? MatrixOrder::column_major : MatrixOrder::row_major;
  };
  MatmulProblem p{.batch = shape[0], .m = shape[1], .n = shape[2], .k = shape[3], .dtype = dtype};
  p.output = variant % 3 == 0 ? DType::f32 : dtype;
  p.order_a = order(0);
  p.order_b = order(1);
  p.order_c = order(2);
  p.bias = variant % 2 == 1;
  p.activation = static_cast<Activation>(variant % 5);
  return p;
}

class MatmulRungs : public testing::TestWithParam<std::string> {};

// More than a tile and less than two, steps that end inside a tile, and all eight orders.
TEST_P(MatmulRungs, AreRight) {
  ATTN_NEEDS_GPU();
  // Those below vector_loads read element by element, whatever the order.
  const std::vector<std::string> rungs = cuda_matmul_rungs();
  const bool by_order = std::find(rungs.begin(), rungs.end(), GetParam()) >=
                        std::find(rungs.begin(), rungs.end(), "vector_loads");
  std::uint64_t seed = 1;
  for (int variant = 0; variant < 8; ++variant) {
    const std::array<std::int64_t, 4> shape = variant == 4
                                                  ? std::array<std::int64_t, 4>{1, 136, 264, 200}
                                                  : std::array<std::int64_t, 4>{2, 72, 144, 104};
    const DType dtype = variant % 3 == 1 ? DType::f16 : DType::bf16;
    if (by_order || variant % 3 == 1) {
      EXPECT_EQ(failure(problem_of(shape, dtype, variant), GetParam(), 8, ++seed), "");
    }
    if (variant % 4 == 2) {
      EXPECT_EQ(failure(problem_of(shape, DType::f32, variant), GetParam(), 8, ++seed), "");
    }
  }
  EXPECT_EQ(failure(problem_of({1, 100, 51, 77}, DType::bf16, 1), GetParam(), 3, 99), "");
  EXPECT_EQ(failure(problem_of({1, 5, 7, 0}, DType::bf16, 3), GetParam(), 0, 98), "");
}
std::string rung_name(const testing::TestParamInfo<std::string>& info) { return info.param; }
INSTANTIATE_TEST_SUITE_P(, MatmulRungs, testing::ValuesIn(cuda_matmul_rungs()), rung_name);

// The persistent kernel takes several tiles a block, and parts of k meet in order.
TEST(CudaMatmul, ManyTilesAndManySteps) {
  ATTN_NEEDS_GPU();
  EXPECT_EQ(failure(problem_of({1, 264, 520, 136}, DType::bf16, 4), "persistent", 8, 7), "");
  EXPECT_EQ(failure(problem_of({1, 40, 80, 1100}, DType::bf16, 1), "split_k", 8, 8), "");
}

TEST(CudaMatmul, ThePlanSaysWhatRuns) {
  ATTN_NEEDS_GPU();
  const DeviceInfo& device = device_info(0);
  if (device.arch != 90) GTEST_SKIP() << "skipped: the GPU is not of compute capability 9.0";
  MatmulOptions options;
  options.device = kGpu;
  const MatmulPlan large = make_plan(
      {.m = 8192, .n = 8192, .k = 4096, .dtype = DType::bf16, .output = DType::bf16}, options);
  EXPECT_EQ(large.rung, "persistent");
  EXPECT_EQ(large.launch.grid[0], device.sm_count);
  EXPECT_EQ(make_plan({.m = 512, .n = 512, .k = 64}, options).rung, "vector_loads");
  EXPECT_EQ(make_plan({.m = 512, .n = 510, .k = 64}, options).rung, "register_tiles");
}

TEST(CudaMatmul, ARungRefusesWhatItDoesNotTake) {
  ATTN_NEEDS_GPU();
  MatmulOptions options;
  options.device = kGpu;
  options.rung = "mma_sync";
  expect_contains(
      refusal(ErrorCode::unsupported, [&] { make_plan({.m = 8, .n = 8, .k = 8}, options); }),
      "dtype is f32; accepted are bf16 and f16");
  options.rung = "ldmatrix";
  expect_contains(
      refusal(ErrorCode::unsupported,
              [&] { make_plan({.m = 8, .n = 8, .k = 9, .dtype = DType::bf16}, options); }),
      "accepted are multiples of 8");
}

// Compiled for the architectures of the support table, without a GPU.
TEST(CudaMatmul, KernelsCompileWithoutSpills) {
  ATTN_NEEDS_NVRTC();
  if (std::getenv("ATTN_NVRTC") != nullptr) GTEST_SKIP() << "skipped: NVRTC is the emulator's";
  const std::string folder = testing::TempDir() + "attn_matmul_kernels";
  int number = 0;  // the rungs with wgmma get the four pairs of orders
  for (const std::string& rung : cuda_matmul_rungs()) {
    MatmulProblem p = problem_of({1, 512, 512, 512}, DType::bf16, ++number % 4);
    p.output = DType::bf16;
    p.bias = true;
    p.activation = Activation::gelu;
    const MatmulConfig config = choose_matmul(p, {90, true}, rung, {}, 132);
    for (const Source& source : matmul_sources(config)) {
      const Report report = compile_into(source, {90, true}, {}, folder).report;
      RecordProperty(source.name + "_registers", report.registers);
      EXPECT_EQ(report.spill_store_bytes, 0) << source.name;
      EXPECT_EQ(report.local_bytes, 0) << source.name;
      EXPECT_TRUE(report.warnings.empty()) << source.name << ": " << report.warnings.front();
    }
  }
}

}  // namespace
}  // namespace attn::cuda
