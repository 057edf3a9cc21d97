// The producers of the Hopper forward kernel: three warps that ask the copy engine for K, for V,
// and for Q, tile after tile. Each waits for places of its own, so that none holds up another.
//
// All lanes of a warp go through its loop together, and one that elect_one() picks asks for the
// copy: then its operands are in uniform registers. In a branch of the first thread the compiler
// put a loop over lanes around every copy, and a block took as long to ask for as to multiply.
#pragma once

#include "device.cuh"
#include "index.cuh"
#include "kernels/forward_sm90/tiles.cuh"
#include "ptx/dependent.cuh"
#include "schedule/dealer.cuh"

namespace attn::device {

template <class C, class Expressions>
struct ForwardSm90Producer {
  using Tiles = ForwardSm90Tiles<C, Expressions>;
  using Layout = typename Tiles::Layout;
  using AllBlocks = typename Tiles::AllBlocks;
  using Work = typename Tiles::Work;

  const Tiles& tiles;

  // Loads tile n of Q, of consumer `number`; for a whole warp.
  ATTN_DEVICE void load_q(const Work& w, int number, unsigned n) const {
    const auto ring = tiles.q_ring(number);
    const unsigned full = ring.full(n);
    const int query = (w.row0 + 64 * number) / C::kGroup;
    const int head_k = tiles.key_head(w);
    ring.wait_empty(n);
    if (!elect_one()) return;
    mbarrier_arrive_expect(full, Layout::kQ);
    const int in_group = C::kGroup > 1 ? 0 : w.head - head_k * (tiles.p.heads_q / tiles.p.heads_k);
#pragma unroll
    for (int panel = 0; panel < Layout::kPanelsK; ++panel) {
      tma_load_5d(tiles.shared + Layout::kQAt + ring.place(n) * Layout::kQ + panel * 8192,
                  tiles.maps.q, full, Layout::kPanel * panel, in_group,
                  C::kPackedQ ? w.sequence.row_q + query : query, head_k,
                  C::kPackedQ ? 0 : w.sequence.batch, kEvictFirst);
    }
  }

  // Loads the rows of a block of K or V, in one box, or one a page; for one thread. head: of K and
  // V. A panel of columns begins kPanelStep bytes behind the one before.
  template <int kPanels, int kAt, int kTileBytes, int kPanelStep>
  ATTN_DEVICE void load_keys(const TensorMap& map, const Work& w, int head,
                             typename Tiles::Place block, int stage, unsigned full) const {
    const unsigned tile = tiles.shared + kAt + stage * kTileBytes;
    mbarrier_arrive_expect(full, kPanels * Layout::kPanelBytes);
#pragma unroll
    for (int panel = 0; panel < kPanels; ++panel) {
      const unsigned at = tile + panel * kPanelStep;
      if constexpr (C::kGathers) {
        load_gathered(at, map, w, head, block, panel, full);
      } else if constexpr (C::kPageRows == 0) {
        tma_load_4d(at, map, full, Layout::kPanel * panel, w.sequence.row_k + block * C::kBlockN,
                    head, C::kPackedK ? 0 : w.sequence.batch, kEvictLast);
      } else {
        const auto* pages = indices<C, kWidePageTable>(tiles.p.page_table) +
                            w.sequence.batch * tiles.p.page_table_stride;
        for (int i = 0; i < C::kBlockN / C::kPageRows; ++i) {
          const int key = block * C::kBlockN + i * C::kPageRows;
          // Boxes past the length repeat the last page in use: they must arrive, and are masked.
          const int safe = min(key, (w.sequence.length_k - 1) / C::kPageRows * C::kPageRows);
          tma_load_4d(at + i * C::kPageRows * 128, map, full, Layout::kPanel * panel,
                      safe % tiles.p.page_size, head, to_index(pages[safe / tiles.p.page_size]),
                      kEvictLast);
        }
      }
    }
  }

  // Loads use n of the ring of V, which is to be transposed. The warp that asks for K does this
  // too, as the others transpose, so it asks for the next K half a round later than it might.
  ATTN_DEVICE void load_values(const Work& w, int head, typename Tiles::Place block,
                               unsigned n) const {
    const auto places = tiles.loaded_ring();
    places.wait_empty(n);
    if (elect_one()) {
      load_keys<Layout::kSquares, Layout::kVAt, Layout::kV, Layout::kSquare>(
          tiles.maps.v, w, head, block, places.place(n), places.full(n));
    }
  }

