// The producer of the Hopper forward kernel: one warp, whose first thread asks the copy engine for
// Q, K and V, tile after tile.
#pragma once

#include "kernels/forward_sm90/tiles.cuh"
#include "ptx/dependent.cuh"

namespace attn::device {

template <class C, class Expressions>
struct ForwardSm90Producer : ForwardSm90Tiles<C, Expressions> {
  using Base = ForwardSm90Tiles<C, Expressions>;
  using Base::barrier, Base::get, Base::key_head, Base::maps, Base::p, Base::put;
  using Base::kGroup;
  using Base::put_windows, Base::shared, Base::wait_empty, Base::work_at;
  using typename Base::AllBlocks, typename Base::KeyRing, typename Base::Layout;
  using typename Base::QueryRing, typename Base::TileRing, typename Base::Work;

  __device__ __forceinline__ void load_q(const Work& w, int consumer, unsigned n) const {
    const int slot = consumer * C::kStagesQ + QueryRing::stage(n);
    const unsigned full = barrier(Layout::kFullQ, slot);
    mbarrier_wait(barrier(Layout::kEmptyQ, slot), QueryRing::parity(n) ^ 1);
    mbarrier_arrive_expect(full, Layout::kQ);
    const int query = (w.row0 + 64 * consumer) / kGroup;
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

  __device__ __forceinline__ void produce() const {
    prefetch_tensor_map(maps.q);
    prefetch_tensor_map(maps.k);
    prefetch_tensor_map(maps.v);
    const bool leader = threadIdx.x % 32 == 0;
    TileDealer dealer(p);
    unsigned tiles = 0, queries = 0, keys = 0, values = 0;  // given out, loaded so far
    // The next tile goes to the consumers; its blocks of keys are returned.
    const auto fetch = [&] {
      const int slot = TileRing::stage(tiles);
      if (leader) {
        const int index = dealer.next();
        mbarrier_wait(barrier(Layout::kEmptyTile, slot), TileRing::parity(tiles) ^ 1);
        Work w{};
        w.row0 = -1;
        if (index < p.num_tiles) w = work_at(index);
        put(slot, w);
      }
      __syncwarp();
      ++tiles;
      AllBlocks list;
      const Work w = get(slot);
      if (w.row0 >= 0) {
        list = AllBlocks(*this, slot);
        put_windows(slot, w, list);
      }
      if (leader) mbarrier_arrive(barrier(Layout::kFullTile, slot));
      return list;
    };
    const auto load_all_q = [&](int slot) {
      if (leader) {
        const Work w = get(slot);
        for (int c = 0; c < C::kConsumers; ++c) load_q(w, c, queries);
      }
      ++queries;
    };
    AllBlocks list = fetch();
    if (C::kStagesQ > 1 && list.more()) load_all_q(TileRing::stage(tiles - 1));
    while (true) {
      const int slot = TileRing::stage(tiles - 1);
      const Work w = get(slot);
      if (w.row0 < 0) break;
      AllBlocks next;
      bool fetched = false;
      int previous = -1;
      while (previous >= 0 || list.more()) {
        const bool has_next = list.more();
        const int block = list.block();
        if (leader && has_next) {
          wait_empty(Layout::kEmptyK, keys);
          const int stage = KeyRing::stage(keys);
          load_keys<Layout::kPanelsK, Layout::kKAt, Layout::kK>(maps.k, w, block, stage,
                                                                barrier(Layout::kFullK, stage));
        }
        if (previous < 0) {
          if constexpr (C::kStagesQ == 1) load_all_q(slot);
        } else {
          if (leader) {
            wait_empty(Layout::kEmptyV, values);
            const int stage = KeyRing::stage(values);
            load_keys<Layout::kPanelsV, Layout::kVAt, Layout::kV>(maps.v, w, previous, stage,
                                                                  barrier(Layout::kFullV, stage));
          }
          ++values;
          if (C::kStagesQ > 1 && !fetched) {
            // The second place for Q is given back as this tile begins: Q of the next has all of
            // this one to arrive.
            next = fetch();
            fetched = true;
            if (next.more()) load_all_q(TileRing::stage(tiles - 1));
          }
        }
        if (!has_next) break;
        ++keys;
        previous = block;
        list.advance(*this, slot);
      }
      if (!fetched) {
        next = fetch();
        if (C::kStagesQ > 1 && next.more()) load_all_q(TileRing::stage(tiles - 1));
      }
      list = next;
    }
    if (leader) dealer.finish();
    if constexpr (C::kSplits) launch_dependents();
  }
};

}  // namespace attn::device
