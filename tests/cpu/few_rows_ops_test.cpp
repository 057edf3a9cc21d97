// The verbs of products of few rows, of every table, against fp64: A and B in both orders and every
// dtype that the table takes, with NaN between and behind what belongs to a block.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

#include "core/tensor/element.hpp"
#include "tile_ops.hpp"

namespace attn::cpu::testing {
namespace {

class FewRows : public TileTest {};
INSTANTIATE_TEST_SUITE_P(Tables, FewRows, ::testing::ValuesIn(tables()), table_name);

// lanes x depth numbers, lanes or steps neighbours in memory and the others a gap apart.
class Operand {
 public:
  Operand(int lanes, int depth, DType dtype, bool lanes_first) {
    constexpr int kGap = 3;
    block_ = {.lane_stride = lanes_first ? 1 : depth + kGap,
              .step_stride = lanes_first ? lanes + kGap : 1,
              .lanes = lanes,
              .depth = depth,
              .dtype = dtype};
    const std::ptrdiff_t count = lanes_first ? (lanes + kGap) * std::ptrdiff_t{depth}
                                             : (depth + kGap) * std::ptrdiff_t{lanes};
    bytes_.resize(static_cast<std::size_t>(count) * size_of(dtype));
    for (std::ptrdiff_t i = 0; i < count; ++i) {
      core::store_element(at(i), dtype, std::numeric_limits<double>::quiet_NaN());
    }
    block_.at = bytes_.data();
  }
  const OperandBlock& block() const { return block_; }
  std::byte* at(int lane, int step) {
    return at(lane * block_.lane_stride + step * block_.step_stride);
  }
  // [lanes][depth]
  std::vector<double> values() {
    std::vector<double> all;
    for (int lane = 0; lane < block_.lanes; ++lane) {
      for (int step = 0; step < block_.depth; ++step) {
        all.push_back(core::load_element(at(lane, step), block_.dtype));
      }
    }
    return all;
  }

 private:
  std::byte* at(std::ptrdiff_t element) {
    return bytes_.data() + element * static_cast<std::ptrdiff_t>(size_of(block_.dtype));
  }
  std::vector<std::byte> bytes_;
  OperandBlock block_{};
};

TEST_P(FewRows, MultiplyAsDefined) {
  const FewRowsVerbs& verbs = ops().few_rows;
  const bool pairs = verbs.element_bytes == 2;
  const std::vector<DType> dtypes =
      pairs ? std::vector{DType::bf16} : std::vector{DType::f32, DType::bf16, DType::f16};
  const std::array<std::array<int, 2>, 7> sizes{
      {{1, 1}, {15, 33}, {16, 64}, {37, 17}, {130, 31}, {129, 100}, {300, 131}}};
  for (const DType dtype : dtypes) {
    for (const auto& [columns, depth] : sizes) {
      for (const int rows : {1, 2, 3, 4, 5, 8, 9, 17, 40, 64}) {
        for (int orders = 0; orders < 4; ++orders) {
          Operand a(rows, depth, dtype, orders % 2 == 1);
          Operand b(columns, depth, dtype, orders / 2 == 1);
          for (int l = 0; l < depth; ++l) {
            for (int i = 0; i < rows; ++i) core::store_element(a.at(i, l), dtype, normal());
            for (int j = 0; j < columns; ++j) core::store_element(b.at(j, l), dtype, normal());
          }
          const int padded =
              (depth + verbs.depth_multiple - 1) / verbs.depth_multiple * verbs.depth_multiple;
          const int a_ld = padded * verbs.element_bytes / 4, ld = (columns + 15) / 16 * 16;
          const int padded_rows =
              (rows + verbs.row_multiple - 1) / verbs.row_multiple * verbs.row_multiple;
          Floats packed(static_cast<std::size_t>(padded_rows * a_ld));
          Floats c(static_cast<std::size_t>(padded_rows * ld));
          const TileState state(ops());
          verbs.pack_a(a.block(), b.block(), a_ld, packed.data());
          verbs.multiply(packed.data(), a_ld, rows, b.block(), false, c.data(), ld);
          const std::vector<float> once(c.data(), c.data() + c.size());
          verbs.multiply(packed.data(), a_ld, rows, b.block(), true, c.data(), ld);
          const std::vector<double> all_a = a.values(), all_b = b.values();
          for (int i = 0; i < rows; ++i) {
            for (int j = 0; j < columns; ++j) {
              const double* row_a = all_a.data() + std::ptrdiff_t{i} * depth;
              const double* row_b = all_b.data() + std::ptrdiff_t{j} * depth;
              double sum = 0, magnitude = 0;
              for (int l = 0; l < depth; ++l) {
                const double product = row_a[l] * row_b[l];
                sum += product;
                magnitude += std::fabs(product);
              }
              const auto at = static_cast<std::size_t>(i * ld + j);
              // At most a rounding of 2^-24 for each product and for each sum.
              const double allowed = (depth + 1) * 0x1p-24 * magnitude;
              ASSERT_NEAR(once[at], sum, allowed)
                  << name(dtype) << " " << rows << "x" << columns << "x" << depth << " " << orders;
              ASSERT_NEAR(c[at], 2 * sum, 2 * allowed + 0x1p-23 * std::fabs(sum));
            }
          }
        }
      }
    }
  }
}

// A column's numbers do not depend on how many others a task has.
TEST_P(FewRows, ColumnsTogetherAreThoseOfEachAlone) {
  const FewRowsVerbs& verbs = ops().few_rows;
  const DType dtype = verbs.element_bytes == 2 ? DType::bf16 : DType::f32;
  constexpr int kColumns = 150, kDepth = 200, kLd = 160;
  for (const int rows : {1, 3, 8, 33}) {
    for (const bool lanes_first : {false, true}) {
      Operand a(rows, kDepth, dtype, false), b(kColumns, kDepth, dtype, lanes_first);
      for (int l = 0; l < kDepth; ++l) {
        for (int i = 0; i < rows; ++i) core::store_element(a.at(i, l), dtype, normal());
        for (int j = 0; j < kColumns; ++j) core::store_element(b.at(j, l), dtype, normal());
      }
      const int a_ld = (kDepth + verbs.depth_multiple - 1) / verbs.depth_multiple *
                       verbs.depth_multiple * verbs.element_bytes / 4;
      const int padded_rows =
          (rows + verbs.row_multiple - 1) / verbs.row_multiple * verbs.row_multiple;
      Floats packed(static_cast<std::size_t>(padded_rows * a_ld));
      Floats all(static_cast<std::size_t>(padded_rows * kLd));
      Floats some(static_cast<std::size_t>(padded_rows * 16));
      const TileState state(ops());
      verbs.pack_a(a.block(), b.block(), a_ld, packed.data());
      verbs.multiply(packed.data(), a_ld, rows, b.block(), false, all.data(), kLd);
      for (int j = 0; j < kColumns; j += 7) {
        OperandBlock part = b.block();
        part.at = b.at(j, 0);
        part.lanes = std::min(7, kColumns - j);
        verbs.multiply(packed.data(), a_ld, rows, part, false, some.data(), 16);
        for (int i = 0; i < rows; ++i) {
          for (int k = 0; k < part.lanes; ++k) {
            ASSERT_EQ(some[static_cast<std::size_t>(i * 16 + k)],
                      all[static_cast<std::size_t>(i * kLd + j + k)]);
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace attn::cpu::testing