  // Loads a block of V that lies transposed, of 8-bit floats; for one thread.
  ATTN_DEVICE void load_transposed(const TensorMap& map, const Work& w, int head, int block,
                                   int stage, unsigned full) const {
    const unsigned tile = tiles.shared + Layout::kVAt + stage * Layout::kV;
    const int first =
        C::kPackedK ? transposed_column<Layout::kTransposedUnit>(w.sequence.row_k, w.sequence.batch)
                    : 0;
    mbarrier_arrive_expect(full, Layout::kV);
#pragma unroll
    for (int panel = 0; panel < Layout::kTransposedPanels; ++panel) {
      tma_load_4d(tile + panel * Layout::kTransposedPanel, map, full,
                  first + block * C::kBlockN + 128 * panel, 0, head,
                  C::kPackedK ? 0 : w.sequence.batch, kEvictLast);
    }
  }

  // Loads a panel of two blocks of 64 keys, each in one box, or one a page. Where there is no
  // second block its box lies behind the tensor, and zeros arrive.
  ATTN_DEVICE void load_gathered(unsigned at, const TensorMap& map, const Work& w, int head,
                                 const BlockPair& blocks, int panel, unsigned full) const {
    constexpr int kRows = C::kPageRows == 0 ? kGatheredKeys : C::kPageRows;
    for (int i = 0; i < C::kBlockN / kRows; ++i) {
      const int key = blocks.origin(i * kRows) + i * kRows;
      const bool none = i * kRows >= kGatheredKeys && blocks.second == GatheredBlock::kNoNumber;
      const unsigned to = at + i * kRows * 128;
      if constexpr (C::kPageRows == 0) {
        tma_load_4d(to, map, full, 64 * panel, none ? kBehind : w.sequence.row_k + key, head,
                    C::kPackedK ? 0 : w.sequence.batch, kEvictLast);
      } else {
        const int safe = min(key, (w.sequence.length_k - 1) / kRows * kRows);
        const auto* pages = indices<C, kWidePageTable>(tiles.p.page_table) +
                            w.sequence.batch * tiles.p.page_table_stride;
        tma_load_4d(to, map, full, 64 * panel, none ? kBehind : safe % tiles.p.page_size, head,
                    to_index(pages[safe / tiles.p.page_size]), kEvictLast);
      }
    }
  }
  static constexpr int kBehind = 0x7fffff00;  // a key of no tensor

  // A tile nears its end, and the next one is dealt, when C::kNearBlocks are not asked for.
  ATTN_DEVICE unsigned near_end() const { return tiles.shared + Layout::kNearEnd; }

  // Where references are judged late, tiles with lost rows are computed again when the others are
  // dealt, or when the list of lost tiles might get too long. Example: of 100 tiles 20 have lost
  // rows: when some 12 are on the list, no more are dealt until these are computed again.
  struct Passes {
    bool pauses = false;  // the tile before is a pause
    bool again = false;   // tiles come from the list
    bool dealt = false;   // all others have been
    int next = 0;         // of the list
  };
  // The tile of use n of the ring, for a whole warp.
  ATTN_DEVICE Work next_work(Passes& passes, TileDealer& dealer, unsigned n) const {
    const bool leader = threadIdx.x % 32 == 0;
    const auto ring = tiles.tile_ring();
    Work none{};
    none.row0 = Tiles::kNoTile;
    if (passes.pauses) {
      ring.wait_empty(n + Layout::kTileStages - 1);  // the follower has looked at all tiles
      const bool lost = tiles.lost_count() != 0;
      passes = {false, lost && !passes.again, passes.dealt, 0};
      if (leader) {
        if (passes.again) {
          tiles.distrust_references();
        } else {
          tiles.trust_references();
        }
      }
      if (!passes.again && passes.dealt) return none;
    }
    if (passes.again) {
      if (passes.next < tiles.lost_count()) {
        ring.wait_empty(n);
        return tiles.lost_tile(passes.next++);
      }
    } else if (!passes.dealt && tiles.has_room_for_lost()) {
      const int index = __shfl_sync(~0u, leader ? dealer.next() : 0, 0);
      OutputTile tile{};
      if constexpr (C::kUneven) {
        tile = tile_with_rows<C>(tiles.p, index);
        passes.dealt = tile.batch < 0;
      } else {
        passes.dealt = index >= tiles.p.num_tiles;
        if (!passes.dealt) tile = tile_at<C>(tiles.p, index);
      }
      ring.wait_empty(n);
      if (!passes.dealt) return tiles.work_at(tile);
    }
    passes.pauses = true;
    ring.wait_empty(n);
    none.row0 = Tiles::kPauseRow;
    none.set_blocks(tiles.p, tiles.p.least_blocks);
    return none;
  }

  // Where no tile is computed again: puts the tile of use n of the ring, or that there is none.
  ATTN_DEVICE void put_next(TileDealer& dealer, unsigned n) const {
    const bool leader = threadIdx.x % 32 == 0;
    const auto ring = tiles.tile_ring();
    OutputTile uneven{};
    if constexpr (C::kUneven) {
      const int index = leader ? dealer.next() : 0;
      uneven = tile_with_rows<C>(tiles.p, __shfl_sync(~0u, index, 0));
    }
    if (!leader) return;
    Work w{};
    w.row0 = Tiles::kNoTile;
    if constexpr (C::kUneven) {
      ring.wait_empty(n);
      if (uneven.batch >= 0) w = tiles.work_at(uneven);
    } else {
      const int index = dealer.next();
      ring.wait_empty(n);
      if (index < tiles.p.num_tiles) w = tiles.work_at(tile_at<C>(tiles.p, index));
    }
    tiles.put(ring.place(n), w);
  }

