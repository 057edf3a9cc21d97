// The kernels that measure the rate of matrix products: what they are made of, and what they give.
#include "command/cuda_ceilings.hpp"
#include "cuda/gpu.hpp"

namespace attn::command {
namespace {

using cuda::Arch;

TEST(CudaCeilings, KernelsStayInRegisters) {
  ATTN_NEEDS_NVRTC();
  for (const DType dtype : {DType::bf16, DType::f16, DType::f32, DType::u8}) {
    for (const Arch arch : {Arch{80, false}, Arch{89, false}, Arch{90, true}, Arch{120, true}}) {
      if (arch.number >= 100 && cuda::nvrtc().version < 12080) continue;
      if (arch.number < 89 && dtype == DType::u8) continue;  // no 8-bit floats there
      SCOPED_TRACE(std::string(name(dtype)) + " " + to_string(arch));
      const cuda::Report report =
          cuda::compile(matrix_rate_kernel(dtype, arch.number).source, arch, {}).report;
      EXPECT_EQ(report.spill_store_bytes, 0);
      EXPECT_EQ(report.local_bytes, 0);
      EXPECT_TRUE(report.warnings.empty()) << report.warnings.front();
    }
  }
}

TEST(CudaCeilings, AreOfTheRightSize) {
  ATTN_NEEDS_GPU();
  CudaCeilings ceilings;
  const double bandwidth = ceilings.gbps(0);
  EXPECT_GT(bandwidth, 100);
  EXPECT_LT(bandwidth, 20'000);
  const double matrix = ceilings.gflops(DType::bf16, 0, {});
  const double fma = ceilings.gflops(DType::f32, 0, {});
  EXPECT_GT(fma, 1'000);
  EXPECT_GT(matrix, 2 * fma);
  EXPECT_LT(matrix, 5'000'000);
  EXPECT_NEAR(ceilings.gflops(DType::f16, 0, {}), matrix, 0.3 * matrix);
  // 8-bit floats have twice the rate of 16-bit ones; power may take a part of it.
  const double bytes = ceilings.gflops(DType::u8, 0, {});
  const bool there = cuda::device_info(0).arch >= 89;
  EXPECT_GT(bytes, there ? 1.4 * matrix : -1);
  EXPECT_LT(bytes, there ? 2.3 * matrix : 1);
}

}  // namespace
}  // namespace attn::command
