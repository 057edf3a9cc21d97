// Forward pass on Hopper (sm_90a): FlashAttention-2, algorithm 1, as warp-specialised stages
// (FlashAttention-3, algorithms 1 and 2).
//
// A block of threads is one producer warpgroup, whose first thread asks the copy engine for Q, K and V,
// and C::kConsumers warpgroups with 64 rows of Q each. K and V go through rings of C::kStages tiles.
// A consumer issues S = Q K^T of the next block, O += P V of this one, and does the softmax of the
// next while the second runs. Blocks of threads stay and take one tile of O after the other; Q of the
// next tile arrives while this one ends.
#pragma once

#include "params.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/tma.cuh"
#include "ptx/warpgroup.cuh"
#include "ptx/wgmma.cuh"
#include "schedule/key_blocks.cuh"
#include "schedule/sequence.cuh"
#include "schedule/tiles.cuh"
#include "softmax/denominator.cuh"
#include "softmax/dropout.cuh"
#include "softmax/online.cuh"
#include "tile/accumulator.cuh"
#include "tile/warp_scores.cuh"

namespace attn::device {

struct ForwardMaps {
  // q: (column, head of the group, query, group, batch); k, v: (column, key, head, batch or page).
  TensorMap q, k, v;
};

// Sizes in bytes and places in shared memory. Panels are 64 columns wide, 128 bytes a row, swizzled.
template <class C>
struct ForwardSm90Layout {
  static constexpr int kPanelsK = (C::kHeadDim + 63) / 64, kPanelsV = (C::kHeadDimV + 63) / 64;
  static constexpr int kQ = 64 * 128 * kPanelsK;  // of one consumer
  static constexpr int kPanelBytes = C::kBlockN * 128;
  static constexpr int kK = kPanelBytes * kPanelsK, kV = kPanelBytes * kPanelsV;
  static constexpr int kQs = C::kStagesQ * C::kConsumers;
  static constexpr int kQAt = 0, kKAt = kQAt + kQs * kQ, kVAt = kKAt + C::kStages * kK;
  static constexpr int kFullQ = kVAt + C::kStages * kV, kEmptyQ = kFullQ + 8 * kQs;
  static constexpr int kFullK = kEmptyQ + 8 * kQs, kEmptyK = kFullK + 8 * C::kStages;
  static constexpr int kFullV = kEmptyK + 8 * C::kStages, kEmptyV = kFullV + 8 * C::kStages;
  // The tiles at hand, from the producer to the consumers, which hold two: the one that ends and the
  // one that begins.
  static constexpr int kTileStages = 4, kTileBytes = 48 + 16 * C::kConsumers;
  static constexpr int kFullTile = kEmptyV + 8 * C::kStages;
  static constexpr int kEmptyTile = kFullTile + 8 * kTileStages;
  static constexpr int kTileAt = (kEmptyTile + 8 * kTileStages + 15) / 16 * 16;
  static constexpr int kBytes = kTileAt + kTileBytes * kTileStages;
};

// Use number n of a ring of barriers: which one, and the parity of its phase. kStages is a power of
// two, so that a counter is all there is to keep.
template <int kStages>
struct Ring {
  static_assert((kStages & (kStages - 1)) == 0);
  static __device__ __forceinline__ int stage(unsigned n) {
    return static_cast<int>(n % kStages);
  }
  static __device__ __forceinline__ unsigned parity(unsigned n) { return n / kStages & 1; }
};

template <class C, class Expressions>
struct ForwardSm90 {
  using Layout = ForwardSm90Layout<C>;
  using Element = typename C::Element;
  static constexpr int kBlockM = 64 * C::kConsumers;
  static constexpr int kGroup = C::kGroup;
  static constexpr int kStepsK = (C::kHeadDim + 15) / 16;

  const ForwardParams& p;
  const Expressions& e;
  const ForwardMaps& maps;
  unsigned shared;  // 1024-byte aligned

  // The work of one tile: sequence, rows, blocks of keys.
  struct Work {
    Sequence sequence;
    int head;   // query head, or K, V head when heads are packed
    int split;
    int row0;   // first row of the block; row r is query r / kGroup of head r % kGroup of the group
    int begin, end;  // blocks of keys
  };

