// The ceiling: independent multiply-adds in registers.
#pragma once

#include <ctime>

#include "cpu/kernels/vec.hpp"

// Hides where a vector's value comes from, so that equal chains of work stay apart.
#if ATTN_VECTOR_BYTES == 64
#define ATTN_OPAQUE(vector) asm volatile("" : "+v"(vector))
#elif defined(__x86_64__)
#define ATTN_OPAQUE(vector) asm volatile("" : "+x"(vector))
#elif defined(__aarch64__)
#define ATTN_OPAQUE(vector) asm volatile("" : "+w"(vector))
#else
#define ATTN_OPAQUE(vector) asm volatile("" : "+m"(vector))
#endif

namespace attn::cpu::ATTN_ISA {

static double seconds_now() {
  timespec t{};
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

// Runs `step(acc)` on 16 (12 where registers are few) independent accumulators; returns flops done.
// The best rate of slices of the time is scaled to the whole, so that a slice lost to another
// process does not lower the ceiling.
template <class Step>
ATTN_INLINE double run_peak(double seconds, double flops_per_step, const Step& step) {
  constexpr int kChains = kManyRegisters ? 16 : 12;
  constexpr int kSteps = 20000;
  F acc[kChains] = {};
  double best = 1e30;
  const double end = seconds_now() + seconds;
  do {
    const double start = seconds_now();
    for (int i = 0; i < kSteps; ++i) {
#pragma GCC unroll 16
      for (F& chain : acc) {
        chain = step(chain);
        ATTN_OPAQUE(chain);
      }
    }
    const double elapsed = seconds_now() - start;
    best = elapsed < best ? elapsed : best;
  } while (seconds_now() < end);
  return flops_per_step * kChains * kSteps / best * seconds;
}

static inline double peak_flops_f32(double seconds) {
  F a = set1(0.5f);
  F b = set1(0.25f);
  ATTN_OPAQUE(a);
  ATTN_OPAQUE(b);
  return run_peak(seconds, 2.0 * kLanes, [&](F acc) { return fma(acc, a, b); });
}

}  // namespace attn::cpu::ATTN_ISA
