// The producers of the Hopper backward kernel, a thread each: one deals tiles and makes the steps;
// three ask the copy engine for K, Q and LSE, for V, dO and D, and for the additions of dQ. Where
// tiles take turns, one asks for all loads, and a warp keeps the turns (turns.cuh).
#pragma once

#include "device.cuh"
#include "kernels/backward_sm90/tiles.cuh"
#include "kernels/backward_sm90/turns.cuh"
#include "schedule/dealer.cuh"

namespace attn::device {

// The blocks of queries of a tile that see some of it, head after head of its group.
template <class C>
class BackwardBlocks {
 public:
  struct Block {
    int head_q, block;
    bool mixed;
  };
  ATTN_DEVICE BackwardBlocks(const BackwardParams& p, const KeyTile& t)
      : p_(p), t_(t), head_(t.head_k * group()), words_(words()) {}
  // False when there are no more.
  ATTN_DEVICE bool next(Block& to) {
    while (present_ == 0) {
      if (++window_ == p_.query_windows) {
        window_ = 0;
        if (++head_ == (t_.head_k + 1) * group()) return false;
        words_ = words();
      }
      const QueryWord w = words_[window()];
      mixed_ = w.mixed;
      present_ = ~w.empty;
    }
    const int bit = 31 - __clz(static_cast<int>(t_.from_last ? present_ : present_ & -present_));
    present_ &= ~(1u << bit);
    to = {head_, window() * 32 + bit, (mixed_ >> bit & 1) != 0};
    if constexpr (C::kOrdered) seen_ = seen(to)[t_.key_block / 32];
    return true;
  }
  // When the turn of the tile comes to add to the block that next() gave last.
  ATTN_DEVICE int turn_after(const Block& b) const {
    return DqTurns<C>::turn_after(p_, seen(b), seen_, t_.key_block, t_.from_last);
  }

 private:
  ATTN_DEVICE int group() const { return p_.group; }
  ATTN_DEVICE int window() const { return t_.from_last ? p_.query_windows - 1 - window_ : window_; }
  ATTN_DEVICE const QueryWord* words() const {
    return query_words_at<C>(p_, t_.batch, head_, t_.key_block);
  }
  ATTN_DEVICE const unsigned* seen(const Block& b) const {
    return DqTurns<C>::seen(p_, t_.batch, b.head_q, b.block);
  }

  const BackwardParams& p_;
  const KeyTile& t_;
  int head_, window_ = -1;
  const QueryWord* words_;
  unsigned present_ = 0, mixed_ = 0;
  unsigned seen_ = 0;  // DqTurns::turn_after
};

template <class C, bool kOrdered = C::kOrdered>
struct BackwardDealer : TileDealer {
  ATTN_DEVICE explicit BackwardDealer(const BackwardParams& p)
      : TileDealer(p.counter, C::kCluster) {}
};
template <class C>
struct BackwardDealer<C, true> : RunningDealer {
  ATTN_DEVICE explicit BackwardDealer(const BackwardParams& p)
      : RunningDealer(DqTurns<C>::drawn(p)) {}
};

template <class C>
struct BackwardSm90Producer {
  using Tiles = BackwardSm90Tiles<C>;
  using Layout = typename Tiles::Layout;
  static constexpr int kQueries = Tiles::kQueries, kKeys = Tiles::kKeys;
  static constexpr int kTileKeys = Tiles::kTileKeys;

  const Tiles& tiles;

  ATTN_DEVICE void publish(unsigned n, const BackwardStep& s) const {
    tiles.step_ring().wait_empty(n);
    tiles.put_step(n, s);
    const unsigned ready = tiles.step_ring().full(n);
    if constexpr (C::kCluster > 1) {
      const unsigned at = tiles.step_address(n);
      fence_proxy_async();
      bulk_send(cluster_address(at, 1), at, Layout::kStepBytes, cluster_address(ready, 1));
    }
    mbarrier_arrive(ready);
  }
  // Receives steps in the second block of threads of a cluster: those that the first one makes
  // arrive as bytes. Their places are given back there.
  ATTN_DEVICE void receive_steps() const {
    for (unsigned n = 0;; ++n) {
      mbarrier_arrive_expect(tiles.step_ring().full(n), Layout::kStepBytes);
      tiles.wait_for_step(n);
      if ((tiles.step_flags(n) & BackwardStep::kEnd) != 0) return;
    }
  }

