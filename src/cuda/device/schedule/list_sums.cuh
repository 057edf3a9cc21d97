// Sums of dK and dV over lists of keys, to which all queries that name a key add in memory, and
// the kernel that stores them.
//
// They are float32, [batch][heads_k][seqlen_k] rows of whole blocks of 16 columns. A block is in
// the order of accumulators: the numbers from 4 t on, t up to 3, are columns 2 t, 2 t + 1, 2 t + 8
// and 2 t + 9, which one thread of mma.sync has, so that it adds 16 bytes at a time.
#pragma once

#include "device.cuh"
#include "divide_up.cuh"
#include "params.cuh"
#include "ptx/reduce.cuh"
#include "schedule/gradient_tile.cuh"
#include "tile/scalar.cuh"

namespace attn::device {

template <int kColumns>
struct ListSums {
  static constexpr int kWidth = divide_up<16>(kColumns) * 16;

  // The first of the four columns of the numbers from `at` on, a multiple of 4.
  static constexpr ATTN_DEVICE int column(int at) { return at / 16 * 16 + at % 16 / 2; }
  static constexpr ATTN_DEVICE int column(int at, int i) { return column(at) + i % 2 + i / 2 * 8; }

  static ATTN_DEVICE float* row(float* sums, const BackwardParams& p, int batch, int head_k,
                                int key) {
    const long long pair = static_cast<long long>(batch) * p.heads_k + head_k;
    return sums + (pair * p.seqlen_k + key) * kWidth;
  }
};

// Stores kBlockM keys of a K, V head: `factor` times their sums.
// Reads of C: Stored, kBlockM, kWarps, and what GradientTile reads
template <class C, int kColumns>
ATTN_DEVICE void store_list_sums(const BackwardParams& p, const GradientTile<C>& tile, float* sums,
                                 float factor, void* to, const Strides& strides) {
  using Sums = ListSums<kColumns>;
  using Stored = typename C::Stored;
  constexpr int kFours = Sums::kWidth / 4;
  if (to == nullptr) return;
  const TensorRows rows = tile.of_keys(to, strides, tile.head);
  for (int i = static_cast<int>(threadIdx.x); i < C::kBlockM * kFours; i += 32 * C::kWarps) {
    const int key = tile.first + i / kFours, at = i % kFours * 4;
    if (key >= tile.rows_present()) break;
    const float* const from = Sums::row(sums, p, tile.sequence.batch, tile.head, key) + at;
    auto* const row = element<Stored>(to, rows.start + key * rows.stride);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int column = Sums::column(at, j);
      if (column < kColumns) row[column] = Scalar<Stored>::to(from[j] * factor);
    }
  }
}

// Reads of C also: kHeadDim, kHeadDimV. Grid: a block of threads for each kBlockM keys, batch entry
// and K, V head.
template <class C>
ATTN_DEVICE void store_list_gradients(const BackwardParams& p) {
  const auto tile = GradientTile<C>::at(p, static_cast<int>(blockIdx.x));
  store_list_sums<C, C::kHeadDim>(p, tile, p.dk_sum, p.scale, p.dk, p.dk_strides);
  store_list_sums<C, C::kHeadDimV>(p, tile, p.dv_sum, 1, p.dv, p.dv_strides);
}

}  // namespace attn::device
