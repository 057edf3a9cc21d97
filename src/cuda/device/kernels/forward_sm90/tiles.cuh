// What producer and consumers of the Hopper forward kernel share: its arguments, the tiles at hand
// in shared memory, their blocks of keys, and the barriers.
#pragma once

#include "device.cuh"
#include "divide_up.cuh"
#include "kernels/forward_sm90/layout.cuh"
#include "params.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/warpgroup.cuh"
#include "schedule/gathered_blocks.cuh"
#include "schedule/key_blocks.cuh"
#include "schedule/key_words.cuh"
#include "schedule/query_tile.cuh"
#include "schedule/transposed_values.cuh"
#include "tile/cache_type.cuh"

namespace attn::device {

template <class C, class Expressions>
struct ForwardSm90Tiles {
  using Layout = ForwardSm90Layout<C>;
  static_assert(Layout::kBytes == C::kSharedBytes);  // that the launch gives
  using Element = typename C::Element;               // of P, but for 8-bit floats
  using Operands = OperandsOf<C>;
  static constexpr int kBlockM = 64 * C::kConsumers;
  static constexpr int kGroup = C::kGroup;  // a power of two, as it divides 64
  static constexpr int kStepsK = divide_up < C::kFloat8 ? 32 : 16 > (C::kHeadDim);

  // Whether the references of a block were good is asked of l when the next products are under way:
  // P of any size is as good an operand as P below 1 unless it is infinite, as bf16 has the
  // exponents of float32; 8-bit floats are packed again where they end (keep_float8). Rows whose l
  // grew too far in one step are lost, and their tiles computed
  // again by rounds that take the maximum of each block first.
  static constexpr bool kJudgesLate =
      (C::kFloat8 || Element::kExponent == 0x7f80) && !Expressions::kHasScore;
  // Rounds of blocks that need no mask have a loop of their own. Not with a score whose values, in
  // two loops, spill; those of a tanh by polynomials, with nothing else of its row, do not.
  static constexpr bool kHasPlainRounds =
      !Expressions::kHasScore ||
      (Expressions::kHasSmallTanh && Expressions::RowShared::kCount == 0);
  // References may be far from 0 (softmax/online.cuh). A tanh alone is not.
  static constexpr bool kFar = Expressions::kHasScore && !kHasPlainRounds;
  // The first of the named barriers, of which each consumer has one of each kind.
  static constexpr int kTurnBarrier = 1, kWarpgroupBarrier = kTurnBarrier + C::kConsumers;
  static constexpr bool kTransposes = Layout::kTransposes;
  // Rows of O may have to be computed again.
  static constexpr bool kFollowed = C::kHidesKeys || kJudgesLate;

  const ForwardParams& p;
  const Expressions& e;
  const ForwardMaps& maps;
  unsigned shared;  // 1024-byte aligned
  int consumer;     // number of this warpgroup among them, from uniform(); -1: a producer

  using Work = QueryTile<C>;

  // Under a mask blocks of rows end where the rows end, in steps of 16, so that the one that is not
  // full is the first, which under a causal mask sees the fewest keys. It begins before row 0,
  // where all rows of a warp are, or none. Not where the mask was classified ahead, which may
  // follow blocks of a buffer from row 0 on.
  static constexpr bool kEndAligned = Expressions::kHasMask && !C::kClassified;
  static constexpr int kNoTile = static_cast<int>(0x80000000);  // as row0: there are no more
  static ATTN_DEVICE bool is_tile(const Work& w) {
    return kEndAligned ? w.row0 != kNoTile : w.row0 >= 0;
  }
  ATTN_DEVICE Work work_at(const OutputTile& tile) const {
    Work w{
        own_sequence_of<C>(p, tile.batch), tile.head_k, tile.split, tile.m_block * kBlockM, 0, 0};
    if constexpr (kEndAligned) {
      const int rows = divide_up<16>(w.sequence.rows_q * kGroup) * 16;
      w.row0 += rows - divide_up<kBlockM>(rows) * kBlockM;
    }
    w.set_blocks(p, p.least_blocks);
    return w;
  }

