// The warpgroups of the Hopper backward kernel that keep dV = P^T dO and dK = dS^T Q of a tile of
// keys in registers.
#pragma once

#include "backward_sm90/tiles.cuh"
#include "products.cuh"
#include "ptx/warpgroup.cuh"
#include "ptx/wgmma.cuh"
#include "tile/accumulator.cuh"

namespace attn::device {

template <class C>
struct BackwardSm90GradientGroup : BackwardSm90Tiles<C> {
  using Base = BackwardSm90Tiles<C>;
  using Base::p, Base::shared;
  using typename Base::Layout, typename Base::Tile;
  static constexpr int kParts = C::kBlockN / 64;  // of 64 keys
  using Sums = float[kParts][C::kHeadDim / 2];

  // Adds scores^T rows for one block of queries.
  static __device__ __forceinline__ void issue(Sums& sums, unsigned scores, unsigned rows,
                                               bool add) {
#pragma unroll
    for (int step = 0; step < C::kBlockM / 16; ++step) {
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        ProductSS<C::kHeadDim, 1, 1>::run(sums[part],
                                          scores + ((part * Layout::kRowPanel + step * 2048) >> 4),
                                          rows + ((step * 2048) >> 4), step > 0 || add);
      }
    }
    wgmma_commit();
  }
  static __device__ __forceinline__ void pin_all(Sums& sums) {
#pragma unroll
    for (int part = 0; part < kParts; ++part) pin(sums[part]);
  }

  __device__ __forceinline__ void store(const Sums& sums, const Tile& t, void* to,
                                        float factor) const {
    const int head = t.pair % p.heads, batch = t.pair / p.heads;
    const int lane = static_cast<int>(threadIdx.x % 32);
    const int warp = static_cast<int>(threadIdx.x % 128 / 32);
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int key = t.key_block * C::kBlockN + part * 64 + warp * 16 + lane / 4 + 8 * i;
        char* row =
            static_cast<char*>(to) +
            2 * ((static_cast<long long>(batch) * p.seqlen_k + key) * p.heads + head) * C::kHeadDim;
        store_row<BFloat16, C::kHeadDim>(sums[part], i, factor, row, key < p.seqlen_k);
      }
    }
  }

  // which: 0 for dV, 1 for dK. One code for both, so that there is less of it; the rings of dK lie
  // a fixed distance after those of dV.
  __device__ __forceinline__ void run(int which) const {
    using ScoreRing = Ring<C::kStagesP>;
    using RowRing = Ring<C::kStagesQ>;
    const int scores_at = which == 0 ? Layout::kPAt : Layout::kSAt;
    const int full_scores = which == 0 ? Layout::kFullP : Layout::kFullS;
    const int rows_at = which == 0 ? Layout::kOAt : Layout::kQAt;
    const int full_rows = which == 0 ? Layout::kFullO : Layout::kFullQ;
    const int empty_scores = full_scores + 8 * C::kStagesP;
    const int empty_rows = full_rows + 8 * C::kStagesQ;
    unsigned n = 0;  // blocks of queries so far
    this->for_each_tile([&](const Tile& t) {
      Sums sums;  // here, so that no register holds them while the next tile is worked out
      const unsigned begin = n, end = n + static_cast<unsigned>(t.count);
      for (; n != end; ++n) {
        this->wait(full_rows, RowRing::stage(n), RowRing::parity(n));
        this->wait(full_scores, ScoreRing::stage(n), ScoreRing::parity(n));
        if constexpr (C::kReadersFence) fence_proxy_async();
        const unsigned a = this->descriptor(scores_at + ScoreRing::stage(n) * Layout::kP, 0);
        const unsigned b =
            this->descriptor(rows_at + RowRing::stage(n) * Layout::kQ, Layout::kRowPanel);
        pin_all(sums);
        wgmma_fence();
        issue(sums, a, b, n != begin);
        wgmma_wait<0>();
        pin_all(sums);
        this->arrive(empty_scores, ScoreRing::stage(n));
        this->arrive(empty_rows, RowRing::stage(n));
      }
      store(sums, t, which == 0 ? p.dv : p.dk, which == 0 ? 1.f : p.scale);
    });
  }
};

}  // namespace attn::device