  __device__ __forceinline__ Work work_at(int index) const {
    const OutputTile tile = tile_at<C>(p, index);
    Work w{sequence_of<C>(p, tile.batch), tile.head_k, tile.split, tile.m_block * kBlockM, 0, 0};
    set_range(w);
    return w;
  }
  __device__ __forceinline__ void set_range(Work& w) const {
    w.begin = 0;
    w.end = (w.sequence.length_k + C::kBlockN - 1) / C::kBlockN;
    if constexpr (C::kSplits) {
      w.begin = min(w.end, w.split * p.blocks_per_split);
      w.end = min(w.end, w.begin + p.blocks_per_split);
    }
  }

  // A tile in shared memory; row0 < 0: there are no more.
  __device__ __forceinline__ unsigned slot_address(int slot) const {
    return shared + static_cast<unsigned>(Layout::kTileAt + Layout::kTileBytes * slot);
  }
  __device__ __forceinline__ void put(int slot, const Work& w) const {
    const unsigned at = slot_address(slot);
    store_shared(at, {w.row0, w.head, w.sequence.batch, w.split});
    store_shared(at + 16, {w.sequence.row_q, w.sequence.rows_q, w.sequence.length_q,
                           w.sequence.length_k});
    if constexpr (C::kPackedK) store_shared(at + 32, {w.sequence.row_k, 0, 0, 0});
  }
  __device__ __forceinline__ Work get(int slot) const {
    const Int4 a = load_shared(slot_address(slot));
    Work w{{}, a.y, a.w, a.x, 0, 0};
    w.sequence.rows_q = w.sequence.length_q = p.seqlen_q;
    w.sequence.length_k = p.seqlen_k;
    if constexpr (C::kPackedQ || C::kPackedK || C::kUsedQ || C::kUsedK) {
      const Int4 b = load_shared(slot_address(slot) + 16);
      w.sequence.row_q = b.x;
      w.sequence.rows_q = b.y;
      w.sequence.length_q = b.z;
      w.sequence.length_k = b.w;
    }
    if constexpr (C::kPackedK) w.sequence.row_k = load_shared(slot_address(slot) + 32).x;
    w.sequence.batch = a.z;
    set_range(w);
    return w;
  }

  __device__ __forceinline__ QueryRange queries(const Work& w, int row, int rows) const {
    QueryRange range{row / kGroup, min((row + rows - 1) / kGroup, w.sequence.length_q - 1), w.head,
                     w.head};
    if constexpr (kGroup > 1) {
      range.head_first = w.head * kGroup;
      range.head_last = range.head_first + kGroup - 1;
    }
    return range;
  }

  using Blocks = KeyBlocks<C, Expressions, ForwardSm90>;
  __device__ __forceinline__ KeyRange keys(int slot) const {
    const Work w = get(slot);
    const QueryRange all = queries(w, w.row0, kBlockM);
    return {all, threadIdx.x < 128 ? all : queries(w, w.row0 + 64 * consumer(), 64),
            w.sequence.batch, w.sequence.length_q, w.sequence.length_k, w.begin, w.end};
  }

  __device__ __forceinline__ unsigned barrier(int first, int index) const {
    return shared + static_cast<unsigned>(first + 8 * index);
  }
  using KeyRing = Ring<C::kStages>;
  using QueryRing = Ring<C::kStagesQ>;
  using TileRing = Ring<Layout::kTileStages>;
  // Waits until use n of a ring of K or V tiles has arrived (full) or may be overwritten (empty).
  __device__ __forceinline__ void wait_full(int first, unsigned n) const {
    mbarrier_wait(barrier(first, KeyRing::stage(n)), KeyRing::parity(n));
  }
  __device__ __forceinline__ bool is_full(int first, unsigned n) const {
    return mbarrier_try(barrier(first, KeyRing::stage(n)), KeyRing::parity(n));
  }
  __device__ __forceinline__ void wait_empty(int first, unsigned n) const {
    mbarrier_wait(barrier(first, KeyRing::stage(n)), KeyRing::parity(n) ^ 1);
  }

  __device__ __forceinline__ int key_head(const Work& w) const {
    return kGroup > 1 ? w.head : w.head / (p.heads_q / p.heads_k);
  }

