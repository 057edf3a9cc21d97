// The dropout mask as device code computes it, compiled for the host, against the definition.
#define __device__
#define __forceinline__ inline
#include "softmax/dropout.cuh"
#undef __device__
#undef __forceinline__

#include <gtest/gtest.h>

#include <array>
#include <cstdint>

#include "core/philox.hpp"

namespace attn {
namespace {

constexpr int kKeys = 64;

struct Case {
  std::uint64_t seed, offset;
  double probability;
  std::uint32_t batch_head, query;
  int first_key;
};

constexpr std::array kCases{
    Case{0, 0, 0.5, 0, 0, 0},
    Case{99, 0, 0.3, 7, 69, 320},
    Case{0x123456789abcdefULL, 0xfedcba9876543210ULL, 0.9, 4095, 1u << 20, 96},
    Case{7, 4294967301ULL, 1.0 / 65536, 0xffffffffu, 0x7fffffffu, 0x7fffffc0},
    Case{1, 2, 0.99999, 3, 5, 1 << 30},
};

device::DropoutRow row_of(const Case& c) {
  return {c.seed, c.offset, core::dropout_threshold(c.probability), c.batch_head, c.query};
}

bool keep(const Case& c, int key) {
  return core::dropout_keep(c.seed, c.offset, core::dropout_threshold(c.probability), c.batch_head,
                            c.query, static_cast<std::uint32_t>(c.first_key + key));
}

// Register 4 j + 2 i + column of lane `pair` of a quad is key 8 j + 2 pair + column.
TEST(DropoutMask, AccumulatorOfFloats) {
  for (const Case& c : kCases) {
    for (int i = 0; i < 2; ++i) {
      for (int pair = 0; pair < 4; ++pair) {
        float s[kKeys / 2];
        for (float& x : s) x = 1;
        row_of(c).apply(s, i, c.first_key, pair);
        for (int r = 0; r < kKeys / 2; ++r) {
          const int key = r / 4 * 8 + 2 * pair + r % 2;
          const float expected = r / 2 % 2 != i || keep(c, key) ? 1.f : 0.f;
          EXPECT_EQ(s[r], expected) << "query " << c.query << " key " << c.first_key + key;
        }
      }
    }
  }
}

// Register 2 j + i holds two neighbouring keys, the even one in the low half.
TEST(DropoutMask, OperandOfHalves) {
  for (const Case& c : kCases) {
    for (int i = 0; i < 2; ++i) {
      for (int pair = 0; pair < 4; ++pair) {
        unsigned p[kKeys / 4];
        for (unsigned& x : p) x = 0x3c013c02u;
        row_of(c).apply(p, i, c.first_key, pair);
        for (int r = 0; r < kKeys / 4; ++r) {
          const int key = r / 2 * 8 + 2 * pair;
          unsigned expected = 0x3c013c02u;
          if (r % 2 == i && !keep(c, key)) expected &= 0xffff0000u;
          if (r % 2 == i && !keep(c, key + 1)) expected &= 0xffffu;
          EXPECT_EQ(p[r], expected) << "query " << c.query << " key " << c.first_key + key;
        }
      }
    }
  }
}

}  // namespace
}  // namespace attn
