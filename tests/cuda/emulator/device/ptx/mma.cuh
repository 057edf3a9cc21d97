#pragma once

#include "ptx/math.cuh"

namespace attn::device {

// Word `word` of row `row` of matrix i of four, whose rows' addresses the lanes give.
inline char* matrix_word(const char* addresses, unsigned i, unsigned row, unsigned byte) {
  unsigned address;
  std::memcpy(&address, addresses + (8 * i + row) * emulator::kExchange, sizeof(address));
  return emulator::shared_memory() + address + byte;
}
inline void load_matrices(unsigned (&r)[4], unsigned address) {
  const char* all = emulator::exchange(&address, sizeof(address));
  const unsigned lane = threadIdx.x % 32;
  for (unsigned i = 0; i < 4; ++i)
    std::memcpy(&r[i], matrix_word(all, i, lane / 4, lane % 4 * 4), 4);
}
template <unsigned kCount>
void load_matrices_transposed(unsigned (&r)[kCount], unsigned address) {
  const char* all = emulator::exchange(&address, sizeof(address));
  const unsigned lane = threadIdx.x % 32;
  for (unsigned i = 0; i < kCount; ++i) {
    unsigned short low, high;
    std::memcpy(&low, matrix_word(all, i, lane % 4 * 2, lane / 4 * 2), 2);
    std::memcpy(&high, matrix_word(all, i, lane % 4 * 2 + 1, lane / 4 * 2), 2);
    r[i] = low | static_cast<unsigned>(high) << 16;
  }
}
template <unsigned kCount>
void store_matrices(unsigned address, const unsigned (&r)[kCount]) {
  const char* all = emulator::exchange(&address, sizeof(address));
  const unsigned lane = threadIdx.x % 32;
  for (unsigned i = 0; i < kCount; ++i)
    std::memcpy(matrix_word(all, i, lane / 4, lane % 4 * 4), &r[i], 4);
}

inline void multiply_warp(bool half, float* d, const unsigned* a, unsigned b0, unsigned b1) {
  const unsigned mine[6] = {a[0], a[1], a[2], a[3], b0, b1};
  const char* all = emulator::exchange(mine, sizeof(mine));
  const unsigned lane = threadIdx.x % 32;
  const auto value = [&](unsigned of_lane, unsigned word, unsigned half_of_word) {
    unsigned short bits;
    std::memcpy(&bits, all + of_lane * emulator::kExchange + 4 * word + 2 * half_of_word, 2);
    return emulator::widen(bits, half);
  };
  float of_a[2][16], of_b[2][16];
  for (unsigned i = 0; i < 2; ++i) {
    const unsigned column = lane % 4 * 2 + i;
    for (unsigned k = 0; k < 16; ++k) {
      of_a[i][k] = value(lane / 4 * 4 + k % 8 / 2, k / 8 * 2 + i, k % 2);
      of_b[i][k] = value(column * 4 + k % 8 / 2, 4 + k / 8, k % 2);
    }
  }
  for (unsigned r = 0; r < 4; ++r) {
    d[r] = emulator::add_products(d[r], of_a[r / 2], of_b[r % 2]);
  }
}
inline void multiply(BFloat16, float* d, const unsigned* a, unsigned b0, unsigned b1) {
  multiply_warp(false, d, a, b0, b1);
}
inline void multiply(Float16, float* d, const unsigned* a, unsigned b0, unsigned b1) {
  multiply_warp(true, d, a, b0, b1);
}

}  // namespace attn::device
