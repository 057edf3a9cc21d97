// The conversion of positions for short sequences, of device code compiled for the host.
#include <gtest/gtest.h>

#define __device__
#define __forceinline__ inline
#define ATTN_SHORT_SEQUENCES 1
// Other names: the program has the general forms under these.
#define attn_position_add attn_position_add_if_short
#define attn_position_sub attn_position_sub_if_short
#define attn_position_to_float attn_position_to_float_if_short
#include "expr/exact.cuh"

TEST(ShortSequences, PositionsConvertExactly) {
  constexpr int kLimit = 1 << 22;
  for (int i = -kLimit; i < kLimit; ++i) {
    ASSERT_EQ(attn::device::attn_position_to_float_if_short(i), static_cast<float>(i)) << i;
  }
}

TEST(ShortSequences, StepsAddExactly) {
  constexpr int kLimit = 1 << 22;
  for (int step : {-255, -1, 0, 1, 127, 255}) {
    for (int i = -kLimit; i < kLimit; i += 61) {
      ASSERT_EQ(attn::device::attn_position_to_float_if_short(i, step),
                static_cast<float>(i + step))
          << i << " + " << step;
    }
  }
}
