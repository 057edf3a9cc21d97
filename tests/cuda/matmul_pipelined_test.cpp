// The rung `pipelined` of matrix products: every shape of its table and others by name, on ragged
// problems in all orders, against fp64; and what its table gives to each architecture.
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "cuda/driver/device.hpp"
#include "cuda/kernels/shared_memory.hpp"
#include "cuda/matmul/matmul_sm80.hpp"
#include "cuda/matmul/source.hpp"
#include "cuda/matmul_support.hpp"
#include "cuda/support.hpp"

namespace attn::cuda {
namespace {

using verify::varied_problem;

std::string row_text(const MatmulSm80Shape& row) {
  return "pipelined/" + std::to_string(row.shape.rows) + "x" + std::to_string(row.shape.columns);
}

// Those of the table, and others that a name may give: deep stages, rings of two, eight warps.
std::vector<std::string> shapes() {
  std::vector<std::string> names;
  for (const MatmulSm80Shape& row : matmul_sm80_shapes()) names.push_back(row_text(row));
  for (const char* other : {"128x256_w8_k64_r3", "128x128_w8_r2", "64x256_k64_r2", "256x64_r6",
                            "64x64_w8_k64", "128x128_w4_k64_r3"}) {
    names.push_back(std::string("pipelined/") + other);
  }
  return names;
}

class PipelinedShapes : public testing::TestWithParam<std::string> {};

// More than a tile and less than two, steps that end inside a tile, and all eight orders (of the
// shapes that only a name gives half of them, which have every order of each matrix). Fewer steps
// than the ring has room for; more, so that it goes round.
TEST_P(PipelinedShapes, AreRight) {
  ATTN_NEEDS_GPU();
  const MatmulShape shape = parse_matmul_request(GetParam()).shape;
  std::uint64_t seed = 200;
  const bool named = shape.warps + shape.depth + shape.stages > 0;
  for (const int variant : named ? std::vector{1, 2, 4, 7} : std::vector{0, 1, 2, 3, 4, 5, 6, 7}) {
    // An emulated GPU takes half of the orders, and of tiles twice as wide the others.
    const bool odd = shape.columns % 128 != 0;
    if (emulated() && ((variant & 1) == variant >> 2) != odd) continue;
    const DType dtype = variant % 3 == 1 ? DType::f16 : DType::bf16;
    const std::int64_t m = shape.rows + 8, n = shape.columns + 24, k = variant % 2 == 0 ? 360 : 40;
    EXPECT_EQ(failure(varied_problem({1, m, n, k}, dtype, variant), GetParam(), 8, ++seed), "");
  }
}
std::string shape_name(const testing::TestParamInfo<std::string>& info) {
  return info.param.substr(info.param.find('/') + 1);
}
INSTANTIATE_TEST_SUITE_P(, PipelinedShapes, testing::ValuesIn(shapes()), shape_name);

// For MatmulData: rows begin at multiples of 8 elements.
constexpr std::int64_t kTo8 = -8;

// A batch; a C whose rows do not begin at multiples of 16 bytes, or end inside one; fewer rows,
// columns and steps than a chunk.
TEST(CudaMatmulPipelined, ResultsOfAnyPlace) {
  ATTN_NEEDS_GPU();
  std::uint64_t seed = 300;
  for (const DType dtype : {DType::bf16, DType::f16}) {
    MatmulProblem p{.batch = 3, .m = 72, .n = 136, .k = 104, .dtype = dtype, .output = dtype};
    p.bias = true;
    p.activation = Activation::gelu;
    EXPECT_EQ(failure(p, "pipelined/64x64", 8, ++seed), "");
    // Along k, m and n may be any number.
    p = {.m = 67, .n = 131, .k = 72, .dtype = dtype, .output = dtype};
    p.order_b = MatrixOrder::column_major;
    for (const std::int64_t gap : {std::int64_t{8}, kTo8}) {
      EXPECT_EQ(failure(p, "pipelined/64x128", gap, ++seed), "");
      p.order_c = MatrixOrder::column_major;
      p.bias = true;
      EXPECT_EQ(failure(p, "pipelined/128x64", gap, ++seed), "");
    }
    // Across k, the number of steps may be any.
    p = {.m = 72, .n = 8, .k = 3, .dtype = dtype, .output = dtype};
    p.order_a = MatrixOrder::column_major;
    EXPECT_EQ(failure(p, "pipelined", 8, ++seed), "");
    p.k = 97;
    EXPECT_EQ(failure(p, "pipelined", 8, ++seed), "");
  }
}

// The rung runs, where the problem and its tensors allow it: none of the cases above was refused.
TEST(CudaMatmulPipelined, TakesWhatLdmatrixTakes) {
  ATTN_NEEDS_GPU();
  MatmulOptions options;
  options.device = kGpu;
  for (const std::string& rung : shapes()) {
    options.rung = rung;
    const MatmulShape shape = parse_matmul_request(rung).shape;
    const MatmulPlan plan = make_plan({.m = 72, .n = 80, .k = 104, .dtype = DType::bf16}, options);
    EXPECT_EQ(plan.rung, "pipelined");
    EXPECT_EQ(plan.block_m, shape.rows);
    EXPECT_EQ(plan.block_n, shape.columns);
    EXPECT_TRUE(shape.warps == 0 || plan.launch.threads == 32 * shape.warps) << rung;
    EXPECT_TRUE(shape.depth == 0 || plan.block_k == shape.depth) << rung;
    EXPECT_TRUE(shape.stages == 0 || plan.launch.stages == shape.stages) << rung;
  }
}

TEST(CudaMatmulPipelined, OnlyBlocksOfTheMaskAreMultiplied) {
  ATTN_NEEDS_GPU();
  std::uint64_t seed = 400;
  for (const int block : {64, 128}) {
    for (const int variant : {0, 6, 3}) {  // C is column-major in the second one
      MatmulProblem p = varied_problem({1, 152, 392, 264}, DType::bf16, variant);
      p.masked = variant == 3 ? MaskedMatrix::c : MaskedMatrix::b;
      p.block = block;
      EXPECT_EQ(failure(p, "pipelined", 8, ++seed), "");
      EXPECT_EQ(failure(p, "pipelined/64x64_k64", 8, ++seed), "");
    }
  }
}

TEST(CudaMatmulPipelined, RefusesShapesThatDoNotFit) {
  ATTN_NEEDS_GPU();
  MatmulOptions options;
  options.device = kGpu;
  const auto refused = [&](const std::string& shape, ErrorCode code) {
    options.rung = shape;
    return refusal(code,
                   [&] { make_plan({.m = 8, .n = 8, .k = 8, .dtype = DType::bf16}, options); });
  };
  for (const char* shape :
       {"96x128", "256x256", "128x256_w4", "128x128_w2", "128x128_k16", "128x128_k48", "128x128_r1",
        "64x64_r9", "128x256_k64_r5", "64x64_s2"}) {
    expect_contains(refused(std::string("pipelined/") + shape, ErrorCode::unsupported),
                    "of rung pipelined; accepted on sm_");
  }
  expect_contains(refused("persistent/128x128_w8", ErrorCode::unsupported),
                  "accepted from persistent on are");
  for (const char* shape : {"128x128_w", "128x128_w8k32", "128x128_r4_w8", "128x128_w8_k32_r4_"}) {
    expect_contains(refused(std::string("pipelined/") + shape, ErrorCode::invalid_argument),
                    "of pipelined ROWSxCOLUMNS_wWARPS_kSTEPS_rSTAGES");
  }
}

constexpr int kArchitectures[] = {80, 86, 87, 89, 90, 100, 120};

TEST(CudaMatmulPipelined, EveryRowFitsEveryArchitecture) {
  for (const int number : kArchitectures) {
    const Arch arch{number, false};
    for (const MatmulSm80Shape& row : matmul_sm80_shapes()) {
      const MatmulShape shape = complete_matmul_sm80(row.shape, arch);
      EXPECT_EQ(refuse_matmul_sm80(shape, arch), "") << number;
      EXPECT_GE(shape.stages, 3) << number << " " << row_text(row);
      const int blocks = blocks_of(shape, arch);
      EXPECT_LE(blocks * (ring_bytes_of(shape) + 1024), most_shared_bytes(arch) + 1024);
      // The ring has room for C.
      EXPECT_GE(ring_bytes_of(shape), std::int64_t{2} * shape.rows * shape.columns);
    }
  }
}

TEST(CudaMatmulPipelined, TheTableFillsTheMachine) {
  const auto row_of = [](std::int64_t m, std::int64_t n, std::int64_t k, int arch, int sm_count) {
    return row_text(choose_matmul_sm80({1, m, n, k, 64}, {arch, false}, sm_count));
  };
  EXPECT_EQ(row_of(256, 256, 256, 80, 108), "pipelined/64x64");
  for (const std::string& large :
       {row_of(8192, 8192, 8192, 80, 108), row_of(8192, 8192, 8192, 89, 128)}) {
    EXPECT_TRUE(large == "pipelined/128x256" || large == "pipelined/256x128" ||
                large == "pipelined/128x128")
        << large;
  }
}

// What a GPU other than Hopper gets.
TEST(CudaMatmulPipelined, IsTheLastRungWithoutHopper) {
  const auto rung_of = [](const MatmulProblem& p, const MatmulTensors& tensors, int arch) {
    return std::string(name(choose_matmul(p, {arch, false}, {}, tensors, 108).rung));
  };
  MatmulProblem p{.m = 512, .n = 512, .k = 512, .dtype = DType::bf16, .output = DType::bf16};
  for (const int number : kArchitectures) EXPECT_EQ(rung_of(p, {}, number), "pipelined");
  EXPECT_EQ(rung_of(p, {.aligned = false}, 80), "mma_sync");
  EXPECT_EQ(rung_of(p, {.aligned_c = false}, 80), "pipelined");
  p.k = 511;
  EXPECT_EQ(rung_of(p, {}, 80), "mma_sync");
}

// Compiled for the architectures of the support table, without a GPU.
TEST(CudaMatmulPipelined, KernelsCompileWithoutSpills) {
  ATTN_NEEDS_NVRTC();
  if (std::getenv("ATTN_NVRTC") != nullptr) GTEST_SKIP() << "skipped: NVRTC is the emulator's";
  const std::string folder = testing::TempDir() + "attn_matmul_pipelined_kernels";
  int number = 0;  // of the four pairs of orders, and of the architectures beside sm_80
  for (const Arch arch : {Arch{80, false}, Arch{89, false}, Arch{90, true}}) {
    for (const MatmulSm80Shape& row : matmul_sm80_shapes()) {
      const int other = ++number % 2 == 0 ? 90 : 89;
      if (arch.number != 80 && arch.number != other) continue;
      MatmulProblem p = varied_problem({1, 512, 512, 512}, DType::bf16, number % 4);
      p.output = DType::bf16;
      p.bias = true;
      p.activation = Activation::gelu;
      const std::string rung = row_text(row);
      const MatmulConfig config = choose_matmul(p, arch, parse_matmul_request(rung), {}, 132);
      const Report report = compile_into(matmul_source(config), arch, {}, folder).report;
      const std::string what = rung + " for " + to_string(arch);
      EXPECT_EQ(report.spill_store_bytes, 0) << what;
      EXPECT_EQ(report.local_bytes, 0) << what;
      EXPECT_TRUE(report.warnings.empty()) << what << ": " << report.warnings.front();
    }
  }
}

}  // namespace
}  // namespace attn::cuda
