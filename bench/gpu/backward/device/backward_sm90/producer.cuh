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

  // Add::paced: asks for pieces of a staged dQ, one after the other, so that loads come between
  // them.
  __device__ __forceinline__ void add_staged() const {
    constexpr int kPiece = C::kPiece;
    const unsigned staged = shared + static_cast<unsigned>(Layout::kStagedAt);
    unsigned n = 0;
    this->for_each_tile([&](const Tile& t) {
      int block = t.first;
      for (int i = 0; i < t.count; ++i, ++n) {
        float* const to = p.dq_sum + (static_cast<long long>(t.pair) * p.query_blocks + block) *
                                         (C::kBlockM * C::kHeadDim);
        this->wait(Layout::kFullStaged, 0, n & 1);
        if constexpr (C::kReadersFence) fence_proxy_async();
#pragma unroll 1
        for (int at = 0; at < Layout::kDq; at += kPiece) {
          bulk_red_add(to + at / 4, staged + static_cast<unsigned>(at), kPiece);
          bulk_commit();
          bulk_wait_read_but_one();
        }
        bulk_wait_read();
        mbarrier_arrive(shared + static_cast<unsigned>(Layout::kEmptyStaged));
        block = this->next_block(t, block);
      }
    });
    bulk_wait();
  }

  __device__ __forceinline__ void run() const {
    if (threadIdx.x == 0) {
      produce<C::kStagesQ>(this->maps.k, Layout::kKAt, Layout::kFullK, this->maps.q, Layout::kQAt,
                           p.lse2, Layout::kLseAt, Layout::kFullQ, Layout::kEmptyQ);
    } else if (threadIdx.x == 32) {
      produce<C::kStagesQ>(this->maps.v, Layout::kVAt, Layout::kFullV, this->maps.d_o, Layout::kOAt,
                           p.d, Layout::kDAt, Layout::kFullO, Layout::kEmptyO);
    } else if (C::kAdd == Add::paced && threadIdx.x == 64) {
      add_staged();
    }
  }
};

}  // namespace attn::device