  // K and V of a tile that is some steps away: to L2, so that its start does not wait for memory.
  ATTN_DEVICE void prefetch_keys(const KeyTile& t, const Sequence& q) const {
    const auto prefetch = [&](const TensorMap& map, int panels, int key0) {
#pragma unroll 1
      for (int panel = 0; panel < panels; ++panel) {
        tma_prefetch_4d(map, 64 * panel, q.row_k + key0, t.head_k, C::kPackedK ? 0 : t.batch);
      }
    };
#pragma unroll 1
    for (int key = 0; key < kTileKeys; key += kKeys) {
      prefetch(tiles.maps.k, Layout::kPanels, t.key_block * kTileKeys + key);
      prefetch(tiles.maps.v, Layout::kPanelsV, t.key_block * kTileKeys + key);
    }
  }

  // Makes the steps of a tile, from step n on: one for each block of queries that sees some of it.
  ATTN_DEVICE void make_tile_steps(const KeyTile& t, const Sequence& q, unsigned& n) const {
    BackwardBlocks<C> blocks(tiles.p, t);
    typename BackwardBlocks<C>::Block block{t.head_k * tiles.p.group, 0, true};
    // A tile that nobody sees has a step all the same, of which all is masked.
    bool more = blocks.next(block);
    int flags = BackwardStep::kFirst;
    if (C::kOrdered && !more) flags |= BackwardStep::kUnseen;
    do {
      BackwardStep s{
          flags,
          block.block * kQueries,
          t.key_block * kTileKeys,
          block.head_q,
          t.batch,
          q.length_q,
          q.length_k,
          (t.batch * tiles.p.heads_q + block.head_q) * tiles.p.query_blocks + block.block};
      if (block.mixed) s.flags |= BackwardStep::kMixed;
      if constexpr (C::kOrdered) {
        s.flags |= blocks.turn_after(block) << BackwardStep::kAfterShift;
      }
      if (more) more = blocks.next(block);
      if (!more) s.flags |= BackwardStep::kLast;
      publish(n++, s);
      flags = 0;
    } while (more);
  }
  // Deals tiles and makes their steps.
  ATTN_DEVICE void make_steps() const {
    BackwardDealer<C> dealer(tiles.p);
    unsigned n = 0;  // steps so far
    // A tile once drawn waits for this block of threads, however many steps are before it, so it is
    // drawn when few are.
    constexpr unsigned kLate = 6;
    const auto draw = [&] {
      if (n > 0) {
        tiles.step_ring().wait_empty(n + kLate);
      }
      return dealer.next();
    };
    for (int index = draw(); index < tiles.p.num_tiles; index = draw()) {
      const KeyTile t = key_tile_at<C>(tiles.p, index);
      const Sequence q = sequence_of<C>(tiles.p, t.batch);
      if (t.key_block * kTileKeys >= q.rows_k) continue;
      prefetch_keys(t, q);
      make_tile_steps(t, q, n);
    }
#pragma unroll 1
    for (int i = 0; i < C::kScoreGroups; ++i) {
      publish(n++, {BackwardStep::kEnd, 0, 0, 0, 0, 0, 0, 0});
    }
    dealer.finish();
  }

  // Asks for the keys of a tile and the rows of each of its steps, with a float for each row: K, Q
  // and LSE, or V, dO and D.
  template <bool kOfV>
  struct Loads {
    const BackwardSm90Producer& producer;
    const TensorMap &keys, &rows;
    const float* vector;
    unsigned tiles = 0;
    int row_q = 0;  // of a packed tensor: where the sequence starts