  // The address of a tile in shared memory.
  ATTN_DEVICE unsigned slot_address(int slot) const {
    return shared + static_cast<unsigned>(Layout::kTileAt + Layout::kTileBytes * slot);
  }
  ATTN_DEVICE void put(int slot, const Work& w) const {
    const unsigned at = slot_address(slot);
    store_shared(at, {w.row0, w.head, w.sequence.batch, w.split});
    store_shared(at + 16,
                 {w.sequence.row_q, w.sequence.rows_q, w.sequence.length_q, w.sequence.length_k});
    if constexpr (C::kPackedK || kFollowed) {
      store_shared(at + 32, {w.sequence.row_k, 0, 0, 0});
    }
  }
  ATTN_DEVICE Work get(int slot) const {
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
    w.set_blocks(p, p.least_blocks);
    return w;
  }

  // Whether a warp of the consumers has stored rows of the tile that are lost or not finite: a byte
  // each, which put() makes 0.
  static_assert(4 * C::kConsumers <= 12);
  ATTN_DEVICE unsigned flag_address(int slot, int warp) const {
    return slot_address(slot) + 36 + static_cast<unsigned>(warp);
  }
  // For a whole warp. Warps before row 0, whose rows are of the sequence before, do not count: they
  // must not have this one's computed again.
  ATTN_DEVICE bool has_flags(int slot) const {
    const int warp = static_cast<int>(threadIdx.x % 32);
    bool flag = warp < 4 * C::kConsumers && load_shared_byte(flag_address(slot, warp)) != 0;
    if constexpr (kEndAligned) flag = flag && load_shared(slot_address(slot)).x + 16 * warp >= 0;
    return __any_sync(~0u, flag);
  }

  // A tile without rows. It lets consumers end the tile before while it is open what comes next.
  static constexpr int kPauseRow = 0x7fffff01;  // where no tile begins

  // The list of tiles with lost rows, in shared memory: the follower makes it, the producer of
  // tiles deals from it. These are for a whole warp, of which the first lane alone reads and writes
  // how many there are.
  ATTN_DEVICE int lost_count() const {
    const bool first = threadIdx.x % 32 == 0;
    return __shfl_sync(~0u, first ? load_shared_relaxed(shared + Layout::kLostCount) : 0, 0);
  }
  // Whether there is room for one more tile, and for those under way, which the follower may be
  // adding meanwhile.
  ATTN_DEVICE bool has_room_for_lost() const {
    return lost_count() + Layout::kTileStages < Layout::kLostTiles;
  }
  ATTN_DEVICE void add_lost(int slot) const {
    if (threadIdx.x % 32 != 0) return;
    const int count = load_shared_word(shared + Layout::kLostCount);
    store_shared(shared + static_cast<unsigned>(Layout::kLostAt + 16 * count),
                 load_shared(slot_address(slot)));
    store_shared_relaxed(shared + Layout::kLostCount, static_cast<unsigned>(count + 1));
  }
  ATTN_DEVICE Work lost_tile(int i) const {
    const Int4 a = load_shared(shared + static_cast<unsigned>(Layout::kLostAt + 16 * i));
    Work w{own_sequence_of<C>(p, a.z), a.y, a.w, a.x, 0, 0};
    w.set_blocks(p, p.least_blocks);
    return w;
  }
  // 1 while tiles are computed for the first time, 0 while they are computed again.
  ATTN_DEVICE unsigned trusts_references() const {
    return static_cast<unsigned>(load_shared_word(shared + Layout::kTrusts));
  }
  // For one thread, while no tile is under way.
  ATTN_DEVICE void trust_references() const {
    store_shared(shared + Layout::kLostCount, {0, 1, 0, 0});
  }
  ATTN_DEVICE void distrust_references() const { store_shared_word(shared + Layout::kTrusts, 0); }

