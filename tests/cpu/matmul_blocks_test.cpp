// Products with weights in blocks: every format, type of A and instruction set against fp64.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "attn/attn.hpp"
#include "core/matmul.hpp"
#include "matmul_checks.hpp"
#include "reference/matmul.hpp"
#include "verify/matmul.hpp"

namespace attn {
namespace {

using verify::MatmulData;
using verify::varied_problem;
using namespace matmul_checks;  // NOLINT(google-build-using-namespace)

constexpr BlockFormat kBlockFormats[] = {BlockFormat::q8_0, BlockFormat::q4_0, BlockFormat::q4_1};

// varied_problem with a B of blocks, which lies in columns beside a C of rows; k in blocks.
MatmulProblem block_problem(std::array<std::int64_t, 4> shape, DType dtype, int variant,
                            BlockFormat format) {
  shape[3] *= 32;
  MatmulProblem p = varied_problem(shape, dtype, variant);
  p.order_b = MatrixOrder::column_major;
  p.order_c = MatrixOrder::row_major;
  p.dtype_b = DType::u8;
  p.format_b = format;
  return p;
}

// Rows that share a reading of B, and more than packed panels have; several pieces of k; columns
// that are no multiple of a vector, with gaps between them.
TEST(MatmulBlocks, AreRight) {
  Sizes draw(11);
  std::uint64_t seed = 900;
  for (const InstructionSet isa : available()) {
    for (const BlockFormat format : kBlockFormats) {
      for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
        for (const std::int64_t rows : {1, 2, 3, 8, 11, 17, 150}) {
          const std::array shape{draw(2), rows, draw(130), draw(rows < 9 ? 60 : 14)};
          MatmulProblem p = block_problem(shape, dtype, static_cast<int>(seed % 8), format);
          p.accumulate = seed % 3 == 0;
          expect_right(p, "", isa, ++seed);
        }
        expect_right(block_problem({1, 5, 33, 7}, dtype, 1, format), "packed", isa, ++seed);
        expect_right(block_problem({2, 40, 20, 9}, dtype, 2, format), "few_rows", isa, ++seed);
        expect_right(block_problem({1, 3, 1, 2}, dtype, 0, format), "", isa, ++seed);
        expect_right(block_problem({1, 3, 9, 0}, dtype, 1, format), "", isa, ++seed);
      }
    }
  }
}

// Scales that are NaN, infinite, zero or subnormal make of an element what they make of the number
// that it stands for, and touch no other column.
TEST(MatmulBlocks, ScalesOfBlocksMayBeAnyNumber) {
  std::mt19937 random(5);
  const std::array<std::uint16_t, 8> numbers{0x7e00, 0xfe01, 0x7c00, 0xfc00, 0, 0x8000, 1, 0x7bff};
  for (const InstructionSet isa : available()) {
    for (const BlockFormat format : kBlockFormats) {
      for (const std::int64_t rows : {1, 4, 40}) {
        MatmulData data(block_problem({1, rows, 70, 3}, DType::f32, 0, format), random(), 1);
        const core::MatrixView b(data.inputs.b);
        for (std::int64_t j = 0; j < 70; ++j) {
          const std::int64_t block = random() % 3 * row_size(format, 32);
          const std::int64_t at = format == BlockFormat::q4_1 ? random() % 2 * 2 : 0;
          std::memcpy(b.at(0, block + at, j), &numbers[random() % numbers.size()], 2);
        }
        Context context;
        context.isa = isa;
        matmul(make_plan(data.problem, {}, context), data.inputs, data.c, context);
        std::vector<reference::Element> row(70);
        for (std::int64_t i = 0; i < rows; ++i) {
          reference::matmul_row(data.problem, data.inputs, 0, i, 0, row);
          for (std::int64_t j = 0; j < 70; ++j) {
            const auto expected = row[static_cast<std::size_t>(j)].value;
            const auto got = static_cast<const float*>(data.c.data)[data.c.offset({0, i, j})];
            const double allowed = 1e-5 * row[static_cast<std::size_t>(j)].magnitude + 1e-30;
            EXPECT_TRUE(std::isfinite(expected) ? std::abs(double{got} - expected) <= allowed
                        : std::isnan(expected)  ? std::isnan(got)
                                                : double{got} == expected)
                << to_string(data.problem) << " " << name(isa) << " C[" << i << ", " << j << "] is "
                << got << ", the reference " << expected;
          }
        }
      }
    }
  }
}

TEST(MatmulBlocks, ThatFitNoProductAreRefused) {
  const MatmulProblem right = block_problem({1, 4, 40, 2}, DType::f32, 0, BlockFormat::q4_1);
  const auto refused = [&](const std::function<void(MatmulProblem&)>& change,
                           const MatmulOptions& options = {}) {
    MatmulProblem p = right;
    change(p);
    return refusal([&] { make_plan(p, options); });
  };
  EXPECT_EQ(refused([](MatmulProblem&) {}), "nothing was refused");
  EXPECT_NE(refused([](MatmulProblem& p) {
              p.k = 63;
            }).find("format_b is q4_1; accepted with it is a k that 32 divides, which is 63"),
            std::string::npos);
  EXPECT_NE(
      refused([](MatmulProblem& p) { p.dtype_b = DType::bf16; }).find("which are f32 and bf16"),
      std::string::npos);
  EXPECT_NE(refused([](MatmulProblem& p) {
              p.dtype = p.output = DType::f64;
            }).find("which are f64 and u8"),
            std::string::npos);
  EXPECT_NE(refused([](MatmulProblem& p) {
              p.order_b = MatrixOrder::row_major;
            }).find("which are row_major and row_major"),
            std::string::npos);
  EXPECT_NE(refused([](MatmulProblem& p) {
              p.order_c = MatrixOrder::column_major;
            }).find("which are column_major and column_major"),
            std::string::npos);
  EXPECT_NE(refused([](MatmulProblem& p) {
              p.masked = MaskedMatrix::b, p.block = 32;
            }).find("accepted with it is no mask, and masked is b"),
            std::string::npos);
  EXPECT_NE(
      refused([](MatmulProblem& p) { p.format_b = BlockFormat::none; }).find("dtype of b is u8"),
      std::string::npos);
  EXPECT_NE(refused([](MatmulProblem& p) {
              p.format_b = static_cast<BlockFormat>(9);
            }).find("format_b is 9"),
            std::string::npos);
  for (const char* rung : {"naive", "blocked"}) {
    MatmulOptions options;
    options.rung = rung;
    EXPECT_NE(refused([](MatmulProblem&) {}, options)
                  .find(std::string("rung ") + rung + ": format_b is q4_1"),
              std::string::npos);
  }
  MatmulData data(right, 1);
  data.inputs.b.shape[1] = 20;  // bytes of half as many elements
  EXPECT_NE(refusal([&] {
              matmul(make_plan(right), data.inputs, data.c);
            }).find("accepted is u8[40, 40]"),
            std::string::npos);
}

TEST(MatmulBlocks, AreDescribedByTensorsButForTheirFormat) {
  for (const std::int64_t columns : {1, 40}) {
    const MatmulProblem p = block_problem({1, 4, columns, 2}, DType::f32, 0, BlockFormat::q8_0);
    const MatmulData data(p, 1);
    MatmulProblem described = describe(data.inputs, data.c);
    described.format_b = BlockFormat::q8_0;
    described.order_a = p.order_a;
    EXPECT_EQ(described, p) << to_string(described);
  }
}

}  // namespace
}  // namespace attn
