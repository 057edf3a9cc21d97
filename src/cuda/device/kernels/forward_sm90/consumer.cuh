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
  using Epilogue = ForwardSm90Epilogue<C, Expressions>;
  using State = ForwardSm90State<C>;
  using Layout = typename Tiles::Layout;
  using Blocks = typename Tiles::Blocks;
  using Own = typename Tiles::Own;
  using RowEnds = typename Epilogue::RowEnds;

  const Tiles& tiles;
  ForwardSm90Products<C, Expressions> products;
  ForwardSm90Softmax<C, Expressions> softmax;
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

  ATTN_DEVICE void wait_q(const State& c) const { tiles.q_ring(tiles.consumer).wait(c.queries()); }
  ATTN_DEVICE void release_q(State& c) const {
    tiles.q_ring(tiles.consumer).release(c.queries());
    c.next_query();
  }
  // Ends the tile before the one begun last. O goes to memory through the place of its Q where the
  // next tile's has another; the place is given back then.
  ATTN_DEVICE void finish(State& c, const RowEnds& ends) const {
    if constexpr (Epilogue::kCanStage) {
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

  // Goes on from the first block of `list`, of tile `t`, for as long as the next tile begins with a
  // block that this warpgroup works on. Leaves in `t` the tile after the last one done.
  ATTN_DEVICE void attend(State& c, Own& t, Blocks& list) const {
    float factor[2];       // of O, of a step of the online softmax
    RowEnds ended;         // of the tile before
    int used = 0;          // keys in use of the block whose P waits for its V
    bool pending = false;  // there is such a block
    bool add = false;      // O holds earlier blocks of the tile
    bool large = false;    // a score of the tile was, or is far: further blocks are careful
    c.k_ready = false;
    while (true) {
      const bool begins = !pending || !list.more();
      if (pending && begins) {
        if constexpr (Epilogue::kCanStage) {
          c.next_query();  // its place is given back by finish
        } else {
          release_q(c);
        }
        t = next_tile(c);
        list = blocks(c, t);
        if (!list.more() || list.empty_for_own()) {
          products.multiply_v(c, used, add);
          finish(c, epilogue.ends_of(c.softmax, slot_before(c)));
          return;
        }
      }
      if (begins) {
        wait_q(c);
        products.clear_queries(c, t);
      }
      const unsigned q = products.q_descriptor(c), k = products.k_descriptor(c);
      const unsigned v = products.v_descriptor(c);
      if (!c.k_ready) tiles.k_ring().wait(c.blocks);
      products.issue_s(c, q, k);
      // What is done here costs no time: products wait for each other.
      const auto block = list.block();
      const bool mixed = list.mixed();
      list.advance(tiles, slot_now(c));
      // In the first round there is no P yet: what is multiplied then is overwritten by the next
      // product, which does not add. A branch around the product would make the assembler wait for
      // each.
      if (pending) products.wait_v(c, used);
      products.issue_o(c, v, add);
      if (begins) {
        if (pending) ended = epilogue.ends_of(c.softmax, slot_before(c));
        c.softmax = OnlineSoftmax{};
      }
      const auto shared_by = softmax.share_rows(t);
      products.wait_s(c);
      used = Tiles::used_keys(t.w, block);
      const bool careful = Tiles::kHasPlainRounds || begins || mixed || large;
      bool good = true, far = false;
      const float l[2] = {c.softmax.l[0], c.softmax.l[1]};
      if (careful) {
        far = softmax.template raise<false>(c, t, block, mixed, factor);
      } else {
        good = softmax.keep(c, t, shared_by, block, large);
      }
      if (!good) far = softmax.redo(c, t, products.q_slot(c), block, l, factor);
      if constexpr (!Tiles::kJudgesLate) tiles.k_ring().release(c.blocks);
      if (pending) tiles.v_ring().release(c.blocks - 1);
      ++c.blocks;
      if (!begins && (careful || !good)) scale(c, factor);
      softmax.drop_elements(c, t, block);
      if (pending && begins) finish(c, ended);
      if constexpr (Expressions::kHasSmallTanh || Tiles::kFar) large = (large && !begins) || far;
      add = !begins;
      pending = true;
      if constexpr (Tiles::kHasPlainRounds) {
        if (!Expressions::kHasSmallTanh || !large) attend_plain(c, t, list, used, add, large);
      }
    }
  }

  static ATTN_DEVICE void scale(State& c, const float (&factor)[2]) {
#pragma unroll
    for (int i = 0; i < C::kHeadDimV / 2; ++i) c.o[i] *= factor[i / 2 % 2];
  }

  // Rounds of blocks that follow the first of a tile and need no mask. What stands between the
  // softmax of one and the products of the next is time in which tensor cores wait, so nothing is
  // decided here of what the general round asks. All warps of the warpgroup must leave together, as
  // they issue the same products; what differs between them is a branch inside.
  ATTN_DEVICE void attend_plain(State& c, const Own& t, Blocks& list, int& used, bool& add,
                                bool& large) const {
    const unsigned q = products.q_descriptor(c);
    unsigned k = products.k_descriptor(c), v = products.v_descriptor(c);
    unsigned plain = list.is_plain();
    bool warp_large = false;  // a score of this warp was too large for its polynomial
    while (plain) {
      tiles.k_ring().wait_unless(c.k_ready, c.blocks);
      products.issue_s(c, q, k);
      const auto block = list.block();
      list.step(tiles, slot_now(c));
      products.wait_v(c, used);
      products.issue_o(c, v, add);
      // What the next round asks first costs no time here: products wait for each other.
      ++c.blocks;
      k = products.k_descriptor(c), v = products.v_descriptor(c);
      --c.blocks;
      plain = list.is_plain();
      pin(k);
      pin(v);
      pin(plain);
      const auto shared_by = softmax.share_rows(t);
      const bool high = Tiles::kJudgesLate && c.softmax.is_high();
      const bool bare = Tiles::kJudgesLate && Expressions::kHasMask && c.softmax.is_bare();
      products.wait_s(c);
      used = Tiles::used_keys(t.w, block);
      if (bare) [[unlikely]] {
        c.softmax.begin_bare(c.s, softmax.exponent_scale());
      }
      const float l[2] = {c.softmax.l[0], c.softmax.l[1]};
      bool block_large = false;
      const bool good = softmax.keep(c, t, shared_by, block, block_large);
      if (!Tiles::kJudgesLate && !good) {
        float factor[2];
        softmax.redo(c, t, products.q_slot(c), block, l, factor);
        scale(c, factor);
      }
      if constexpr (!Tiles::kJudgesLate) tiles.k_ring().release(c.blocks);
      ++c.blocks;
      if (high) [[unlikely]] {
        softmax.move_references(c);
      }
      softmax.drop_elements(c, t, block);
      add = true;
      // A block with such a score is computed twice. So the warpgroup asks now and then whether one
      // of its warps had one; then all leave together, and are careful for the rest of the tile.
      // When they ask follows from the tile alone. A tile that begins before row 0 does not ask, as
      // rows there may be those of the sequence before.
      if constexpr (Expressions::kHasSmallTanh) {
        warp_large = warp_large || block_large;
        if (Blocks::is_eighth(block) && (!Tiles::kEndAligned || t.w.row0 >= 0)) {
          large = barrier_or(Tiles::kWarpgroupBarrier + tiles.consumer, 128, warp_large);
          if (large) return;
        }
      }
    }
  }
};

}  // namespace attn::device