  ATTN_DEVICE QueryRange queries(const Work& w, int row, int rows) const {
    QueryRange range{row / kGroup, min((row + rows - 1) / kGroup, w.sequence.length_q - 1), w.head,
                     w.head};
    if constexpr (kEndAligned) {
      range.first = max(range.first, 0);
      if (row + rows <= 0) range.last = -1;
    }
    if constexpr (kGroup > 1) {
      range.head_first = w.head * kGroup;
      range.head_last = range.head_first + kGroup - 1;
    }
    return range;
  }

  // The blocks of keys as a consumer goes through them, and as a producer does.
  template <bool kOwn, bool kGathers>
  struct BlocksOf {
    using Type = KeyBlocks<C, Expressions, ForwardSm90Tiles, kOwn>;
  };
  template <bool kOwn>
  struct BlocksOf<kOwn, true> {
    using Type = GatheredBlocks<C, ForwardSm90Tiles>;
  };
  using Blocks = typename BlocksOf<true, C::kGathers>::Type;
  using AllBlocks = typename BlocksOf<false, C::kGathers>::Type;
  // Which keys a tile of keys has: the number of a block of kBlockN in a row, or a BlockPair.
  using Place = typename Blocks::Place;
  static_assert(!C::kGathers || (C::kBlockN == 2 * kGatheredKeys && !C::kSplits && !C::kDropout));
  // Columns whose keys are below the length; more than there are where all are.
  static ATTN_DEVICE int used_keys(const Work& w, int place) {
    return w.sequence.length_k - place * C::kBlockN;
  }
  static ATTN_DEVICE int used_keys(const Work& w, const BlockPair& place) {
    return place.used(w.sequence.length_k);
  }
  ATTN_DEVICE KeyRange keys(int slot) const {
    const Work w = get(slot);
    const QueryRange all = queries(w, w.row0, kBlockM);
    return {all,
            consumer < 0 ? all : queries(w, w.row0 + 64 * consumer, 64),
            w.sequence.batch,
            w.sequence.length_q,
            w.sequence.length_k,
            w.begin,
            w.end};
  }

  // The words of a window of a tile, where the mask is classified ahead.
  ATTN_DEVICE const KeyWord* key_words(int slot, int window) const {
    const Int4 tile = load_shared(slot_address(slot));
    return key_words_at<C>(p, tile.z, tile.y, tile.x / kBlockM, window);
  }
  // The list of a tile, where its blocks are gathered.
  ATTN_DEVICE const KeyWord* gathered(int slot) const {
    const Int4 tile = load_shared(slot_address(slot));
    return gathered_blocks_at<C>(p, tile.z, tile.y, tile.x / kBlockM);
  }
  ATTN_DEVICE int part() const { return consumer; }

  using KeyRing = Ring<C::kStagesK, Layout::kFullK, Layout::kEmptyK>;
  using ValueRing = Ring<C::kStagesV, Layout::kFullV, Layout::kEmptyV>;
  using QueryRing = Ring<C::kStagesQ, Layout::kFullQ, Layout::kEmptyQ>;
  using TileRing = Ring<Layout::kTileStages, Layout::kFullTile, Layout::kEmptyTile>;
  // The ring of tiles whose O is stored, for the follower; TileRing says when they were put there.
  using StoredRing = Ring<Layout::kTileStages, Layout::kStoredTile, Layout::kStoredTile>;
  ATTN_DEVICE KeyRing k_ring() const { return {shared}; }
  ATTN_DEVICE ValueRing v_ring() const { return {shared}; }
  // The ring of V as its producer fills it, where it is transposed before consumers see it.
  using LoadedRing = Ring<C::kStagesV, Layout::kLoadedV, Layout::kEmptyV>;
  ATTN_DEVICE LoadedRing loaded_ring() const { return {shared}; }
  ATTN_DEVICE QueryRing q_ring(int of_consumer) const {
    return {shared, of_consumer * C::kStagesQ};
  }
  ATTN_DEVICE TileRing tile_ring() const { return {shared}; }
  ATTN_DEVICE StoredRing stored_ring() const { return {shared}; }

