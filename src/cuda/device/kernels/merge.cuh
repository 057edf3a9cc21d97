// Merges partial results over disjoint sets of keys (attn::merge): LSE = log sum_p exp(LSE_p),
// O = sum_p exp(LSE_p - LSE) O_p, in double. A warp has a row for each kPartLanes lanes, which hold
// the weight of a part each; then all lanes go through the columns of those rows. A thread reads an
// element of all parts before it writes that of the result, which may be a part.
//
// kWide: columns that are loaded and stored at once; 1 where addresses or strides do not allow
// more. kPartLanes: a power of two, not less than the parts. kType: of the parts, or mixed.
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

// Columns of a part as they were loaded, of any type.
template <int kWide>
union MergeLoaded {
  MergePacket<Float32, kWide> f32;
  MergePacket<BFloat16, kWide> bf16;
  MergePacket<Float16, kWide> f16;
};

template <int kWide, int kPartLanes, MergeType kType>
struct Merge {
  static constexpr int kRows = 32 / kPartLanes;          // of a warp at once
  static constexpr int kAhead = kPartLanes < 4 ? 2 : 4;  // parts that are loaded at once
  static constexpr int kSteps = kPartLanes < 4 ? 2 : 1;  // of rows whose loads go together
  const MergeParams& p;
  const int lane;

  static ATTN_DEVICE MergeType type_of(const MergePart& part) {
    return kType == MergeType::mixed ? part.type : kType;
  }
  template <class Element>
  static ATTN_DEVICE void load(MergePacket<Element, kWide>& to, const MergePart& part,
                               long long at) {
    to = *reinterpret_cast<const MergePacket<Element, kWide>*>(element<Element>(part.o, at));
  }
  static ATTN_DEVICE void load(MergeLoaded<kWide>& to, const MergePart& part, long long at) {
    switch (type_of(part)) {
      case MergeType::f32:
      case MergeType::mixed:
        return load(to.f32, part, at);
      case MergeType::bf16:
        return load(to.bf16, part, at);
      case MergeType::f16:
        return load(to.f16, part, at);
    }
  }
  // sum += share O.
  template <class Element>
  static ATTN_DEVICE void add(double (&sum)[kWide], double share,
                              const MergePacket<Element, kWide>& o) {
#pragma unroll
    for (int k = 0; k < kWide; ++k) sum[k] += share * Scalar<Element>::from(o.x[k]);
  }
  static ATTN_DEVICE void add(double (&sum)[kWide], double share, const MergePart& part,
                              const MergeLoaded<kWide>& o) {
    switch (type_of(part)) {
      case MergeType::f32:
      case MergeType::mixed:
        return add(sum, share, o.f32);
      case MergeType::bf16:
        return add(sum, share, o.bf16);
      case MergeType::f16:
        return add(sum, share, o.f16);
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
      case MergeType::mixed:
        return store<Float32>(sum, to, at);
      case MergeType::bf16:
        return store<BFloat16>(sum, to, at);
      case MergeType::f16:
        return store<Float16>(sum, to, at);
    }
  }

  // The weight of this lane's part, exp(LSE_p - merged); `merged` becomes LSE of its row.
  ATTN_DEVICE double weigh(float lse, double& merged) const {
    const bool attends = !(lse == minus_infinity());
    const int first = lane / kPartLanes * kPartLanes;  // of this row's lanes
    const unsigned of_row = kPartLanes == 32 ? ~0u : (1u << kPartLanes % 32) - 1 << first;
    const unsigned attending = __ballot_sync(~0u, attends) & of_row;
    float top = lse;
#pragma unroll
    for (int step = kPartLanes / 2; step > 0; step /= 2) {
      top = fmaxf(top, __shfl_xor_sync(~0u, top, step));
    }
    const double from = top == minus_infinity() ? 0 : top;
    const double weight = attends ? exp(lse - from) : 0;
    double sum = weight;
#pragma unroll
    for (int step = kPartLanes / 2; step > 0; step /= 2) {
      sum += __shfl_xor_sync(~0u, sum, step);
    }
    // A part alone is the result, also where its LSE is infinite or NaN, as a sink without keys.
    const bool alone = __popc(attending) == 1;
    const float its_lse =
        __shfl_sync(~0u, lse, alone ? __ffs(static_cast<int>(attending)) - 1 : first);
    merged = alone ? its_lse : from + log(sum);
    // Divided by the sum: exp(LSE_p - LSE) would lose log(sum) where LSE is large.
    return !attends ? 0 : alone ? 1 : weight / sum;
  }

