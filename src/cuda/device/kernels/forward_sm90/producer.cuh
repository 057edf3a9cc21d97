// The producers of the Hopper forward kernel: two warps, whose first threads ask the copy engine
// for K and V, and for Q, tile after tile. Each waits for places of its own, so that neither holds
// up the other.
#pragma once

#include "kernels/forward_sm90/tiles.cuh"
#include "ptx/dependent.cuh"
#include "schedule/dealer.cuh"

namespace attn::device {

template <class C, class Expressions>
struct ForwardSm90Producer : ForwardSm90Tiles<C, Expressions> {
  using Base = ForwardSm90Tiles<C, Expressions>;
  using Base::barrier, Base::get, Base::key_head, Base::maps, Base::p, Base::put;
  using Base::kGroup;
  using Base::put_windows, Base::shared, Base::work_at;
  using typename Base::AllBlocks, typename Base::KeyRing, typename Base::Layout;
  using typename Base::QueryRing, typename Base::TileRing, typename Base::ValueRing;
  using typename Base::Work;

  // Tile n of Q, of consumer `number`.
  __device__ __forceinline__ void load_q(const Work& w, int number, unsigned n) const {
    const int slot = number * C::kStagesQ + QueryRing::stage(n);
    const unsigned full = barrier(Layout::kFullQ, slot);
    mbarrier_wait(barrier(Layout::kEmptyQ, slot), QueryRing::parity(n) ^ 1);
    mbarrier_arrive_expect(full, Layout::kQ);
    const int query = (w.row0 + 64 * number) / kGroup;
    const int head_k = key_head(w);
    const int in_group = kGroup > 1 ? 0 : w.head - head_k * (p.heads_q / p.heads_k);
#pragma unroll
    for (int panel = 0; panel < Layout::kPanelsK; ++panel) {
      tma_load_5d(shared + Layout::kQAt + slot * Layout::kQ + panel * 8192, maps.q, full,
                  64 * panel, in_group, C::kPackedQ ? w.sequence.row_q + query : query, head_k,
                  C::kPackedQ ? 0 : w.sequence.batch, kEvictFirst);
    }
  }

  // Rows of a block of K or V: one box, or one a page.
  template <int kPanels, int kAt, int kTileBytes>
  __device__ __forceinline__ void load_keys(const TensorMap& map, const Work& w, int block,
                                            int stage, unsigned full) const {
    const int head = key_head(w);
    const unsigned tile = shared + kAt + stage * kTileBytes;
    mbarrier_arrive_expect(full, kTileBytes);
#pragma unroll
    for (int panel = 0; panel < kPanels; ++panel) {
      const unsigned at = tile + panel * Layout::kPanelBytes;
      if constexpr (C::kPageRows == 0) {
        tma_load_4d(at, map, full, 64 * panel, w.sequence.row_k + block * C::kBlockN, head,
                    C::kPackedK ? 0 : w.sequence.batch, kEvictLast);
      } else {
        const int* pages = p.page_table + w.sequence.batch * p.page_table_stride;
        for (int i = 0; i < C::kBlockN / C::kPageRows; ++i) {
          const int key = block * C::kBlockN + i * C::kPageRows;
          // Boxes past the length repeat the last page in use: they must arrive, and are masked.
          const int safe = min(key, (w.sequence.length_k - 1) / C::kPageRows * C::kPageRows);
          tma_load_4d(at + i * C::kPageRows * 128, map, full, 64 * panel, safe % p.page_size, head,
                      pages[safe / p.page_size], kEvictLast);
        }
      }
    }
  }

  // A tile nears its end, and the next one is dealt, when so many of its blocks are not asked for.
  static constexpr int kNearBlocks = 2;

  // Deals tiles out, classifies their first blocks of keys, and loads Q of them: one warp. It deals
  // a tile while the one before nears its end: one dealt earlier might begin late, as the last of
  // a launch, while other multiprocessors have nothing left to do.
  __device__ __forceinline__ void produce_tiles() const {
    const bool leader = threadIdx.x % 32 == 0;
    TileDealer dealer(p.counter);
    prefetch_tensor_map(maps.q);
    unsigned queries = 0;     // loaded so far
    unsigned long_tiles = 0;  // whose ends were waited for
    for (unsigned tiles = 0;; ++tiles) {
      const int slot = TileRing::stage(tiles);
      if (leader) {
        const int index = dealer.next();
        mbarrier_wait(barrier(Layout::kEmptyTile, slot), TileRing::parity(tiles) ^ 1);
        Work w{};
        w.row0 = Base::kNoTile;
        if (index < p.num_tiles) w = work_at(index);
        put(slot, w);
      }
      __syncwarp();
      const Work w = get(slot);
      AllBlocks list;
      if (Base::is_tile(w)) {
        list = AllBlocks(*this, slot);
        put_windows(slot, w, list);
      }
      if (leader) {
        mbarrier_arrive(barrier(Layout::kFullTile, slot));
        if (list.more()) {
          for (int c = 0; c < C::kConsumers; ++c) load_q(w, c, queries);
        }
      }
      if (list.more()) ++queries;
      if (!Base::is_tile(w)) break;
      if (list.longer_than(kNearBlocks)) {
        mbarrier_wait(barrier(Layout::kNearEnd, 0), long_tiles++ & 1);
      }
    }
    if (leader) dealer.finish();
  }

  // K and V of them: another.
  __device__ __forceinline__ void produce_keys() const {
    const bool leader = threadIdx.x % 32 == 0;
    prefetch_tensor_map(maps.k);
    prefetch_tensor_map(maps.v);
    unsigned keys = 0, values = 0;  // loaded so far
    for (unsigned tiles = 0;; ++tiles) {
      const int slot = TileRing::stage(tiles);
      mbarrier_wait(barrier(Layout::kFullTile, slot), TileRing::parity(tiles));
      const Work w = get(slot);
      if (!Base::is_tile(w)) break;
      auto list = this->template first_blocks<AllBlocks>(slot, 0, w);
      int previous = -1;
      bool far = list.longer_than(kNearBlocks);
      while (previous >= 0 || list.more()) {
        const bool has_next = list.more();
        if (far && !list.longer_than(kNearBlocks)) {
          far = false;
          this->arrive(Layout::kNearEnd, 0);
        }
        const int block = list.block();
        if (leader && has_next) {
          this->template wait_empty<KeyRing>(Layout::kEmptyK, keys);
          const int stage = KeyRing::stage(keys);
          load_keys<Layout::kPanelsK, Layout::kKAt, Layout::kK>(maps.k, w, block, stage,
                                                                barrier(Layout::kFullK, stage));
        }
        if (previous >= 0) {
          if (leader) {
            this->template wait_empty<ValueRing>(Layout::kEmptyV, values);
            const int stage = ValueRing::stage(values);
            load_keys<Layout::kPanelsV, Layout::kVAt, Layout::kV>(maps.v, w, previous, stage,
                                                                  barrier(Layout::kFullV, stage));
          }
          ++values;
        }
        if (!has_next) break;
        ++keys;
        previous = block;
        list.advance(*this, slot);
      }
      __syncwarp();
      this->arrive(Layout::kEmptyTile, slot);
    }
    if constexpr (C::kSplits) launch_dependents();
  }
};

}  // namespace attn::device
