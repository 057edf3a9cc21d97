// What a CUDA compiler brings along, for a host compiler.
#pragma once

#include <cstddef>
// Every kernel loads this header: without <algorithm>, and the special functions of libstdc++,
// which include it, it is half as large.
#undef _GLIBCXX_USE_STD_SPEC_FUNCS
#include <cmath>
#include <cstring>
#include <type_traits>
#include <utility>

#include "machine.hpp"

#define __device__
#define __global__
#define __forceinline__ inline
#define __shared__
#define __grid_constant__
#define __launch_bounds__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))
#define threadIdx (attn::emulator::thread_index())
#define blockIdx (attn::emulator::block_index())
#define blockDim (attn::emulator::block_size())
#define gridDim (attn::emulator::grid_size())

template <class T>
constexpr T max(T a, T b) {
  return a < b ? b : a;
}
template <class T>
constexpr T min(T a, T b) {
  return b < a ? b : a;
}

struct float2 {
  float x, y;
};
inline float2 make_float2(float x, float y) { return {x, y}; }

template <class To, class From>
To attn_bits(From x) {
  To y;
  static_assert(sizeof(x) == sizeof(y));
  std::memcpy(&y, &x, sizeof(y));
  return y;
}
inline int __float_as_int(float x) { return attn_bits<int>(x); }
inline unsigned __float_as_uint(float x) { return attn_bits<unsigned>(x); }
inline float __int_as_float(int x) { return attn_bits<float>(x); }
inline float __uint_as_float(unsigned x) { return attn_bits<float>(x); }
inline int __vimin3_s32(int a, int b, int c) { return min(a, min(b, c)); }
inline int __clz(int x) { return x == 0 ? 32 : __builtin_clz(static_cast<unsigned>(x)); }
inline int __clzll(long long x) {
  return x == 0 ? 64 : __builtin_clzll(static_cast<unsigned long long>(x));
}
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fmul_ru(float a, float b) {
  const double exact = static_cast<double>(a) * b;
  const auto nearest = static_cast<float>(exact);
  return nearest < exact ? std::nextafter(nearest, INFINITY) : nearest;
}
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fsqrt_rn(float a) { return std::sqrt(a); }
template <class T>
T __ldg(const T* p) {
  return *p;
}
template <class T>
T atomicAdd(T* p, T x) {
  const T before = *p;
  *p += x;
  return before;
}
inline int atomicMax(int* p, int x) {
  const int before = *p;
  *p = max(before, x);
  return before;
}
inline unsigned atomicMin(unsigned* p, unsigned x) {
  const unsigned before = *p;
  *p = min(before, x);
  return before;
}
inline unsigned long long atomicCAS(unsigned long long* p, unsigned long long expected,
                                    unsigned long long x) {
  const unsigned long long before = *p;
  if (before == expected) *p = x;
  return before;
}
inline unsigned atomicOr(unsigned* p, unsigned x) {
  const unsigned before = *p;
  *p |= x;
  return before;
}
inline void __threadfence() {}
inline std::size_t __cvta_generic_to_shared(const void* p) {
  return static_cast<std::size_t>(static_cast<const char*>(p) - attn::emulator::shared_window());
}

template <class T>
T attn_lane(T mine, unsigned lane) {
  const char* all = attn::emulator::exchange(&mine, sizeof(mine));
  T value;
  std::memcpy(&value, all + lane % 32 * attn::emulator::kExchange, sizeof(value));
  return value;
}
template <class T>
T __shfl_sync(unsigned, T x, int lane) {
  return attn_lane(x, static_cast<unsigned>(lane));
}
template <class T>
T __shfl_xor_sync(unsigned, T x, int mask) {
  return attn_lane(x, threadIdx.x % 32 ^ static_cast<unsigned>(mask));
}
template <class T>
T __shfl_up_sync(unsigned, T x, unsigned distance) {
  const unsigned lane = threadIdx.x % 32;
  return attn_lane(x, lane >= distance ? lane - distance : lane);
}
inline int __reduce_max_sync(unsigned, int x) {
  for (int i = 1; i < 32; i *= 2) x = max(x, __shfl_xor_sync(~0u, x, i));
  return x;
}
inline int __reduce_add_sync(unsigned, int x) {
  for (int i = 1; i < 32; i *= 2) x += __shfl_xor_sync(~0u, x, i);
  return x;
}
inline unsigned __ballot_sync(unsigned, bool vote) {
  const char* all = attn::emulator::exchange(&vote, 1);
  unsigned bits = 0;
  for (unsigned lane = 0; lane < 32; ++lane) {
    bits |= (all[lane * attn::emulator::kExchange] != 0 ? 1u : 0u) << lane;
  }
  return bits;
}
inline bool __any_sync(unsigned mask, bool vote) { return __ballot_sync(mask, vote) != 0; }
inline bool __all_sync(unsigned mask, bool vote) { return !__any_sync(mask, !vote); }
inline void __syncwarp() { __ballot_sync(~0u, false); }
inline void __syncthreads() { attn::emulator::barrier(0, blockDim.x, true); }
inline int __syncthreads_or(int vote) {
  static int any = 0;  // blocks of threads that call it run one after the other
  __syncthreads();
  if (threadIdx.x == 0) any = 0;
  __syncthreads();
  any |= vote;
  __syncthreads();
  return any;
}