    ATTN_DEVICE void operator()(unsigned n, const BackwardStep& s) {
      producer.load<kOfV>(n, s, *this);
    }
  };
  template <bool kOfV>
  ATTN_DEVICE Loads<kOfV> loads() const {
    const TensorMap &keys = kOfV ? tiles.maps.v : tiles.maps.k,
                    &rows = kOfV ? tiles.maps.d_o : tiles.maps.q;
    prefetch_tensor_map(keys);
    prefetch_tensor_map(rows);
    return {*this, keys, rows, kOfV ? tiles.p.d : tiles.p.lse2};
  }
  // Asks for K, with that of the other block of threads for dQ, or for V, of the tile whose first
  // step is s.
  template <bool kOfV>
  ATTN_DEVICE void load_keys(const BackwardStep& s, Loads<kOfV>& x) const {
    using Side = BackwardSide<C, kOfV>;
    const Sequence q = sequence_of<C>(tiles.p, s.batch);
    const auto ring = kOfV ? tiles.v_ring() : tiles.k_ring();
    const unsigned ready = ring.full(0);
    ring.wait_empty(x.tiles++);
    constexpr int kOther = kOfV ? 0 : Layout::kOtherK;
    mbarrier_arrive_expect(ready, Side::kPanels * Layout::kKeyPanel + kOther);
    const auto load = [&](int at, int panel, int key0) {
      tma_load_4d(tiles.shared + static_cast<unsigned>(at), x.keys, ready, 64 * panel,
                  q.row_k + key0, s.head_q / tiles.p.group, C::kPackedK ? 0 : s.batch, kEvictFirst);
    };
#pragma unroll
    for (int panel = 0; panel < Side::kPanels; ++panel) {
      load(Side::kKeysAt + panel * Layout::kKeyPanel, panel, s.key0);
    }
#pragma unroll
    for (int panel = 0; panel < kOther / Layout::kKeyPanel; ++panel) {
      load(Layout::kOtherKAt + panel * Layout::kKeyPanel,
           static_cast<int>(tiles.rank) * Layout::kOwnPanels + panel,
           s.key0 + (tiles.rank == 0 ? kKeys : -kKeys));
    }
  }
  // Asks in the order in which places become free: for Q of a tile's first step before its K, for V
  // before dO.
  template <bool kOfV>
  ATTN_DEVICE void load(unsigned n, const BackwardStep& s, Loads<kOfV>& x) const {
    using Side = BackwardSide<C, kOfV>;
    const bool first = (s.flags & BackwardStep::kFirst) != 0;
    if (first) x.row_q = sequence_of<C>(tiles.p, s.batch).row_q;
    if (kOfV && first) load_keys(s, x);
    const typename Side::RowRing ring{tiles.shared, Side::kFullRows, Side::kEmptyRows};
    const int stage = ring.stage(n);
    const unsigned ready = ring.full_at(stage);
    ring.wait_empty(n);
    if (!kOfV && n >= Layout::kStepLag) {
      const unsigned place = tiles.step_ring().empty(n - Layout::kStepLag);
      if constexpr (C::kCluster > 1) {
        mbarrier_arrive_cluster(cluster_address(place, 0));
      } else {
        mbarrier_arrive(place);
      }
    }
    if ((s.flags & BackwardStep::kEnd) != 0) return mbarrier_arrive(ready);
    mbarrier_arrive_expect(ready, Side::kRowsBytes + Layout::kRows);
    const unsigned to =
        tiles.shared + static_cast<unsigned>(Side::kRowsAt + stage * Side::kRowsBytes);
#pragma unroll
    for (int panel = 0; panel < Side::kPanels; ++panel) {
      tma_load_4d(to + static_cast<unsigned>(panel * Layout::kRowPanel), x.rows, ready, 64 * panel,
                  x.row_q + s.query0, s.head_q, C::kPackedQ ? 0 : s.batch, kEvictLast);
    }
    bulk_load(tiles.shared + static_cast<unsigned>(Side::kVectorAt + stage * Layout::kRows),
              x.vector + static_cast<long long>(s.place) * kQueries, Layout::kRows, ready);
    if (!kOfV && first) load_keys(s, x);
  }
  // Loads of one side, or of both.
  template <class... Sides>
  ATTN_DEVICE void produce(Sides... sides) const {
    int ends = 0;
    for (unsigned n = 0;; ++n) {
      tiles.wait_for_step(n);
      const BackwardStep s = tiles.step(n);
      (sides(n, s), ...);
      if ((s.flags & BackwardStep::kEnd) != 0 && ++ends == C::kScoreGroups) return;
    }
  }

