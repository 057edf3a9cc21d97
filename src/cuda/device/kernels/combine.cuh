// Merges the partial results of splits: LSE = log sum exp(LSE_s), O = sum exp(LSE_s - LSE) O_s. One
// warp a row.
//
// Reads of C:
//   Element      of O: Float32, BFloat16 or Float16
//   kHeadDimV    1 to 512
//   kVectorO     the address and strides of O are multiples of 4 elements
//   kPackedQ, kUsedQ
// Grid: a quarter of the number of rows, batch * heads_q * seqlen_q; 128 threads. May be
// launched as a dependent of the forward kernel.
#pragma once

#include "params.cuh"
#include "ptx/dependent.cuh"
#include "softmax/online.cuh"
#include "tile/scalar.cuh"

namespace attn::device {

inline constexpr int kCombineThreads = 128;

template <class C>
struct Combine {
  using Element = typename C::Element;
  // Columns that a lane has side by side, and sets of columns that the warp goes through.
  static constexpr int kWide = C::kHeadDimV % 4 == 0 ? 4 : 1;
  static constexpr int kSets = (C::kHeadDimV + 32 * kWide - 1) / (32 * kWide);

  struct alignas(4 * kWide) Partial {
    float x[kWide];
  };
  struct alignas(sizeof(typename Scalar<Element>::Storage) * (C::kVectorO ? kWide : 1)) Packet {
    typename Scalar<Element>::Storage x[kWide];
  };

  const ForwardParams& p;
  long long row;   // of partial results of one split
  long long rows;  // of one split

  static __device__ __forceinline__ int lane() { return static_cast<int>(threadIdx.x % 32); }

  static __device__ __forceinline__ float warp_max(float x) {
#pragma unroll
    for (int i = 1; i < 32; i *= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, i));
    return x;
  }
  static __device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
    for (int i = 1; i < 32; i *= 2) x += __shfl_xor_sync(~0u, x, i);
    return x;
  }
  __device__ __forceinline__ float partial_lse(int split) const {
    return split < p.num_splits ? p.partial_lse[split * rows + row] : minus_infinity();
  }
  static __device__ __forceinline__ int column(int set) { return kWide * (32 * set + lane()); }
  static __device__ __forceinline__ bool inside(int set) {
    return C::kHeadDimV % (32 * kWide) == 0 || column(set) < C::kHeadDimV;
  }

  __device__ __forceinline__ void run() const {
    const long long pair = row / p.seqlen_q;
    const int query = static_cast<int>(row - pair * p.seqlen_q);
    const int batch = static_cast<int>(pair / p.heads_q);
    const int head = static_cast<int>(pair - static_cast<long long>(batch) * p.heads_q);
    long long at = query;
    int length = p.seqlen_q;
    if constexpr (C::kPackedQ) {
      const int start = p.cu_seqlens_q[batch];
      length = p.cu_seqlens_q[batch + 1] - start;
      at += start;
      if (query >= length) return;
    }
    if constexpr (C::kUsedQ) length = p.seqused_q[batch];
    const bool used = query < length;

    float top = minus_infinity();
    if (used) {
      for (int split = lane(); split < p.num_splits; split += 32) {
        top = fmaxf(top, partial_lse(split));
      }
    }
    top = warp_max(top);
    const float from = top == minus_infinity() ? 0 : top;
    float sum = 0;
    float o[kSets][kWide];
#pragma unroll
    for (int set = 0; set < kSets; ++set) {
#pragma unroll
      for (int i = 0; i < kWide; ++i) o[set][i] = 0;
    }
    const int splits = used ? p.num_splits : 0;
    for (int first = 0; first < splits; first += 32) {
      const float share = expf(partial_lse(first + lane()) - from);
      sum += share;
      add(o, share, first, min(32, splits - first));
    }
    sum = warp_sum(sum);
    const float inverse = sum == 0 ? 0 : 1 / sum;
    store(o, inverse,
          element<Element>(p.o, (C::kPackedQ ? 0 : batch * p.o_strides.batch) +
                                    at * p.o_strides.row + head * p.o_strides.head));
    if (p.lse != nullptr && lane() == 0) {
      p.lse[(C::kPackedQ ? 0 : batch * p.lse_strides.batch) + at * p.lse_strides.row +
            head * p.lse_strides.head] = sum == 0 ? minus_infinity() : top + logf(sum);
    }
  }

  // O += share O_s of `count` splits from `first` on, whose shares the lanes hold.
  __device__ __forceinline__ void add(float (&o)[kSets][kWide], float share, int first,
                                      int count) const {
#pragma unroll 4
    for (int s = 0; s < count; ++s) {
      const float weight = __shfl_sync(~0u, share, s);
      const float* from = p.partial_o + ((first + s) * rows + row) * C::kHeadDimV;
#pragma unroll
      for (int set = 0; set < kSets; ++set) {
        if (!inside(set)) continue;
        const Partial x = *reinterpret_cast<const Partial*>(from + column(set));
#pragma unroll
        for (int i = 0; i < kWide; ++i) o[set][i] = fmaf(weight, x.x[i], o[set][i]);
      }
    }
  }

  static __device__ __forceinline__ void store(const float (&o)[kSets][kWide], float factor,
                                               typename Scalar<Element>::Storage* to) {
#pragma unroll
    for (int set = 0; set < kSets; ++set) {
      if (!inside(set)) continue;
      Packet packet;
#pragma unroll
      for (int i = 0; i < kWide; ++i) packet.x[i] = Scalar<Element>::to(o[set][i] * factor);
      *reinterpret_cast<Packet*>(to + column(set)) = packet;
    }
  }
};

template <class C>
__device__ __forceinline__ void combine(const ForwardParams& p) {
  wait_for_dependencies();
  const long long rows = static_cast<long long>(p.batch) * p.heads_q * p.seqlen_q;
  const long long row =
      static_cast<long long>(blockIdx.x) * (kCombineThreads / 32) + threadIdx.x / 32;
  if (row < rows) Combine<C>{p, row, rows}.run();
}

}  // namespace attn::device