  // Rows first, first + 1, .. of all batch entries, queries and heads.
  ATTN_DEVICE void run(long long first) const {
    const long long row = first + lane / kPartLanes;
    const bool there = row < p.rows;
    const long long pair = row / p.heads, head = row % p.heads;
    const long long batch = pair / p.seqlen_q, query = pair % p.seqlen_q;
    const auto place = [&](const long long* strides) {
      return batch * strides[0] + query * strides[1] + head * strides[2];
    };
    const int mine = lane % kPartLanes;
    const bool has_part = there && mine < p.parts;
    const MergePart& part = p.part[has_part ? mine : 0];
    const float lse = has_part ? part.lse[place(part.lse_strides)] : minus_infinity();
    double merged;
    const double weight = weigh(lse, merged);
    if (there && mine == 0 && p.result.lse != nullptr) {
      p.result.lse[place(p.result.lse_strides)] = static_cast<float>(merged);
    }
    const long long from = has_part ? place(part.o_strides) : 0;
    const long long to = there ? place(p.result.o_strides) : 0;
    // Some lanes side by side have a row's columns.
    const int together = 32 >> p.column_lanes_log2;
    for (int step = 0; step < kRows; step += kSteps * together) {
      for (long long column = 0; column < p.columns;
           column += static_cast<long long>(kWide) << p.column_lanes_log2) {
        columns(first, step, together, column, weight, from, to);
      }
    }
  }

 private:
  ATTN_DEVICE void columns(long long first, int step, int together, long long first_column,
                           double weight, long long from, long long to) const {
    const int in_row = lane & (32 / together - 1);
    const long long column = first_column + kWide * in_row;
    double sum[kSteps][kWide] = {};
    for (int i = 0; i < p.parts; i += kAhead) {
      MergeLoaded<kWide> loaded[kSteps][kAhead];
      double share[kSteps][kAhead];
#pragma unroll
      for (int s = 0; s < kSteps; ++s) {
        const int row = step + s * together + lane / (32 / together);
        const bool inside = row < kRows && first + row < p.rows && column < p.columns;
#pragma unroll
        for (int a = 0; a < kAhead; ++a) {
          if (i + a >= p.parts) break;
          const int lane_of_part = row % kRows * kPartLanes + i + a;
          const double weight_there = __shfl_sync(~0u, weight, lane_of_part);
          const long long at = __shfl_sync(~0u, from, lane_of_part);
          share[s][a] = inside ? weight_there : 0;
          if (share[s][a] == 0) continue;  // a part without keys is not read
          const MergePart& part = p.part[i + a];
          load(loaded[s][a], part, at + column * part.o_strides[3]);
        }
      }
#pragma unroll
      for (int s = 0; s < kSteps; ++s) {
#pragma unroll
        for (int a = 0; a < kAhead; ++a) {
          if (i + a >= p.parts) break;
          if (share[s][a] != 0) add(sum[s], share[s][a], p.part[i + a], loaded[s][a]);
        }
      }
    }
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      const int row = step + s * together + lane / (32 / together);
      const long long at = __shfl_sync(~0u, to, row % kRows * kPartLanes);
      if (row >= kRows || first + row >= p.rows || column >= p.columns) continue;
      store(sum[s], p.result, at + column * p.result.o_strides[3]);
    }
  }
};

template <int kWide, int kPartLanes, MergeType kType>
ATTN_DEVICE void merge(const MergeParams& p) {
  using Rows = Merge<kWide, kPartLanes, kType>;
  constexpr int kWarps = kMergeThreads / 32;
  const Rows rows{p, static_cast<int>(threadIdx.x % 32)};
  for (long long warp = blockIdx.x * static_cast<long long>(kWarps) + threadIdx.x / 32;
       warp * Rows::kRows < p.rows; warp += static_cast<long long>(gridDim.x) * kWarps) {
    rows.run(warp * Rows::kRows);
  }
}

}  // namespace attn::device
