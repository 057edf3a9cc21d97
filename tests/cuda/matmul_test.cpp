// Matrix products on a GPU: every rung on ragged shapes, both 16-bit types, all orders, against
// fp64.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <string>
#include <vector>

#include "cuda/driver/memory.hpp"
#include "cuda/matmul/matmul_sm90.hpp"
#include "cuda/matmul/source.hpp"
#include "cuda/matmul_support.hpp"
#include "cuda/support.hpp"

namespace attn::cuda {
namespace {

using verify::varied_problem;

class MatmulRungs : public testing::TestWithParam<std::string> {};

// More than a tile and less than two, steps that end inside a tile, and all eight orders.
TEST_P(MatmulRungs, AreRight) {
  ATTN_NEEDS_GPU();
  // Those below vector_loads read element by element, whatever the order.
  const std::vector<std::string> rungs = cuda_matmul_rungs();
  const auto rung = std::find(rungs.begin(), rungs.end(), GetParam());
  const bool by_order = rung >= std::find(rungs.begin(), rungs.end(), "vector_loads");
  std::uint64_t seed = 1;
  for (int variant = 0; variant < 8; ++variant) {
    // An emulated GPU takes four of the eight orders, and of the next rung the others.
    const bool odd = (rung - rungs.begin()) % 2 != 0;
    if (emulated() && ((variant & 1) == variant >> 2) != odd) continue;
    const std::array<std::int64_t, 4> shape = variant == 4
                                                  ? std::array<std::int64_t, 4>{1, 136, 264, 200}
                                                  : std::array<std::int64_t, 4>{2, 72, 144, 104};
    const DType dtype = variant % 3 == 1 ? DType::f16 : DType::bf16;
    if (by_order || variant % 3 == 1) {
      EXPECT_EQ(failure(varied_problem(shape, dtype, variant), GetParam(), 8, ++seed), "");
    }
    if (variant % 4 == 2) {
      EXPECT_EQ(failure(varied_problem(shape, DType::f32, variant), GetParam(), 8, ++seed), "");
    }
  }
  EXPECT_EQ(failure(varied_problem({1, 100, 51, 77}, DType::bf16, 1), GetParam(), 3, 99), "");
  EXPECT_EQ(failure(varied_problem({1, 5, 7, 0}, DType::bf16, 3), GetParam(), 0, 98), "");
}
std::string rung_name(const testing::TestParamInfo<std::string>& info) { return info.param; }
INSTANTIATE_TEST_SUITE_P(, MatmulRungs, testing::ValuesIn(cuda_matmul_rungs()), rung_name);

// The persistent kernel takes several tiles a block, and parts of k meet in order.
TEST(CudaMatmul, ManyTilesAndManySteps) {
  ATTN_NEEDS_GPU();
  EXPECT_EQ(failure(varied_problem({1, 264, 520, 136}, DType::bf16, 4), "persistent", 8, 7), "");
  EXPECT_EQ(failure(varied_problem({1, 40, 80, 1100}, DType::bf16, 1), "split_k", 8, 8), "");
  EXPECT_EQ(failure(varied_problem({1, 72, 248, 136}, DType::bf16, 6), "persistent/64x80", 8, 12),
            "");
  // Two groups of rows of tiles, of 12 and 7.
  EXPECT_EQ(failure(varied_problem({1, 1160, 152, 72}, DType::bf16, 0), "persistent/64x64", 8, 13),
            "");
  // Waves of whole tiles, then pieces of tiles; a tile that three blocks and more have pieces of.
  EXPECT_EQ(failure(varied_problem({1, 648, 520, 72}, DType::bf16, 0), "stream_k", 8, 9), "");
  EXPECT_EQ(failure(varied_problem({1, 40, 200, 1100}, DType::f16, 2), "stream_k/64x64", 8, 10),
            "");
  // Three tiles below each other: a cluster of two has one outside of C.
  EXPECT_EQ(failure(varied_problem({1, 264, 520, 136}, DType::bf16, 7), "cluster_multicast", 8, 11),
            "");
}

std::string row_text(const MatmulSm90Shape& row) {
  const int rows = row.shape.rows, columns = row.shape.columns, splits = row.shape.splits;
  const std::string text =
      std::string(name(row.rung)) + "/" + std::to_string(rows) + "x" + std::to_string(columns);
  return splits > 1 ? text + "_s" + std::to_string(splits) : text;
}

// Every shape that the table may choose, more than a tile of it, in an order that changes.
TEST(CudaMatmul, ShapesOfTheTableAreRight) {
  ATTN_NEEDS_GPU();
  int variant = 0;
  for (const MatmulSm90Shape& row : matmul_sm90_shapes()) {
    const std::int64_t m = row.shape.rows + 8, n = row.shape.columns + 24;
    const MatmulProblem p = varied_problem({1, m, n, 200}, DType::bf16, ++variant % 8);
    EXPECT_EQ(failure(p, row_text(row), 8, static_cast<std::uint64_t>(variant)), "");
  }
}

// Masks of B, of A (where C is column-major) and of C, by every rung that takes them, with ragged
// last blocks. What the mask leaves out is NaN in B, and is not written in C.
TEST(CudaMatmul, OnlyBlocksOfTheMaskAreMultiplied) {
  ATTN_NEEDS_GPU();
  std::uint64_t seed = 60;
  for (const char* rung : {"naive", "coalesced", "vector_loads", "cp_async", "ldmatrix",
                           "warp_specialised", "persistent/128x128"}) {
    const bool by_element = seed < 66;
    const int block = by_element ? 33 : std::string(rung) == "warp_specialised" ? 256 : 128;
    for (const int variant : {0, 6, 3}) {  // C is column-major in the second one
      MatmulProblem p = varied_problem({1, 152, 392, 264}, DType::bf16, variant);
      p.masked = variant == 3 ? MaskedMatrix::c : MaskedMatrix::b;
      p.block = block;
      EXPECT_EQ(failure(p, rung, 8, ++seed), "");
    }
  }
  // More tiles than multiprocessors, dealt evenly.
  MatmulProblem p = varied_problem({1, 840, 1300, 64}, DType::bf16, 0);
  p.masked = MaskedMatrix::c;
  p.block = 64;
  EXPECT_EQ(failure(p, "persistent/64x64", 8, ++seed), "");
  // Columns of tiles in the order of their blocks, in two groups of rows; more than are ordered.
  p = varied_problem({1, 1100, 520, 200}, DType::bf16, 0);
  p.masked = MaskedMatrix::b;
  p.block = 64;
  EXPECT_EQ(failure(p, "persistent/64x64", 8, ++seed), "");
  p = varied_problem({1, 100, 2200, 72}, DType::f16, 0);
  p.masked = MaskedMatrix::b;
  p.block = 64;
  EXPECT_EQ(failure(p, "persistent/64x64", 8, ++seed), "");
  MatmulProblem f{.m = 200, .n = 264, .k = 520, .dtype = DType::u8, .output = DType::bf16};
  f.order_b = MatrixOrder::column_major;
  f.float8 = Float8::e4m3;
  f.masked = MaskedMatrix::b;
  f.block = 128;
  EXPECT_EQ(failure(f, "persistent/64x128", 16, ++seed), "");
}

// 8-bit floats, scaled or not, by CUDA cores in any order and by tensor cores along k.
TEST(CudaMatmul, Float8IsRight) {
  ATTN_NEEDS_GPU();
  std::uint64_t seed = 40;
  for (const char* rung : {"naive", "register_tiles", "warp_specialised", "persistent/128x192",
                           "cluster_multicast/128x128", "split_k/64x128_s4", "stream_k/128x128"}) {
    for (const Float8 format : {Float8::e4m3, Float8::e5m2}) {
      const bool even = ++seed % 2 == 0;
      MatmulProblem p{.m = 72, .n = 208, .k = 272, .dtype = DType::u8};
      p.output = even ? DType::bf16 : DType::f32;
      p.order_b = MatrixOrder::column_major;
      if (even) {  // C^T = B^T A^T
        p.order_c = MatrixOrder::column_major;
      }
      p.float8 = format;
      p.scaled = even;
      p.bias = !even;
      EXPECT_EQ(failure(p, rung, 16, seed), "");
    }
  }
  MatmulOptions options;
  options.device = kGpu;
  MatmulProblem p{.m = 64, .n = 64, .k = 64, .dtype = DType::u8, .output = DType::bf16};
  p.float8 = Float8::e4m3;
  EXPECT_EQ(make_plan(p, options).rung, "register_tiles");  // B is not contiguous along k
  options.rung = "persistent";
  expect_contains(refusal(ErrorCode::unsupported, [&] { make_plan(p, options); }),
                  "accepted of 8-bit floats are a row-major A and a column-major B");
}

TEST(CudaMatmul, TheTableFillsTheMachine) {
  const auto row_of = [](std::int64_t m, std::int64_t n, std::int64_t k) {
    return row_text(choose_matmul_sm90({1, m, n, k, 64, true}, MatmulRung::stream_k, true, 132));
  };
  EXPECT_EQ(row_of(8192, 8192, 8192), "persistent/128x256");
  EXPECT_EQ(row_of(4096, 4096, 4096), "persistent/128x256");
  EXPECT_EQ(row_of(3072, 3072, 3072), "persistent/128x192");
  EXPECT_EQ(row_of(1024, 1024, 1024), "persistent/64x128");
  EXPECT_EQ(row_of(64, 3072, 3072), "split_k/64x64_s2");
  EXPECT_EQ(row_of(64, 12288, 4096), "persistent/64x192");
  EXPECT_EQ(row_of(1024, 2304, 768), "persistent/128x144");
  EXPECT_EQ(row_of(1024, 768, 768), "persistent/64x128");
  EXPECT_EQ(row_of(8192, 2304, 768), "persistent/128x192");
  EXPECT_EQ(row_of(512, 28672, 8192), "persistent/128x224");
  EXPECT_EQ(row_of(512, 10240, 8192), "persistent/128x320");
  EXPECT_EQ(row_of(64, 768, 768), "persistent/64x64");
  // Where B lies along k, tiles of any columns fetch no more than they multiply.
  const MatmulSizes float8{1, 64, 12288, 4096, 128, false};
  EXPECT_EQ(row_text(choose_matmul_sm90(float8, MatmulRung::stream_k, true, 132, {192})),
            "persistent/64x96");
  for (const std::int64_t n : {3072, 8192}) {
    EXPECT_EQ(row_text(choose_matmul_sm90({1, n, n, n, 128, false}, MatmulRung::stream_k, true, 132,
                                          {192})),
              "persistent/128x192");
  }
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
  for (const char* shape :
       {"split_k/128x128", "split_k/64x192_s5", "persistent/96x128", "persistent/64x320",
        "persistent/128x288", "persistent/128x136", "split_k/64x80_s2", "ldmatrix/64x64"}) {
    options.rung = shape;
    expect_contains(
        refusal(ErrorCode::unsupported,
                [&] { make_plan({.m = 8, .n = 8, .k = 8, .dtype = DType::bf16}, options); }),
        "accepted from persistent on are");
  }
  for (const char* shape : {"split_k/", "split_k/64", "split_k/64x", "split_k/64x192s8",
                            "split_k/64x192_s8x", "split_k/-64x192"}) {
    options.rung = shape;
    expect_contains(
        refusal(ErrorCode::invalid_argument,
                [&] { make_plan({.m = 8, .n = 8, .k = 8, .dtype = DType::bf16}, options); }),
        "accepted is ROWSxCOLUMNS_sPARTS");
  }
  const auto refused_mask = [&](const char* rung, std::int64_t block) {
    MatmulProblem p{.m = 512, .n = 512, .k = 512, .dtype = DType::bf16};
    p.masked = MaskedMatrix::b;
    p.block = block;
    options.rung = rung;
    return refusal(ErrorCode::unsupported, [&] { make_plan(p, options); });
  };
  expect_contains(refused_mask("split_k", 64), "masked is b; the rungs that take a mask are naive");
  expect_contains(refused_mask("ldmatrix", 64), "block is 64; accepted are multiples of 128");
  expect_contains(refused_mask("persistent/128x256", 128),
                  "tiles of 128 x 256 do not divide blocks of 128");
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
  std::vector<std::string> rungs = cuda_matmul_rungs();
  for (const MatmulSm90Shape& row : matmul_sm90_shapes()) {
    if (row.shape.columns > 128) rungs.push_back(row_text(row));  // which need most registers
  }
  int number = 0;  // the rungs with wgmma get the four pairs of orders
  for (const std::string& rung : rungs) {
    MatmulProblem p = varied_problem({1, 512, 512, 512}, DType::bf16, ++number % 4);
    p.output = DType::bf16;
    p.bias = true;
    p.activation = Activation::gelu;
    const MatmulRequest request = parse_matmul_request(rung);
    const Source source = matmul_source(choose_matmul(p, {90, true}, request, {}, 132));
    const Report report = compile_into(source, {90, true}, {}, folder).report;
    RecordProperty(rung + "_registers", report.registers);
    // With a bias and an activation a thread of 128 x 320 keeps a word in memory, which it stores
    // before its loop of products and loads after it.
    const bool keeps_word = rung == "persistent/128x320";
    EXPECT_LE(report.spill_store_bytes, keeps_word ? 4 : 0) << rung;
    EXPECT_LE(report.local_bytes, keeps_word ? 8 : 0) << rung;
    EXPECT_TRUE(keeps_word || report.warnings.empty()) << rung << ": " << report.warnings.front();
  }
  for (const char* rung : {"persistent/128x192", "cluster_multicast/128x128", "split_k/128x128_s2",
                           "stream_k/128x192"}) {
    MatmulProblem p{.m = 512, .n = 512, .k = 512, .dtype = DType::u8, .output = DType::bf16};
    p.order_b = MatrixOrder::column_major;
    p.float8 = Float8::e4m3;
    p.scaled = true;
    const MatmulRequest request = parse_matmul_request(rung);
    const Source source = matmul_source(choose_matmul(p, {90, true}, request, {}, 132));
    const Report report = compile_into(source, {90, true}, {}, folder).report;
    EXPECT_EQ(report.spill_store_bytes, 0) << rung << " of 8-bit floats";
    EXPECT_TRUE(report.warnings.empty()) << rung << ": " << report.warnings.front();
  }
  for (const MaskedMatrix masked : {MaskedMatrix::b, MaskedMatrix::c}) {
    MatmulProblem p = varied_problem({1, 512, 512, 512}, DType::bf16, 0);
    p.masked = masked;
    p.block = 256;
    const MatmulRequest request = parse_matmul_request("persistent/128x256");
    const Source source = matmul_source(choose_matmul(p, {90, true}, request, {}, 132));
    const Report report = compile_into(source, {90, true}, {}, folder).report;
    EXPECT_EQ(report.spill_store_bytes, 0) << "of a mask";
    EXPECT_TRUE(report.warnings.empty()) << "of a mask: " << report.warnings.front();
  }
}

}  // namespace
}  // namespace attn::cuda
