// The producers of the Hopper backward kernel: one thread asks the copy engine for K, Q and LSE,
// another for V, dO and D.
#pragma once

#include "backward_sm90/tiles.cuh"

namespace attn::device {

template <class C>
struct BackwardSm90Producer : BackwardSm90Tiles<C> {
  using Base = BackwardSm90Tiles<C>;
  using Base::p, Base::shared;
  using typename Base::Layout, typename Base::Tile;

  // Tiles of keys from `keys`, and for each its blocks of queries from `rows` with the floats in
  // `vector`.
  template <int kStages>
  __device__ __forceinline__ void produce(const TensorMap& keys, int keys_at, int full_keys,
                                          const TensorMap& rows, int rows_at, const float* vector,
                                          int vector_at, int full_rows, int empty_rows) const {
    prefetch_tensor_map(keys);
    prefetch_tensor_map(rows);
    using Rows = Ring<kStages>;
    unsigned tiles = 0, n = 0;  // tiles of keys, blocks of queries so far
    this->for_each_tile([&](const Tile& t) {
      const int head = t.pair % p.heads, batch = t.pair / p.heads;
      const unsigned full = shared + static_cast<unsigned>(full_keys);
      this->wait(full_keys + 8, 0, ~tiles++ & 1);
      mbarrier_arrive_expect(full, Layout::kK);
#pragma unroll
      for (int panel = 0; panel < Layout::kPanels; ++panel) {
        tma_load_4d(shared + static_cast<unsigned>(keys_at + panel * Layout::kKeyPanel), keys, full,
                    64 * panel, t.key_block * C::kBlockN, head, batch, kEvictFirst);
      }
      int block = t.first;
      for (int i = 0; i < t.count; ++i, ++n) {
        const int stage = Rows::stage(n);
        const unsigned ready = shared + static_cast<unsigned>(full_rows + 8 * stage);
        this->wait(empty_rows, stage, Rows::parity(n) ^ 1);
        mbarrier_arrive_expect(ready, Layout::kQ + Layout::kRows);
        const unsigned to = shared + static_cast<unsigned>(rows_at + stage * Layout::kQ);
#pragma unroll
        for (int panel = 0; panel < Layout::kPanels; ++panel) {
          tma_load_4d(to + static_cast<unsigned>(panel * Layout::kRowPanel), rows, ready,
                      64 * panel, block * C::kBlockM, head, batch, kEvictLast);
        }
        bulk_load(shared + static_cast<unsigned>(vector_at + stage * Layout::kRows),
                  vector + (static_cast<long long>(t.pair) * p.query_blocks + block) * C::kBlockM,
                  Layout::kRows, ready);
        block = this->next_block(t, block);
      }
    });
  }

  // Of a pair: adds what this block and its neighbour have for this block's half of the columns of
  // dQ to memory. Two warps.
  __device__ __forceinline__ void add_halves() const {
    const unsigned rank = cluster_rank();
    const unsigned thread = threadIdx.x % 64;
    const unsigned mine = shared + static_cast<unsigned>(Layout::kStagedAt) + thread * 16;
    const unsigned give_back =
        address_in(shared + static_cast<unsigned>(Layout::kEmptyTheirs), rank ^ 1);
    unsigned n = 0;
    this->for_each_tile([&](const Tile& t) {
      int block = t.first;
      for (int i = 0; i < t.count; ++i, ++n) {
        if (thread == 0) {
          mbarrier_arrive_expect(shared + static_cast<unsigned>(Layout::kFullTheirs),
                                 Layout::kHalf);
        }
        float* to =
            p.dq_sum +
            (static_cast<long long>(t.pair) * p.query_blocks + block) * (C::kBlockM * C::kHeadDim) +
            rank * (8 * C::kHeadDim) + thread * 4;
        this->wait(Layout::kFullMine, 0, n & 1);
        this->wait_for_pair(Layout::kFullTheirs, n & 1);
        // A warp's half is 32 * kHeadDim bytes here; there, halves of both blocks take turns.
#pragma unroll 1
        for (int warp = 0; warp < 4; ++warp) {
#pragma unroll 2
          for (int j = 0; j < C::kHeadDim / 32; ++j) {
            const unsigned at = mine + static_cast<unsigned>(warp * 32 * C::kHeadDim + j * 1024);
            const Int4 x = load_shared(at), y = load_shared(at + Layout::kHalf);
            red_add(to + j * 256, __int_as_float(x.x) + __int_as_float(y.x),
                    __int_as_float(x.y) + __int_as_float(y.y),
                    __int_as_float(x.z) + __int_as_float(y.z),
                    __int_as_float(x.w) + __int_as_float(y.w));
          }
          to += 16 * C::kHeadDim;
        }
        __syncwarp();
        this->arrive(Layout::kEmptyMine, 0);
        if (threadIdx.x % 32 == 0) mbarrier_arrive_there(give_back);
        block = this->next_block(t, block);
      }
    });
  }

  __device__ __forceinline__ void run() const {
    if (threadIdx.x == 0) {
      produce<C::kStagesQ>(this->maps.k, Layout::kKAt, Layout::kFullK, this->maps.q, Layout::kQAt,
                           p.lse2, Layout::kLseAt, Layout::kFullQ, Layout::kEmptyQ);
    } else if (threadIdx.x == 32) {
      produce<C::kStagesQ>(this->maps.v, Layout::kVAt, Layout::kFullV, this->maps.d_o, Layout::kOAt,
                           p.d, Layout::kDAt, Layout::kFullO, Layout::kEmptyO);
    } else if (threadIdx.x >= 64) {
      if constexpr (Base::kPair) add_halves();
    }
  }
};

}  // namespace attn::device
