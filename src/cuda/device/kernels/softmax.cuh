// Softmax of the rows of a matrix (Milakov and Gimelshein 2018), a block of threads a row.
//   three passes  x for its maximum; x for the sum of e^(x - m); x for y
//   online        x for maximum and sum together (algorithm 3); x for y
//   with top-k    as before, but the largest elements instead of y; online, x is read once for all
//                 three (algorithm 4)
//
// Each thread goes over every 256th element (or four of them), then the block merges what its
// threads have. Reads of C: kThreePass, kTop (largest elements that are asked for; 0: y is), kWide
// (elements of a load and a store: 4 where addresses and strides allow it, or 1).
// Grid: any number of blocks of kSoftmaxThreads, kSoftmaxBytes of shared memory.
#pragma once

#include "device.cuh"
#include "expr/exact.cuh"
#include "kernels/softmax_params.cuh"
#include "params.cuh"
#include "ptx/math.cuh"

namespace attn::device {

// An element and its column; -inf at -1, which is the largest unsigned number: none.
struct alignas(8) SoftmaxElement {
  float value;
  int column;
};

template <class C>
struct Softmax {
  static constexpr int kWarps = kSoftmaxThreads / 32;
  static_assert(sizeof(RowSums) == 8 && sizeof(SoftmaxElement) == 8, "two words each");

  struct alignas(4 * C::kWide) Packet {
    float x[C::kWide];
  };
  struct Words {
    unsigned word[2];
  };

  const SoftmaxParams& p;
  Words* shared;  // one for each warp

  // Calls f(x, j) for the elements of this thread, j growing.
  template <class F>
  ATTN_DEVICE void for_each(const float* x, F f) const {
    const int thread = static_cast<int>(threadIdx.x), whole = p.columns_x / C::kWide * C::kWide;
#pragma unroll 4
    for (long long j = C::kWide * thread; j < whole; j += C::kWide * kSoftmaxThreads) {
      const Packet packet = *reinterpret_cast<const Packet*>(x + j);
#pragma unroll
      for (int i = 0; i < C::kWide; ++i) f(packet.x[i], static_cast<int>(j) + i);
    }
    if (whole + thread < p.columns_x) f(x[whole + thread], whole + thread);
  }

  // Combines what all threads have by combine(a, b), which is associative and commutative; each
  // thread gets the result.
  template <class T, class Combine>
  ATTN_DEVICE T of_block(T x, Combine combine) const {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
      Words words = __builtin_bit_cast(Words, x);
      for (unsigned& word : words.word) word = __shfl_xor_sync(~0u, word, step);
      x = combine(x, __builtin_bit_cast(T, words));
    }
    __syncthreads();  // nobody reads the one before
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = __builtin_bit_cast(Words, x);
    __syncthreads();
    x = __builtin_bit_cast(T, shared[0]);
#pragma unroll
    for (int warp = 1; warp < kWarps; ++warp) {
      x = combine(x, __builtin_bit_cast(T, shared[warp]));
    }
    return x;
  }

  static ATTN_DEVICE RowSums apart(RowSums a, RowSums b) { return {fmaxf(a.m, b.m), a.l + b.l}; }
  // Section 3.1, of all threads at once: l is rescaled to the block's maximum once a thread, which
  // merges in pairs would do for each pair. Where m is -inf, l is 0 or NaN, and stays that.
  ATTN_DEVICE RowSums merge(RowSums of) const {
    const float m = of_block(RowSums{of.m, 0}, apart).m, from = m == minus_infinity() ? 0.f : m;
    return of_block(RowSums{m, of.l * exact::attn_exp(of.m - from)}, apart);
  }
  // Algorithm 3, lines 4 and 5. The maximum of a long row grows some ten times only.
  static ATTN_DEVICE void add(RowSums& of, float x) {
    if (x == minus_infinity()) return;  // adds nothing; -inf - -inf would be NaN
    if (x > of.m) {
      of.l *= exact::attn_exp(of.m - x);
      of.m = x;
    }
    of.l += exact::attn_exp(x - of.m);
  }
  // Adds several elements alike: l is rescaled once for all, and no thread of a warp waits while
  // the maximum of another one grows.
  template <int kCount>
  static ATTN_DEVICE void add(RowSums& of, const float (&x)[kCount]) {
    float m = of.m;
#pragma unroll
    for (const float element : x) m = fmaxf(m, element);
    const float from = m == minus_infinity() ? 0.f : m;
    of.l *= exact::attn_exp(of.m - from);
    of.m = m;
#pragma unroll
    for (const float element : x) of.l += exact::attn_exp(element - from);
  }
  // The sums of the elements of this thread, four loads at a time, then of what is left.
  ATTN_DEVICE RowSums online(const float* x) const {
    constexpr int kPackets = 4, kStep = C::kWide * kSoftmaxThreads;
    const int thread = static_cast<int>(threadIdx.x), whole = p.columns_x / C::kWide * C::kWide;
    RowSums of{minus_infinity(), 0};
    long long j = C::kWide * thread;
    for (; j + (kPackets - 1) * kStep < whole; j += kPackets * kStep) {
      float several[kPackets * C::kWide];
#pragma unroll
      for (int k = 0; k < kPackets; ++k) {
        const Packet packet = *reinterpret_cast<const Packet*>(x + j + k * kStep);
#pragma unroll
        for (int i = 0; i < C::kWide; ++i) several[k * C::kWide + i] = packet.x[i];
      }
      add(of, several);
    }
    for (; j < whole; j += kStep) add(of, reinterpret_cast<const Packet*>(x + j)->x);
    if (whole + thread < p.columns_x) add(of, x[whole + thread]);
    return of;
  }

