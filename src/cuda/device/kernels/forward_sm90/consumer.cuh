// The main loop of a consumer of the Hopper forward kernel: a warpgroup that goes through the
// blocks of one tile after the other.
#pragma once

#include "device.cuh"
#include "kernels/forward_sm90/epilogue.cuh"
#include "kernels/forward_sm90/softmax.cuh"

namespace attn::device {

// Tiles follow each other without a gap. A round computes S of a block beside O += P V of the block
// before, then P; the round that begins a tile ends the tile before.
template <class C, class Expressions>
struct ForwardSm90Consumer {
  using Tiles = ForwardSm90Tiles<C, Expressions>;
  using Softmax = ForwardSm90Softmax<C, Expressions>;
  using Epilogue = ForwardSm90Epilogue<C, Expressions>;
  using State = ForwardSm90State<C>;
  using Layout = typename Tiles::Layout;
  using Blocks = typename Tiles::Blocks;
  using Own = typename Tiles::Own;
  using RowEnds = typename Epilogue::RowEnds;

  const Tiles& tiles;
  ForwardSm90Products<C, Expressions> products;
  Softmax softmax;
  Epilogue epilogue;

  ATTN_DEVICE void consume() const {
    State c;
    if (C::kTakeTurns && tiles.consumer == C::kConsumers - 1) products.give_turn();
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
        write_nothing_seen(c);
        t = next_tile(c);
      }
    }
  }

  // Goes on from the first block of `list`, of tile `t`, for as long as the next tile begins with a
  // block that this warpgroup works on. Leaves in `t` the tile after the last one done.
  ATTN_DEVICE void attend(State& c, Own& t, Blocks& list) const {
    Pass pass;
    pass.large = pass.add = false;
    pass.used = 0;
    c.k_ready = false;
    rounds<Kind::any>(c, t, list, pass);
  }

  // What rounds are of: blocks of any kind, from tile to tile; or those that follow the first of a
  // tile and need no mask, for as long as these come. What stands between the softmax of a block
  // and the products of the next is time in which tensor cores wait: unmasked rounds decide nothing
  // there, and look ahead while products run.
  enum class Kind { any, unmasked };
  // What a round leaves to the next one.
  struct Pass {
    bool large;  // a score was large, or is far: further blocks of the tile are careful
    bool add;    // O holds earlier blocks of the tile
    int used;    // keys in use of the block whose P waits for its V
  };

  // FlashAttention-3, algorithm 2: S of a block beside O += P V of the one before, then P. The
  // round that begins a tile ends the tile before. All warps of the warpgroup leave together, as
  // they issue the same products; what differs between them is a branch inside.
  template <Kind kKind>
  ATTN_DEVICE void rounds(State& c, Own& t, Blocks& list, Pass& pass) const {
    constexpr bool kUnmasked = kKind == Kind::unmasked;
    constexpr bool kLate = kUnmasked && Tiles::kJudgesLate;
    float factor[2];           // of O, of a step of the online softmax
    RowEnds ended;             // of the tile before
    OnlineSoftmax before;      // likewise, of 8-bit floats
    bool pending = kUnmasked;  // there is a block whose P waits for its V
    bool warp_large = false;   // a score of this warp was too large for its polynomial
    Operands at;
    unsigned more = 1;  // the next round is of this kind
    if constexpr (kUnmasked) {
      at = operands(c);
      more = list.is_plain();
      if constexpr (Tiles::kJudgesLate) more &= tiles.trusts_references();
    }
    while (!kUnmasked || more) {
      const bool begins = !kUnmasked && (!pending || !list.more());
      if constexpr (!kUnmasked) {
        if (pending && begins) {
          go_to_next_tile(c, t, list);
          if (!list.more() || list.empty_for_own()) return end_tile(c, pass);
        }
        if (begins) begin_tile(c, t);
        at = operands(c);
      }
      // The products. In the first round there is no P yet: what is multiplied then is overwritten
      // by the next product, which does not add. A branch around the product would make the
      // assembler wait for each.
      wait_k<kUnmasked>(c);
      products.issue_s(c, at.q, at.k);
      const auto block = list.block();
      const bool mixed = !kUnmasked && list.mixed();
      take_block<kUnmasked>(c, list);
      if (pending) products.wait_v(c, pass.used);
      products.issue_o(c, at.v, pass.add);

      // What is done here costs no time, as products wait for each other.
      if constexpr (kUnmasked) more = look_ahead(c, list, at);
      if (begins) {
        if constexpr (C::kFloat8) {
          before = c.softmax;
        } else {
          if (pending) ended = epilogue.ends_of(c.softmax, slot_before(c));
        }
        c.softmax = OnlineSoftmax{};
      }
      const auto shared_by = softmax.share_rows(t);
      const bool high = kLate && !C::kFloat8 && c.softmax.is_high();
      const bool bare = kLate && Expressions::kHasMask && c.softmax.is_bare();

      // The softmax: P with the references as they are, or with those that the block asks for.
      products.wait_s(c);
      if constexpr (kReleasesQFirst) {
        if (!list.more()) tiles.q_ring(tiles.consumer).release(c.queries());
      }
      softmax.scale_scores(c);
      pass.used = Tiles::used_keys(t.w, block);
      if (bare) [[unlikely]] {
        c.softmax.template begin_bare<Softmax::kRoom>(c.s, softmax.exponent_scale(c));
      }
      const bool careful =
          !kUnmasked && (C::kFloat8 || Tiles::kHasPlainRounds || begins || mixed || pass.large);
      bool good = true, far = false, large = false;
      const float l[2] = {c.softmax.l[0], c.softmax.l[1]};
      if (careful) {
        far = softmax.template raise<false>(c, t, block, mixed, factor);
      } else {
        good = softmax.keep(c, t, shared_by, block, kUnmasked ? large : pass.large);
      }
      if (!C::kFloat8 && !kLate && !good) {
        far = softmax.redo(c, t, products.q_slot(c), block, l, factor);
        if constexpr (kUnmasked) products.scale(c, factor);
      }
      if constexpr (!Tiles::kJudgesLate) tiles.k_ring().release(c.blocks);
      if (!kUnmasked && pending) tiles.v_ring().release(c.blocks - 1);
      ++c.blocks;
      if (!kUnmasked && !begins && (careful || !good)) products.scale(c, factor);
      if (high) [[unlikely]] {
        softmax.move_references(c);
      }
      softmax.drop_elements(c, t, block);
      if (pending && begins) {
        if constexpr (C::kFloat8) ended = ends_of(c, before, slot_before(c));
        finish(c, ended);
      }
      if constexpr (C::kFloat8) {
        ++c.float8.blocks;
        if (begins) {
          c.float8.begin();
        } else if (c.float8.blocks > kBlocksOfPart) [[unlikely]] {
          parts().take(c.o, c.float8);
        }
      }

      if constexpr (!kUnmasked && (Expressions::kHasSmallTanh || Tiles::kFar)) {
        pass.large = (pass.large && !begins) || far;
      }
      pass.add = !begins;
      pending = true;
      if constexpr (!kUnmasked && Tiles::kHasPlainRounds) {
        if (!Expressions::kHasSmallTanh || !pass.large) rounds<Kind::unmasked>(c, t, list, pass);
      }
      if constexpr (kUnmasked && Expressions::kHasSmallTanh) {
        warp_large = warp_large || large;
        if (asks_warps(t, block)) {
          pass.large = barrier_or(Tiles::kWarpgroupBarrier + tiles.consumer, 128, warp_large);
          if (pass.large) return;
        }
      }
    }
  }

  ATTN_DEVICE Own next_tile(State& c) const {
    const auto ring = tiles.tile_ring();
    const int slot = ring.place(c.tiles());
    ring.wait(c.tiles());
    c.next_tile();
    return tiles.own_at(slot);
  }
  // Slots of the tile begun last and of the one before.
  static ATTN_DEVICE int slot_now(const State& c) { return Tiles::TileRing::stage(c.tiles() - 1); }
  static ATTN_DEVICE int slot_before(const State& c) {
    return Tiles::TileRing::stage(c.tiles() - 2);
  }
  ATTN_DEVICE Blocks blocks(const State& c, const Own& t) const {
    if (!t.exists) return {};
    return tiles.template first_blocks<Blocks>(slot_now(c), tiles.consumer, t.w);
  }

  // Lets the blocks pass that this warpgroup sees nothing of.
  ATTN_DEVICE void pass_empty(State& c, Blocks& list) const {
    while (list.more() && list.empty_for_own()) {
      tiles.k_ring().wait(c.blocks);
      tiles.k_ring().release(c.blocks);
      products.wait_turn();
      products.give_turn();
      tiles.v_ring().wait(c.blocks);
      tiles.v_ring().release(c.blocks);
      ++c.blocks;
      list.advance(tiles, slot_now(c));
    }
  }

  // Where the next tile's Q has no place of its own and O leaves through another, Q is given back
  // before the softmax of its last block, so that the copy engine loads beside that.
  static constexpr bool kReleasesQFirst = C::kFloat8 && C::kStagesQ == 1;
  ATTN_DEVICE void wait_q(const State& c) const { tiles.q_ring(tiles.consumer).wait(c.queries()); }
  ATTN_DEVICE void release_q(State& c) const {
    tiles.q_ring(tiles.consumer).release(c.queries());
    c.next_query();
  }
  // Ends the tile before the one begun last. O goes to memory through the place of its Q where the
  // next tile's has another; the place is given back then.
  ATTN_DEVICE void finish(State& c, const RowEnds& ends) const {
    if constexpr (C::kFloat8 && Epilogue::kCanStage) {
      epilogue.write_staged(c, slot_before(c), ends, parts().warp);
    } else if constexpr (Epilogue::kCanStage) {
      const auto ring = tiles.q_ring(tiles.consumer);
      const int place = ring.place(c.queries() - 1);
      epilogue.write_staged(
          c, slot_before(c), ends,
          tiles.shared + static_cast<unsigned>(Layout::kQAt + place * Layout::kQ));
      ring.release(c.queries() - 1);
    } else {
      epilogue.write(c, slot_before(c), ends);
    }
  }
  // Writes a tile whose rows see no key.
  ATTN_DEVICE void write_nothing_seen(State& c) const {
    c.softmax = OnlineSoftmax{};
#pragma unroll
    for (int i = 0; i < C::kHeadDimV / 2; ++i) c.o[i] = 0;
    epilogue.write(c, slot_now(c), epilogue.ends_of(c.softmax, slot_now(c)));
  }

  // Of 8-bit floats: how many blocks tensor cores sum before O goes to its part.
  static constexpr int kBlocksOfPart = 1024 / C::kBlockN;
  ATTN_DEVICE Float8Parts<C> parts() const {
    const int warp = 4 * tiles.consumer + static_cast<int>(threadIdx.x % 128 / 32);
    return {tiles.shared + static_cast<unsigned>(Layout::kPartAt + uniform(warp) * Layout::kPart)};
  }
  // The ends of rows whose last product is in O.
  ATTN_DEVICE RowEnds ends_of(State& c, OnlineSoftmax softmax, int slot) const {
    if constexpr (C::kFloat8) parts().merge(c.o, c.float8);
    if constexpr (C::kSumsByProduct) {
      softmax.l[0] = c.float8.l[0];
      softmax.l[1] = c.float8.l[1];
    }
    return epilogue.ends_of(softmax, slot);
  }

  // Where the operands of a round lie, as descriptors: its Q and K, and V of the block before.
  struct Operands {
    unsigned q, k, v;
  };
  ATTN_DEVICE Operands operands(const State& c) const {
    return {products.q_descriptor(c), products.k_descriptor(c), products.v_descriptor(c)};
  }
  // Makes them those of the round after this one. Returns whether that is unmasked too.
  ATTN_DEVICE unsigned look_ahead(State& c, const Blocks& list, Operands& at) const {
    ++c.blocks;
    at.k = products.k_descriptor(c), at.v = products.v_descriptor(c);
    --c.blocks;
    unsigned more = list.is_plain();
    pin(at.k);
    pin(at.v);
    pin(more);
    return more;
  }
  template <bool kUnmasked>
  ATTN_DEVICE void wait_k(const State& c) const {
    if constexpr (kUnmasked) {
      tiles.k_ring().wait_unless(c.k_ready, c.blocks);
    } else {
      if (!c.k_ready) tiles.k_ring().wait(c.blocks);
    }
  }
  template <bool kUnmasked>
  ATTN_DEVICE void take_block(const State& c, Blocks& list) const {
    if constexpr (kUnmasked) {
      list.step(tiles, slot_now(c));
    } else {
      list.advance(tiles, slot_now(c));
    }
  }
  // A block with a score too large for its polynomial is computed twice. So in unmasked rounds the
  // warpgroup asks now and then whether one of its warps had one; then all leave together, and are
  // careful for the rest of the tile. When they ask follows from the tile alone. A tile that begins
  // before row 0 does not ask, as rows there may be those of the sequence before.
  static ATTN_DEVICE bool asks_warps(const Own& t, typename Tiles::Place block) {
    return Blocks::is_eighth(block) && (!Tiles::kEndAligned || t.w.row0 >= 0);
  }

  // From a tile, whose last block waits for its V, to the next one, whose blocks `list` becomes.
  ATTN_DEVICE void go_to_next_tile(State& c, Own& t, Blocks& list) const {
    if constexpr ((Epilogue::kCanStage && !C::kFloat8) || kReleasesQFirst) {
      c.next_query();  // its place is given back by finish, or was before
    } else {
      release_q(c);
    }
    t = next_tile(c);
    list = blocks(c, t);
  }
  ATTN_DEVICE void begin_tile(State& c, const Own& t) const {
    if constexpr (C::kFloat8) c.float8.scale = tiles.score_scale(t.w);
    wait_q(c);
    products.clear_queries(c, t);
  }
  // Ends the tile before where no round follows.
  ATTN_DEVICE void end_tile(State& c, const Pass& pass) const {
    products.multiply_v(c, pass.used, pass.add);
    finish(c, ends_of(c, c.softmax, slot_before(c)));
    // The copy engine reads shared memory, which ends with the thread block. Behind the loop over
    // tiles this wait had the compiler write the rounds out twice, 8 % slower.
    if constexpr (C::kFloat8 && C::kStoresBoxes) bulk_wait_read();
  }
};

}  // namespace attn::device
