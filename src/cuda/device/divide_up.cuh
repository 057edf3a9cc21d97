// The one piece of arithmetic that every folder of the device code needs.
#pragma once

#include "device.cuh"

namespace attn::device {

// The number of pieces of b that hold a: 5 by 2 are 3. a >= 0, b > 0, and a + b - 1 is a T.
template <class T>
constexpr ATTN_DEVICE T divide_up(T a, T b) {
  return (a + b - 1) / b;
}
// The same by a constant, which the compiler then subtracts 1 from itself.
template <int kB, class T>
constexpr ATTN_DEVICE T divide_up(T a) {
  return (a + kB - 1) / kB;
}

}  // namespace attn::device