  // Asks for bytes of a staged piece of dQ of step s to be added to memory, or to be stored there,
  // where tiles take turns and this is the first.
  static ATTN_DEVICE void add(const BackwardStep& s, float* to, unsigned staged, unsigned bytes) {
    if (C::kOrdered && s.is_first_turn()) {
      bulk_store(to, staged, bytes);
    } else {
      bulk_add(to, staged, bytes);
    }
    bulk_commit();
  }
  // Asks for staged pieces of dQ to be added, in shares of which at most two wait at a time, so
  // that loads come between them. The place of a piece is given back when it was read, which is
  // waited for while the next is on its way, or when there is no next yet. Where tiles take turns,
  // the first piece of each waits for it, and a place is given back when its piece was added.
  ATTN_DEVICE void add_staged() const {
    using Order = typename Layout::Order;
    constexpr int kShare = 4096;
    unsigned pieces = 0, given_back = 0;  // so far
    constexpr unsigned kTurnPieces = Layout::kTurnPieces;
    const auto begins_turn = [&] { return C::kOrdered && pieces % kTurnPieces == 0; };
    const auto give_back = [&] {
      const unsigned turn = given_back / kTurnPieces;
      mbarrier_arrive(tiles.staged_ring().empty(given_back++));
      if (C::kOrdered && given_back % kTurnPieces == 0) {
        mbarrier_arrive(tiles.turn_ring().empty(turn));
      }
    };
    const auto is_next = [&] {  // staged, and its turn has come
      const unsigned turn = pieces / kTurnPieces;
      return mbarrier_try(tiles.staged_ring().full(pieces), Tiles::StagedRing::parity(pieces)) &&
             (!begins_turn() ||
              mbarrier_try(tiles.turn_ring().full(turn), Tiles::TurnRing::parity(turn)));
    };
    for (unsigned n = 0;; ++n) {
#pragma unroll 1
      for (int i = 0; i < Layout::kOwnPieces; ++i, ++pieces) {
        const int piece = static_cast<int>(tiles.rank) * Layout::kOwnPieces + i;
        const int stage = Tiles::StagedRing::stage(pieces);
        const unsigned staged =
            tiles.shared + static_cast<unsigned>(Layout::kStagedAt + stage * Layout::kStaged);
        if (given_back < pieces && !is_next()) {
          wait_for_additions<0>();
          give_back();
        }
        tiles.staged_ring().wait(pieces);
        const BackwardStep s = tiles.step(n);
        if ((s.flags & BackwardStep::kEnd) != 0) return bulk_wait();
        float* const to = tiles.p.dq_sum +
                          static_cast<long long>(s.place) * (kQueries * C::kHeadDim) +
                          piece * Order::kPiece;
        if (C::kScoreGroups > 1 && i == 0 && (s.flags & BackwardStep::kLast) != 0) {
          // Steps are staged in order: no score warpgroup needs this tile any more.
          mbarrier_arrive(tiles.v_ring().empty(0));
          mbarrier_arrive(tiles.k_ring().empty(0));
        }
        if (begins_turn()) {
          const unsigned turn = pieces / kTurnPieces;
          tiles.turn_ring().wait(turn);
          fence_proxy_async_global();
        }
        const int bytes = 4 * kQueries * Order::piece_columns(piece);
        fence_proxy_async();
        if (C::kOrdered && (s.flags & BackwardStep::kUnseen) != 0) {  // zeros
          wait_for_additions<0>();
          if (given_back < pieces) give_back();
          continue;
        }
#pragma unroll 1
        for (int at = 0; at < bytes; at += kShare) {
          add(s, to + at / 4, staged + static_cast<unsigned>(at),
              static_cast<unsigned>(min(kShare, bytes - at)));
          if (given_back < pieces) {
            wait_for_additions<1>();
            give_back();
          } else {
            bulk_wait_read<1>();  // the other wait clears L1
          }
        }
      }
    }
  }
  // Waits until what this thread asked to be added, but for the last kPending shares, was read from
  // shared memory; where tiles take turns, until it was added.
  template <int kPending>
  static ATTN_DEVICE void wait_for_additions() {
    if constexpr (C::kOrdered) {
      bulk_wait<kPending>();
    } else {
      bulk_wait_read<kPending>();
    }
  }

  ATTN_DEVICE void run() const {
    if (threadIdx.x == 0) {
      if constexpr (C::kOrdered) {
        produce(loads<false>(), loads<true>());
      } else {
        produce(loads<false>());
      }
    } else if (threadIdx.x / 32 == 1) {
      if constexpr (C::kOrdered) {
        BackwardTurnKeeper<C>{tiles}.run();
      } else if (threadIdx.x == 32) {
        produce(loads<true>());
      }
    } else if (threadIdx.x == 64) {
      add_staged();
    } else if (threadIdx.x == 96) {
      if (tiles.rank == 0) {
        make_steps();
      } else {
        receive_steps();
      }
    }
  }
};

}  // namespace attn::device