  // Deals tiles out, classifies their first blocks of keys, and loads Q of them: one warp. It deals
  // a tile while the one before nears its end: one dealt earlier might begin late, as the last of
  // a launch, while other multiprocessors have nothing left to do.
  ATTN_DEVICE void produce_tiles() const {
    const bool leader = threadIdx.x % 32 == 0;
    const auto ring = tiles.tile_ring();
    TileDealer dealer(tiles.p.counter);
    prefetch_tensor_map(tiles.maps.q);
    unsigned queries = 0;     // loaded so far
    unsigned long_tiles = 0;  // whose ends were waited for
    Passes passes;
    for (unsigned n = 0;; ++n) {
      const int slot = ring.place(n);
      if constexpr (Tiles::kJudgesLate) {
        const Work w = next_work(passes, dealer, n);
        if (leader) tiles.put(slot, w);
      } else {
        put_next(dealer, n);
      }
      __syncwarp();
      const Work w = tiles.get(slot);
      AllBlocks list;
      if (Tiles::is_tile(w)) {
        if (w.row0 != Tiles::kPauseRow) list = AllBlocks(tiles, slot);
        tiles.put_windows(slot, w, list);
      }
      if (leader) mbarrier_arrive(ring.full(n));
      __syncwarp();
      if (list.more()) {
#pragma unroll 1
        for (int c = 0; c < C::kConsumers; ++c) {
          load_q(w, c, queries);
          __syncwarp();
        }
        ++queries;
      }
      if (!Tiles::is_tile(w)) break;
      if (list.longer_than(C::kNearBlocks)) {
        mbarrier_wait(near_end(), long_tiles++ & 1);
      }
    }
    if (leader) dealer.finish();
  }

  // Ask for K of the tiles, and for V: a warp each, but where V is transposed (load_values). The
  // place of K is free when S is there, that of V a softmax later; a warp that asked for both in
  // turn would ask for K when V's place is free.
  ATTN_DEVICE void produce_keys() const {
    produce_blocks<true, Layout::kPanelsK, Layout::kKAt, Layout::kK, Layout::kPanelBytes>(
        tiles.maps.k, tiles.k_ring());
    if constexpr (C::kSplits) launch_dependents();
  }
  ATTN_DEVICE void produce_values() const {
    // For V of 8-bit floats, which the kernel before lays out.
    if constexpr (C::kFloat8 && !C::kClassified) wait_for_dependencies();
    produce_blocks<false, Layout::kPanelsV, Layout::kVAt, Layout::kV, Layout::kPanelBytes>(
        tiles.maps.v, tiles.v_ring());
  }

 private:
  // kTellsEnd: the other warps hear from this one that a tile nears its end.
  template <bool kTellsEnd, int kPanels, int kAt, int kTileBytes, int kPanelStep, class Places>
  ATTN_DEVICE void produce_blocks(const TensorMap& map, const Places& places) const {
    const auto ring = tiles.tile_ring();
    prefetch_tensor_map(map);
    unsigned loaded = 0;
    for (unsigned n = 0;; ++n) {
      const int slot = ring.place(n);
      ring.wait(n);
      const Work w = tiles.get(slot);
      if (!Tiles::is_tile(w)) break;
      auto list = tiles.template first_blocks<AllBlocks>(slot, 0, w);
      const int head = uniform(tiles.key_head(w));
      bool far = kTellsEnd && list.longer_than(C::kNearBlocks);
      const auto tell_end = [&] {
        if (far && !list.longer_than(C::kNearBlocks)) {
          far = false;
          if (elect_one()) mbarrier_arrive(near_end());
        }
      };
#pragma unroll 1
      for (; list.more(); list.advance(tiles, slot), ++loaded) {
        tell_end();
        places.wait_empty(loaded);
        if (elect_one()) {
          if constexpr (C::kFloat8 && kAt == Layout::kVAt) {
            load_transposed(map, w, head, list.block(), places.place(loaded), places.full(loaded));
          } else {
            load_keys<kPanels, kAt, kTileBytes, kPanelStep>(
                map, w, head, list.block(), places.place(loaded), places.full(loaded));
          }
        }
        if constexpr (Tiles::kTransposes) load_values(w, head, list.block(), loaded);
      }
      tell_end();  // where the mask hides all blocks that seemed to follow
      __syncwarp();
      ring.release(n);
    }
  }
};

}  // namespace attn::device