  // Whether a comes before b: the largest first, of equal ones the first column.
  static ATTN_DEVICE bool before(const SoftmaxElement& a, const SoftmaxElement& b) {
    if (a.value != b.value) return a.value > b.value;
    return static_cast<unsigned>(a.column) < static_cast<unsigned>(b.column);
  }
  struct Top {
    SoftmaxElement element[C::kTop == 0 ? 1 : C::kTop];

    ATTN_DEVICE Top() {
#pragma unroll
      for (SoftmaxElement& e : element) e = {minus_infinity(), -1};
    }
    // Columns come in growing order, so that an equal one stays behind.
    ATTN_DEVICE void add(float x, int column) {
      if (!(x > element[C::kTop - 1].value)) return;
#pragma unroll
      for (int i = C::kTop - 1; i >= 0; --i) {
        const bool here = i == 0 || !(x > element[i - 1].value);
        element[i] = here ? SoftmaxElement{x, column} : element[i - 1];
        if (here) return;
      }
    }
    ATTN_DEVICE void pop() {
#pragma unroll
      for (int i = 0; i + 1 < C::kTop; ++i) element[i] = element[i + 1];
      element[C::kTop - 1] = {minus_infinity(), -1};
    }
  };

  ATTN_DEVICE RowSums sums(const float* x, Top& top) const {
    RowSums of{minus_infinity(), 0};
    if constexpr (C::kThreePass) {
      for_each(x, [&](float element, int) { of.m = fmaxf(of.m, element); });
      of = of_block(of, apart);
      const float from = of.m == minus_infinity() ? 0.f : of.m;
      for_each(x, [&](float element, int) { of.l += exact::attn_exp(element - from); });
      of = of_block(of, apart);
      if constexpr (C::kTop > 0) {
        for_each(x, [&](float element, int j) { top.add(element, j); });
      }
    } else {
      if constexpr (C::kTop > 0 || C::kWide == 1) {
        for_each(x, [&](float element, int j) {
          add(of, element);
          if constexpr (C::kTop > 0) top.add(element, j);
        });
      } else {
        of = online(x);
      }
      of = merge(of);
    }
    if (of.m == minus_infinity()) of.m = 0;
    return of;
  }

  // The largest of the threads' largest, k times; who had it goes on to its next.
  ATTN_DEVICE void store_top(long long row, Top& top, RowSums of) const {
    float* values = p.values + row * p.values_row;
    int* columns = p.columns + row * p.columns_row;
    for (int i = 0; i < C::kTop; ++i) {
      const SoftmaxElement first = of_block(
          top.element[0],
          [](const SoftmaxElement& a, const SoftmaxElement& b) { return before(b, a) ? b : a; });
      if (first.column >= 0 && first.column == top.element[0].column) top.pop();
      if (threadIdx.x != 0) continue;
      values[i * p.values_column] = of.l == 0 ? 0.f : exact::attn_exp(first.value - of.m) / of.l;
      columns[i * p.columns_column] = first.column;
    }
  }
  ATTN_DEVICE void store_y(const float* x, float* y, RowSums of) const {
    const float factor = of.l == 0 ? 0.f : 1.f / of.l;
    const int thread = static_cast<int>(threadIdx.x), whole = p.columns_x / C::kWide * C::kWide;
    const auto softmax = [&](float element) {
      return of.l == 0 ? 0.f : exact::attn_exp(element - of.m) * factor;
    };
#pragma unroll 4
    for (long long j = C::kWide * thread; j < whole; j += C::kWide * kSoftmaxThreads) {
      Packet packet = *reinterpret_cast<const Packet*>(x + j);
#pragma unroll
      for (float& element : packet.x) element = softmax(element);
      *reinterpret_cast<Packet*>(y + j) = packet;
    }
    if (whole + thread < p.columns_x) y[whole + thread] = softmax(x[whole + thread]);
  }

  ATTN_DEVICE void run(long long row) const {
    const float* x = p.x + row * p.x_row;
    Top top;
    const RowSums of = sums(x, top);
    if constexpr (C::kTop > 0) {
      store_top(row, top, of);
    } else {
      store_y(x, p.y + row * p.y_row, of);
    }
    if (threadIdx.x == 0 && p.lse != nullptr) {
      p.lse[row * p.lse_row] = of.m + exact::attn_log(of.l);
    }
  }
};

inline constexpr int kSoftmaxBytes = kSoftmaxThreads / 32 * 8;

template <class C>
ATTN_DEVICE void softmax(const SoftmaxParams& p) {
  extern __shared__ __align__(16) char memory[];
  const Softmax<C> kernel{p, reinterpret_cast<typename Softmax<C>::Words*>(memory)};
  for (long long row = blockIdx.x; row < p.rows; row += gridDim.x) kernel.run(row);
}

}  // namespace attn::device
