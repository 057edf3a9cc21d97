#pragma once

namespace attn::device {

inline void add_to_memory(float* at, float x, float y, float z, float w) {
  at[0] += x;
  at[1] += y;
  at[2] += z;
  at[3] += w;
}

}  // namespace attn::device
