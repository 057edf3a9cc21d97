// Packing and unpacking: values, zeros past the end, missing rows, and no access outside the rows.
#include <cmath>

#include "core/cache_type.hpp"
#include "tile_ops.hpp"

namespace attn::cpu::testing {
namespace {

class Pack : public TileTest {};
INSTANTIATE_TEST_SUITE_P(Tables, Pack, ::testing::ValuesIn(f32_tables()), table_name);

TEST_P(Pack, RowsOfEveryTypeAreWidenedAndPadded) {
  if (bf16()) GTEST_SKIP() << "bf16 operands are packed as they are; tile_ops_test covers them";
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    for (const int dim : {1, 7, 16, 40, 59, 128}) {
      const auto n = static_cast<std::size_t>(dim);
      const auto ld = static_cast<std::size_t>(leading_dim(dim));
      // Exactly one row, so that AddressSanitizer sees a read past it.
      std::vector<std::byte> bytes(n * size_of(dtype));
      std::vector<float> expected;
      for (std::size_t i = 0; i < n; ++i) {
        const float x = normal();
        if (dtype == DType::f32) {
          reinterpret_cast<float*>(bytes.data())[i] = x;
          expected.push_back(x);
        } else if (dtype == DType::bf16) {
          reinterpret_cast<bfloat16*>(bytes.data())[i] = bfloat16(x);
          expected.push_back(static_cast<float>(bfloat16(x)));
        } else {
          reinterpret_cast<float16*>(bytes.data())[i] = float16(x);
          expected.push_back(static_cast<float>(float16(x)));
        }
      }
      const std::byte* row[2] = {bytes.data(), nullptr};
      Floats k(2 * ld);
      ops().pack_k(row, 2, dim, core::cache_type(dtype), nullptr, k.data());
      Floats q_t(n * kMaxRows);
      ops().pack_q(row, 1, dim, core::cache_type(dtype), nullptr, 2.0f, q_t.data());
      for (std::size_t d = 0; d < ld; ++d) {
        ASSERT_EQ(k[d], d < n ? expected[d] : 0.0f);
        ASSERT_EQ(k[ld + d], 0.0f);
        if (d >= n) continue;
        ASSERT_EQ(q_t[d * static_cast<std::size_t>(ops().rows)], 2 * expected[d]);
        ASSERT_EQ(q_t[d * static_cast<std::size_t>(ops().rows) + 1], 0.0f);
      }
    }
  }
}

TEST_P(Pack, UnpackTransposesScalesAndRounds) {
  const auto rows = static_cast<std::size_t>(ops().rows);
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    for (const int dim : {1, 7, 16, 40, 59, 128}) {
      const auto n = static_cast<std::size_t>(dim);
      Floats o_t(n * kMaxRows), factor(kMaxRows);
      fill(o_t);
      fill(factor);
      std::vector<std::byte> bytes(rows * n * size_of(dtype), std::byte{0x5a});
      std::vector<std::byte*> row;
      for (std::size_t r = 0; r < rows; ++r) row.push_back(bytes.data() + r * n * size_of(dtype));
      row[1] = nullptr;
      const int count = ops().rows - 1;
      ops().unpack_o(o_t.data(), dim, factor.data(), dtype, row.data(), count);
      for (std::size_t r = 0; r < rows; ++r) {
        for (std::size_t d = 0; d < n; ++d) {
          const std::byte* at = bytes.data() + (r * n + d) * size_of(dtype);
          if (r == 1 || static_cast<int>(r) >= count) {
            ASSERT_EQ(*at, std::byte{0x5a}) << "row " << r << " was written";
            continue;
          }
          const float expected = o_t[d * rows + r] * factor[r];
          if (dtype == DType::f32) {
            ASSERT_EQ(*reinterpret_cast<const float*>(at), expected);
          } else if (dtype == DType::bf16) {
            ASSERT_EQ(reinterpret_cast<const bfloat16*>(at)->bits, bfloat16(expected).bits);
          } else {
            ASSERT_EQ(reinterpret_cast<const float16*>(at)->bits, float16(expected).bits)
                << expected;
          }
        }
      }
    }
  }
}

// Every 16-bit pattern through load and store: widening is exact and rounding returns where it came
// from.
TEST_P(Pack, SixteenBitTypesRoundTrip) {
  for (const DType dtype : {DType::bf16, DType::f16}) {
    constexpr std::size_t kDim = 64;
    for (std::uint32_t first = 0; first < 65536; first += kDim) {
      std::uint16_t bits[kDim];
      std::uint16_t back[kDim];
      for (std::uint32_t i = 0; i < kDim; ++i) bits[i] = static_cast<std::uint16_t>(first + i);
      const std::byte* row[1] = {reinterpret_cast<const std::byte*>(bits)};
      Floats wide(kDim);
      ops().pack_k(row, 1, kDim, core::cache_type(dtype), nullptr, wide.data());
      ops().store_row(wide.data(), kDim, 1.0f, dtype, reinterpret_cast<std::byte*>(back));
      for (std::size_t i = 0; i < kDim; ++i) {
        float expected;
        if (dtype == DType::bf16) {
          bfloat16 x;
          x.bits = bits[i];
          expected = static_cast<float>(x);
        } else {
          float16 x;
          x.bits = bits[i];
          expected = static_cast<float>(x);
        }
        if (std::isnan(expected)) {
          ASSERT_TRUE(std::isnan(wide[i])) << std::hex << bits[i];
        } else {
          ASSERT_EQ(wide[i], expected) << std::hex << bits[i];
          ASSERT_EQ(back[i], bits[i]);
        }
      }
    }
  }
}

}  // namespace
}  // namespace attn::cpu::testing