  // The first blocks of keys as each consumer sees them, so that consumers begin at once.
  __device__ __forceinline__ unsigned window_address(int slot, int of_consumer) const {
    return slot_address(slot) + 48 + static_cast<unsigned>(16 * of_consumer);
  }
  __device__ __forceinline__ void put_windows(int slot, const Work& w, const Blocks& list) const {
    if constexpr (Expressions::kHasMask) {
      const KeyRange range = keys(slot);
#pragma unroll
      for (int i = 0; i < C::kConsumers; ++i) {
        const KeyWindow window = list.window(*this, range, queries(w, w.row0 + 64 * i, 64));
        if (threadIdx.x % 32 == 0) {
          store_shared(window_address(slot, i),
                       {window.next, static_cast<int>(window.present),
                        static_cast<int>(window.mixed), static_cast<int>(window.empty)});
        }
      }
      __syncwarp();
    }
  }

  // ---- producer

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
      Blocks list;
      const Work w = get(slot);
      if (w.row0 >= 0) {
        list = Blocks(*this, slot);
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
    Blocks list = fetch();
    if (C::kStagesQ > 1 && list.more()) load_all_q(TileRing::stage(tiles - 1));
    while (true) {
      const int slot = TileRing::stage(tiles - 1);
      const Work w = get(slot);
      if (w.row0 < 0) break;
      Blocks next;
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
            load_keys<Layout::kPanelsV, Layout::kVAt, Layout::kV>(
                maps.v, w, previous, stage, barrier(Layout::kFullV, stage));
          }
          ++values;
          if (C::kStagesQ > 1 && !fetched) {
            // The second place for Q is given back as this tile begins: Q of the next has all of this
            // one to arrive.
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
  }

  // ---- consumer

  struct Consumer {
    float o[C::kHeadDimV / 2];
    float s[C::kBlockN / 2];
    unsigned probability[C::kBlockN / 4];
    OnlineSoftmax softmax;
    unsigned blocks = 0;  // whose S was computed so far
    // Tiles of Q that were released (high half) and tiles begun (low half) so far; each wraps in its
    // half, a multiple of the rings' lengths.
    unsigned counts = 0;
    __device__ __forceinline__ unsigned queries() const { return counts >> 16; }
    __device__ __forceinline__ unsigned tiles() const { return counts & 0xffff; }
    __device__ __forceinline__ void next_query() { counts += 0x10000; }
    __device__ __forceinline__ void next_tile() {
      counts = (counts & 0xffff0000) | ((counts + 1) & 0xffff);
    }
  };

  // One tile as a consumer sees it.
  struct Own {
    Work w;
    int row;  // of the thread
    bool exists;
  };
  __device__ __forceinline__ Own own_at(int slot) const {
    const Work w = get(slot);
    return {w,
            w.row0 + 64 * consumer() + static_cast<int>(threadIdx.x % 128 / 32) * 16 +
                static_cast<int>(threadIdx.x % 32 / 4),
            w.row0 >= 0};
  }

  __device__ __forceinline__ int consumer() const {
    return static_cast<int>(threadIdx.x / 128) - 1;
  }
  __device__ __forceinline__ void arrive(int first, int index) const {
    if (threadIdx.x % 32 == 0) mbarrier_arrive(barrier(first, index));
  }

  // Consumers take turns issuing products, so that one has its softmax while another multiplies.
  static constexpr int kTurnBarrier = 1;
  __device__ __forceinline__ void wait_turn() const {
    if constexpr (C::kTakeTurns) barrier_sync(kTurnBarrier + consumer(), 256);
  }
  __device__ __forceinline__ void give_turn() const {
    if constexpr (C::kTakeTurns) {
      const int next = consumer() + 1 == C::kConsumers ? 0 : consumer() + 1;
      barrier_arrive(kTurnBarrier + next, 256);
    }
  }

  static __device__ __forceinline__ void pin_all(Consumer& c) {
    pin(c.o);
    pin(c.s);
    pin(c.probability);
  }

  __device__ __forceinline__ unsigned v_tile(const Consumer& c) const {
    return shared + static_cast<unsigned>(Layout::kVAt +
                                          KeyRing::stage(c.blocks - 1) * Layout::kV);
  }
  __device__ __forceinline__ unsigned q_descriptor(const Consumer& c) const {
    return descriptor_low(shared + Layout::kQAt + q_slot(c) * Layout::kQ, 0);
  }
  __device__ __forceinline__ unsigned k_descriptor(const Consumer& c) const {
    return descriptor_low(shared + Layout::kKAt + KeyRing::stage(c.blocks) * Layout::kK, 0);
  }
  // V of the block before: its P is ready.
  __device__ __forceinline__ unsigned v_descriptor(const Consumer& c) const {
    return descriptor_low(v_tile(c), Layout::kPanelBytes);
  }

  __device__ __forceinline__ void issue_qk(Consumer& c, unsigned q, unsigned k) const {
#pragma unroll
    for (int step = 0; step < kStepsK; ++step) {
      const int panel = step / 4, inside = step % 4 * 32;
      ProductSS<Element, C::kBlockN>::run(c.s, q + ((panel * 8192 + inside) >> 4),
                                          k + ((panel * Layout::kPanelBytes + inside) >> 4),
                                          step > 0);
    }
    wgmma_commit();
  }

  __device__ __forceinline__ void issue_pv(Consumer& c, unsigned v, bool add) const {
#pragma unroll
    for (int step = 0; step < C::kBlockN / 16; ++step) {
      ProductRS<Element, C::kHeadDimV>::run(c.o, &c.probability[4 * step],
                                            v + ((step * 2048) >> 4), step > 0 || add);
    }
    wgmma_commit();
  }

  static constexpr float kLog2E = 1.4426950408889634f;
  // What scores are multiplied by to be exponents of 2.
  __device__ __forceinline__ float exponent_scale() const {
    return Expressions::kHasScore ? kLog2E : p.scale_log2;
  }

  // Calls f(score, query, head, key) for each score of a block.
  template <class F>
  __device__ __forceinline__ void for_each_score(Consumer& c, const Own& t, int block, F f) const {
    const int key0 = block * C::kBlockN + 2 * static_cast<int>(threadIdx.x % 4);
#pragma unroll
    for (int j = 0; j < C::kBlockN / 8; ++j) {
#pragma unroll
      for (int column = 0; column < 2; ++column) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int row = t.row + 8 * i;
          const int head = kGroup > 1 ? t.w.head * kGroup + row % kGroup : t.w.head;
          f(c.s[4 * j + 2 * i + column], row / kGroup, head, key0 + 8 * j + column);
        }
      }
    }
  }
  __device__ __forceinline__ void apply_score(Consumer& c, const Own& t, int block) const {
    if constexpr (Expressions::kHasScore) {
      const Sequence& q = t.w.sequence;
      for_each_score(c, t, block, [&](float& x, int query, int head, int key) {
        x = e.score(x * p.scale, query, key, q.batch, head, q.length_q, q.length_k);
      });
    }
  }
  __device__ __forceinline__ void apply_mask(Consumer& c, const Own& t, int block) const {
    const Sequence& q = t.w.sequence;
    for_each_score(c, t, block, [&](float& x, int query, int head, int key) {
      bool visible = key < q.length_k;
      if constexpr (Expressions::kHasMask) {
        visible = visible && e.mask(query, key, q.batch, head, q.length_q, q.length_k);
      }
      x = visible ? x : minus_infinity();
    });
  }

