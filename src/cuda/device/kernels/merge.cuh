// Merges partial results over disjoint sets of keys (attn::merge): LSE = log sum_p exp(LSE_p),
// O = sum_p exp(LSE_p - LSE) O_p, in double. A warp has a row, and each lane the weight of a part.
// A thread reads an element of all parts before it writes that of the result, which may be a part.
//
// kWide: columns that are loaded and stored at once; 1 where addresses or strides do not allow 4.
// Grid: any number of blocks of kMergeThreads.
#pragma once

#include "device.cuh"
#include "kernels/merge_params.cuh"
#include "tile/scalar.cuh"

namespace attn::device {

template <class Element, int kWide>
struct alignas(kWide * sizeof(typename Scalar<Element>::Storage)) MergePacket {
  typename Scalar<Element>::Storage x[kWide];
};

template <int kWide>
struct Merge {
  const MergeParams& p;

  // sum += share O, of the columns at `at`.
  template <class Element>
  static ATTN_DEVICE void add(double (&sum)[kWide], double share, const MergePart& part,
                              long long at) {
    const auto o =
        *reinterpret_cast<const MergePacket<Element, kWide>*>(element<Element>(part.o, at));
#pragma unroll
    for (int k = 0; k < kWide; ++k) sum[k] += share * Scalar<Element>::from(o.x[k]);
  }
  static ATTN_DEVICE void add(double (&sum)[kWide], double share, const MergePart& part,
                              long long at) {
    switch (part.type) {
      case MergeType::f32:
        return add<Float32>(sum, share, part, at);
      case MergeType::bf16:
        return add<BFloat16>(sum, share, part, at);
      case MergeType::f16:
        return add<Float16>(sum, share, part, at);
    }
  }
  template <class Element>
  static ATTN_DEVICE void store(const double (&sum)[kWide], const MergePart& to, long long at) {
    MergePacket<Element, kWide> o;
#pragma unroll
    for (int k = 0; k < kWide; ++k) o.x[k] = Scalar<Element>::to(static_cast<float>(sum[k]));
    *reinterpret_cast<MergePacket<Element, kWide>*>(element<Element>(to.o, at)) = o;
  }
  static ATTN_DEVICE void store(const double (&sum)[kWide], const MergePart& to, long long at) {
    switch (to.type) {
      case MergeType::f32:
        return store<Float32>(sum, to, at);
      case MergeType::bf16:
        return store<BFloat16>(sum, to, at);
      case MergeType::f16:
        return store<Float16>(sum, to, at);
    }
  }

  // The weight of this lane's part, exp(LSE_p - merged); `merged` becomes LSE.
  static ATTN_DEVICE double weigh(float lse, double& merged) {
    const bool attends = !(lse == minus_infinity());
    const unsigned attending = __ballot_sync(~0u, attends);
    if (__popc(attending) == 1) {
      // A part alone is the result, also where its LSE is infinite or NaN, as a sink without keys.
      merged = __shfl_sync(~0u, lse, __ffs(static_cast<int>(attending)) - 1);
      return attends ? 1 : 0;
    }
    float top = lse;
#pragma unroll
    for (int step = 16; step > 0; step /= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, step));
    const double from = top == minus_infinity() ? 0 : top;
    const double weight = attends ? exp(lse - from) : 0;
    double sum = weight;
#pragma unroll
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
    merged = from + log(sum);
    // Divided by the sum: exp(LSE_p - LSE) would lose log(sum) where LSE is large.
    return attends ? weight / sum : 0;
  }

  ATTN_DEVICE void run(long long row) const {
    const int lane = static_cast<int>(threadIdx.x % 32);
    const long long pair = row / p.heads, head = row % p.heads;
    const long long batch = pair / p.seqlen_q, query = pair % p.seqlen_q;
    const auto place = [&](const long long* strides) {
      return batch * strides[0] + query * strides[1] + head * strides[2];
    };
    float lse = minus_infinity();
    if (lane < p.parts) lse = p.part[lane].lse[place(p.part[lane].lse_strides)];
    double merged;
    const double weight = weigh(lse, merged);
    if (lane == 0 && p.result.lse != nullptr) {
      p.result.lse[place(p.result.lse_strides)] = static_cast<float>(merged);
    }
    for (long long first = 0; first < p.columns; first += 32 * kWide) {
      const long long column = first + kWide * lane;
      double sum[kWide] = {};
      for (int i = 0; i < p.parts; ++i) {
        const double share = __shfl_sync(~0u, weight, i);
        if (share == 0 || column >= p.columns) continue;  // a part without keys is not read
        const MergePart& part = p.part[i];
        add(sum, share, part, place(part.o_strides) + column * part.o_strides[3]);
      }
      if (column >= p.columns) continue;
      store(sum, p.result, place(p.result.o_strides) + column * p.result.o_strides[3]);
    }
  }
};

template <int kWide>
ATTN_DEVICE void merge(const MergeParams& p) {
  constexpr int kWarps = kMergeThreads / 32;
  for (long long row = blockIdx.x * static_cast<long long>(kWarps) + threadIdx.x / 32; row < p.rows;
       row += static_cast<long long>(gridDim.x) * kWarps) {
    Merge<kWide>{p}.run(row);
  }
}

}  // namespace attn::device