  // The query head of a row of a tile.
  static ATTN_DEVICE int query_head(const Work& w, int row) {
    return kGroup > 1 ? w.head * kGroup + (row & (kGroup - 1)) : w.head;
  }
  ATTN_DEVICE int key_head(const Work& w) const {
    return kGroup > 1 ? w.head : w.head / (p.heads_q / p.heads_k);
  }

  // What a score of 8-bit floats, and an element of O, must be multiplied by: scales of a batch
  // entry and head.
  ATTN_DEVICE float score_scale(const Work& w) const {
    const auto& params = static_cast<const CachedForwardParams&>(p);
    return scale_of(params.scale_q, params.scale_q_strides, w, w.head) *
           scale_of(params.scale_k, params.scale_k_strides, w, key_head(w));
  }
  ATTN_DEVICE float value_scale(const Work& w) const {
    const auto& params = static_cast<const CachedForwardParams&>(p);
    return scale_of(params.scale_v, params.scale_v_strides, w, key_head(w));
  }
  static ATTN_DEVICE float scale_of(const float* scales, const Strides& strides, const Work& w,
                                    int head) {
    if (scales == nullptr) return 1;
    return cache_scale(scales[w.sequence.batch * strides.batch + head * strides.head]);
  }

  // The first blocks of keys as each consumer sees them, so that others begin at once.
  ATTN_DEVICE unsigned window_address(int slot, int of_consumer) const {
    return slot_address(slot) + 48 + static_cast<unsigned>(16 * of_consumer);
  }
  ATTN_DEVICE void put_windows(int slot, const Work& w, const AllBlocks& list) const {
    if constexpr (C::kGathers) {
      if (threadIdx.x % 32 == 0) store_shared(window_address(slot, 0), list.beginning());
      __syncwarp();
    } else if constexpr (Expressions::kHasMask) {
      const int lane = static_cast<int>(threadIdx.x % 32);
      const auto store = [&](int i, const KeyWindow& window) {
        store_shared(window_address(slot, i),
                     {window.next, static_cast<int>(window.present), static_cast<int>(window.mixed),
                      static_cast<int>(window.empty)});
      };
      if constexpr (C::kClassified) {
        // Each by a lane of its own, since words come from memory; stored by the one that announces
        // the tile.
        const KeyWindow own = list.window(*this, slot, min(lane, C::kConsumers - 1));
#pragma unroll
        for (int i = 0; i < C::kConsumers; ++i) {
          const KeyWindow window{own.next, own.present, __shfl_sync(~0u, own.mixed, i),
                                 __shfl_sync(~0u, own.empty, i)};
          if (lane == 0) store(i, window);
        }
      } else {
        const KeyRange range = keys(slot);
#pragma unroll
        for (int i = 0; i < C::kConsumers; ++i) {
          const KeyWindow window = list.window(*this, range, queries(w, w.row0 + 64 * i, 64));
          if (lane == 0) store(i, window);
        }
      }
      __syncwarp();
    }
  }

  // The list of all blocks of a tile, from there on.
  template <class List>
  ATTN_DEVICE List first_blocks(int slot, int of_consumer, const Work& w) const {
    if constexpr (!Expressions::kHasMask) return List(*this, slot);
    const Int4 v = load_shared(window_address(slot, C::kGathers ? 0 : of_consumer));
    if constexpr (C::kGathers) {
      return List(*this, slot, v);
    } else {
      return List(
          {v.x, static_cast<unsigned>(v.y), static_cast<unsigned>(v.z), static_cast<unsigned>(v.w)},
          w.begin);
    }
  }

  // One tile as a consumer sees it.
  struct Own {
    Work w;
    int row;  // of the thread
    bool exists;
  };
  ATTN_DEVICE Own own_at(int slot) const {
    const Work w = get(slot);
    return {w,
            w.row0 + 64 * consumer + static_cast<int>(threadIdx.x % 128 / 32) * 16 +
                static_cast<int>(threadIdx.x % 32 / 4),
            is_tile(w)};
  }
};

}  // namespace attn::device