  // S <- P with new references.
  __device__ __forceinline__ void softmax_raised(Consumer& c, const Own& t, int block, bool mixed,
                                                 float (&alpha)[2]) const {
    apply_score(c, t, block);
    if (mixed) apply_mask(c, t, block);
    c.softmax.raise(c.s, exponent_scale(), alpha);
    c.softmax.template exponentiate<true, 0>(c.s, exponent_scale());
  }

  // Sets the dropped elements of P to zero; l was summed before.
  __device__ __forceinline__ void drop(Consumer& c, const Own& t, int block) const {
    if constexpr (C::kDropout) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int row = t.row + 8 * i;
        const int head = kGroup > 1 ? t.w.head * kGroup + row % kGroup : t.w.head;
        const DropoutRow dropout{p.dropout_seed, p.dropout_offset, p.dropout_threshold,
                                 static_cast<unsigned>(t.w.sequence.batch * p.heads_q + head),
                                 static_cast<unsigned>(row / kGroup)};
        dropout.apply(c.probability, i, block * C::kBlockN, static_cast<int>(threadIdx.x % 4));
      }
    }
  }

  // Rows of V from the used-th on are past the length and someone else's: they must not meet P = 0 as
  // NaN.
  __device__ __forceinline__ void clear_tail(const Consumer& c, int used) const {
    if constexpr (C::kClearTail) {
      if (used >= C::kBlockN) return;
      const unsigned v = v_tile(c);
      const int words = (C::kBlockN - used) * 8;  // of 16 bytes, of a panel
      for (int panel = 0; panel < Layout::kPanelsV; ++panel) {
        for (int i = static_cast<int>(threadIdx.x % 128); i < words; i += 128) {
          asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(
                           v + panel * Layout::kPanelBytes + used * 128 + i * 16),
                       "r"(0)
                       : "memory");
        }
      }
      fence_proxy_async();
      barrier_sync(kTurnBarrier + C::kConsumers + consumer(), 128);
    }
  }

  __device__ __forceinline__ int q_slot(const Consumer& c) const {
    return consumer() * C::kStagesQ + QueryRing::stage(c.queries());
  }

  __device__ __forceinline__ Own next_tile(Consumer& c) const {
    const int slot = TileRing::stage(c.tiles());
    mbarrier_wait(barrier(Layout::kFullTile, slot), TileRing::parity(c.tiles()));
    c.next_tile();
    return own_at(slot);
  }
  // Slots of the tile begun last and of the one before.
  static __device__ __forceinline__ int slot_now(const Consumer& c) {
    return TileRing::stage(c.tiles() - 1);
  }
  static __device__ __forceinline__ int slot_before(const Consumer& c) {
    return TileRing::stage(c.tiles() - 2);
  }
  __device__ __forceinline__ Blocks blocks(const Consumer& c, const Own& t) const {
    if (!t.exists) return {};
    if constexpr (!Expressions::kHasMask) return Blocks(*this, slot_now(c));
    const Int4 w = load_shared(window_address(slot_now(c), consumer()));
    return Blocks({w.x, static_cast<unsigned>(w.y), static_cast<unsigned>(w.z),
                   static_cast<unsigned>(w.w)},
                  t.w.begin);
  }

  // Lets the blocks pass that this warpgroup sees nothing of.
  __device__ __forceinline__ void pass_empty(Consumer& c, Blocks& list) const {
    while (list.more() && list.empty_for_own()) {
      wait_full(Layout::kFullK, c.blocks);
      arrive(Layout::kEmptyK, KeyRing::stage(c.blocks));
      wait_turn();
      give_turn();
      wait_full(Layout::kFullV, c.blocks);
      arrive(Layout::kEmptyV, KeyRing::stage(c.blocks));
      ++c.blocks;
      list.advance(*this, slot_now(c));
    }
  }

  __device__ __forceinline__ void wait_q(const Consumer& c) const {
    mbarrier_wait(barrier(Layout::kFullQ, q_slot(c)), QueryRing::parity(c.queries()));
  }
  __device__ __forceinline__ void release_q(Consumer& c) const {
    arrive(Layout::kEmptyQ, q_slot(c));
    c.next_query();
  }

  // Tiles follow each other without a gap: S of the first block of the next tile is computed beside
  // the last O += P V of this one.
  __device__ __forceinline__ void consume() const {
    Consumer c;
    if (C::kTakeTurns && consumer() == C::kConsumers - 1) give_turn();
    Own t = next_tile(c);
    while (t.exists) {
      auto list = blocks(c, t);
      const bool loaded = list.more();
      pass_empty(c, list);
      if (list.more()) {
        attend(c, t, list);  // goes on to other tiles; the last one is done when it returns
      } else {
        if (loaded) {
          wait_q(c);
          release_q(c);
        }
        c.softmax = OnlineSoftmax{};
        float factor[2];
        close(c.softmax, slot_now(c), factor);
#pragma unroll
        for (int i = 0; i < C::kHeadDimV / 2; ++i) c.o[i] = 0;
        finish(c, slot_now(c), factor);
        t = next_tile(c);
      }
    }
  }

  // From the first block of `list`, of tile `t`, for as long as the next tile begins with a block
  // that this warpgroup works on. Leaves in `t` the tile after the last one done.
  __device__ __forceinline__ void attend(Consumer& c, Own& t,
                                         Blocks& list) const {
    float factor[2];       // of O: of the tile that ends, or of a step of the online softmax
    int used = 0;          // keys in use of the block whose P waits for its V
    bool pending = false;  // there is such a block
    bool add = false;      // O holds earlier blocks of the tile
    bool k_ready = false;
    while (true) {
      const bool begins = !pending || !list.more();
      if (pending && begins) {
        release_q(c);
        t = next_tile(c);
        list = blocks(c, t);
        if (!list.more() || list.empty_for_own()) {
          multiply_v(c, used, add);
          close(c.softmax, slot_before(c), factor);
          finish(c, slot_before(c), factor);
          return;
        }
      }
      if (begins) wait_q(c);
      const unsigned q = q_descriptor(c), k = k_descriptor(c), v = v_descriptor(c);
      if (!k_ready) wait_full(Layout::kFullK, c.blocks);
      wait_turn();
      pin_all(c);
      wgmma_fence();
      issue_qk(c, q, k);
      // In the first round there is no P yet: what is multiplied then is overwritten by the next product,
      // which does not add. A branch around the product would make the assembler wait for each.
      if (pending) {
        wait_full(Layout::kFullV, c.blocks - 1);
        clear_tail(c, used);
      }
      wgmma_fence();
      issue_pv(c, v, add);
      give_turn();
      if (begins) {
        if (pending) close(c.softmax, slot_before(c), factor);
        c.softmax = OnlineSoftmax{};
      }
      wgmma_wait<1>();
      pin(c.s);
      const int block = list.block();
      used = t.w.sequence.length_k - block * C::kBlockN;
      const bool mixed = list.mixed(), careful = begins || mixed;
      bool good = true;
      const float l[2] = {c.softmax.l[0], c.softmax.l[1]};
      if (careful) {
        float alpha[2];
        softmax_raised(c, t, block, mixed, alpha);
        if (!begins) {
          factor[0] = alpha[0];
          factor[1] = alpha[1];
        }
      } else {
        apply_score(c, t, block);
        good = c.softmax.template exponentiate<false, C::kPolynomial>(c.s, exponent_scale());
      }
      wgmma_wait<0>();
      pin(c.o);
      if (!good) {
        // A score far above all before it: once more from the product on, for this warp.
        c.softmax.l[0] = l[0];
        c.softmax.l[1] = l[1];
        warp_scores<Element, kStepsK>(
            c.s, shared + Layout::kQAt + q_slot(c) * Layout::kQ,
            static_cast<int>(threadIdx.x % 128 / 32) * 16, 8192,
            shared + Layout::kKAt + KeyRing::stage(c.blocks) * Layout::kK, Layout::kPanelBytes);
        softmax_raised(c, t, block, false, factor);
      }
      arrive(Layout::kEmptyK, KeyRing::stage(c.blocks));
      if (pending) arrive(Layout::kEmptyV, KeyRing::stage(c.blocks - 1));
      ++c.blocks;
      k_ready = is_full(Layout::kFullK, c.blocks);

      if (pending && begins) {
        finish(c, slot_before(c), factor);
      } else if (!begins && (careful || !good)) {
#pragma unroll
        for (int i = 0; i < C::kHeadDimV / 2; ++i) c.o[i] *= factor[i / 2 % 2];
      }
      add = !begins;
      pending = true;
      to_operand<Element>(c.s, c.probability);
      drop(c, t, block);
      list.advance(*this, slot_now(c));
    }
  }

  // O += P V and nothing else.
  __device__ __forceinline__ void multiply_v(Consumer& c, int used, bool add) const {
    wait_full(Layout::kFullV, c.blocks - 1);
    clear_tail(c, used);
    pin_all(c);
    wgmma_fence();
    issue_pv(c, v_descriptor(c), add);
    wgmma_wait<0>();
    pin(c.o);
    arrive(Layout::kEmptyV, KeyRing::stage(c.blocks - 1));
  }

  // The two rows of a thread at the end of a tile.
  struct Row {
    int query, head;
    bool exists, used;
  };
  __device__ __forceinline__ Row row_of(const Own& t, int i) const {
    const int row = t.row + 8 * i;
    const int query = row / kGroup;
    return {query, kGroup > 1 ? t.w.head * kGroup + row % kGroup : t.w.head,
            query < t.w.sequence.rows_q, query < t.w.sequence.length_q};
  }
  // Of a row among the partial results.
  __device__ __forceinline__ long long partial_row(const Work& w, const Row& r) const {
    return ((static_cast<long long>(w.split) * p.batch + w.sequence.batch) * p.heads_q + r.head) *
               p.seqlen_q +
           r.query;
  }

  // Writes LSE; returns in `factor` what O must be multiplied by.
  __device__ __forceinline__ void close(const OnlineSoftmax& softmax, int slot,
                                        float (&factor)[2]) const {
    constexpr float kLn2 = 0.6931471805599453f;
    const Own t = own_at(slot);
    const Sequence& q = t.w.sequence;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const Row r = row_of(t, i);
      const float l = quad_sum(softmax.l[i]);
      float sink = minus_infinity();
      if constexpr (C::kSink) {
        if (!C::kSplits || t.w.split == 0) sink = p.sink[r.head];
      }
      const Denominator end = denominator<C::kSink>(softmax.r[i] * kLn2, l, sink);
      float lse = end.lse;
      factor[i] = end.inverse;
      if (!r.used) {
        factor[i] = 0;
        lse = minus_infinity();
      }
      if constexpr (C::kDropout) factor[i] *= p.dropout_scale;
      if (!r.exists || threadIdx.x % 4 != 0) continue;
      if constexpr (C::kSplits) {
        p.partial_lse[partial_row(t.w, r)] = lse;
      } else if (p.lse != nullptr) {
        p.lse[(C::kPackedQ ? 0 : q.batch * p.lse_strides.batch) + r.head * p.lse_strides.head +
              (q.row_q + r.query) * p.lse_strides.row] = lse;
      }
    }
  }

  // Writes O and gives the tile's slot back.
  __device__ __forceinline__ void finish(Consumer& c, int slot, const float (&factor)[2]) const {
    const Own t = own_at(slot);
    const Sequence& q = t.w.sequence;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const Row r = row_of(t, i);
      if constexpr (C::kUsedQ) {  // such a row of Q may hold anything
#pragma unroll
        for (int j = 0; j < C::kHeadDimV / 4; ++j) {
          float& x = c.o[4 * (j / 2) + 2 * i + j % 2];
          x = r.used ? x : 0.f;
        }
      }
      if constexpr (C::kSplits) {
        float* o = p.partial_o + partial_row(t.w, r) * C::kHeadDimV;
        store_row_f32<C::kHeadDimV>(c.o, i, factor[i], o, r.exists);
      } else {
        char* o = static_cast<char*>(p.o) +
                  2 * ((C::kPackedQ ? 0 : q.batch * p.o_strides.batch) +
                       (q.row_q + r.query) * p.o_strides.row + r.head * p.o_strides.head);
        store_row<Element, C::kHeadDimV>(c.o, i, factor[i], o, r.exists);
      }
    }
    __syncwarp();
    arrive(Layout::kEmptyTile, slot);
  }

  __device__ __forceinline__ void run() const {
    if (threadIdx.x == 0) {
      for (int i = 0; i < Layout::kQs; ++i) {
        mbarrier_init(barrier(Layout::kFullQ, i), 1);
        mbarrier_init(barrier(Layout::kEmptyQ, i), 4);
      }
      for (int i = 0; i < Layout::kTileStages; ++i) {
        mbarrier_init(barrier(Layout::kFullTile, i), 1);
        mbarrier_init(barrier(Layout::kEmptyTile, i), 4 * C::kConsumers);
      }
      for (int i = 0; i < C::kStages; ++i) {
        mbarrier_init(barrier(Layout::kFullK, i), 1);
        mbarrier_init(barrier(Layout::kFullV, i), 1);
        mbarrier_init(barrier(Layout::kEmptyK, i), 4 * C::kConsumers);
        mbarrier_init(barrier(Layout::kEmptyV, i), 4 * C::kConsumers);
      }
      mbarrier_init_fence();
    }
    __syncthreads();
    if (threadIdx.x < 128) {
      release_registers<C::kProducerRegisters>();
      if (threadIdx.x < 32) produce();
    } else {
      take_registers<C::kConsumerRegisters>();
      consume();
    }
  }
};

template <class C, class Expressions>
__device__ __forceinline__ void forward_sm90(const ForwardParams& p, const Expressions& e,
                                             const ForwardMaps& maps) {
  extern __shared__ __align__(1024) char memory[];
  ForwardSm90<C, Expressions>{p, e, maps, shared_address(memory)}.run();
}

}  // namespace attn::device
