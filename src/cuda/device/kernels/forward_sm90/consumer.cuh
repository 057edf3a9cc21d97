// The main loop of a consumer of the Hopper forward kernel: a warpgroup that goes through the
// blocks of one tile after the other.
#pragma once

#include "kernels/forward_sm90/epilogue.cuh"

namespace attn::device {

template <class C, class Expressions>
struct ForwardSm90Consumer : ForwardSm90Epilogue<C, Expressions> {
  using Base = ForwardSm90Epilogue<C, Expressions>;
  using Base::arrive, Base::barrier, Base::clear_queries, Base::clear_tail, Base::ends_of;
  using Base::consumer, Base::drop_elements, Base::give_turn;
  using Base::issue_pv, Base::issue_qk, Base::k_descriptor, Base::own_at;
  using Base::kStepsK;
  using Base::pin_all, Base::q_descriptor, Base::q_slot, Base::share_rows, Base::shared;
  using Base::softmax_kept;
  using Base::v_descriptor, Base::wait_turn;
  using typename Base::Blocks, typename Base::Consumer, typename Base::Element;
  using typename Base::KeyRing, typename Base::Layout, typename Base::Own, typename Base::RowEnds;
  using typename Base::QueryRing, typename Base::TileRing, typename Base::ValueRing;

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
    return this->template first_blocks<Blocks>(slot_now(c), consumer, t.w);
  }

  // Lets the blocks pass that this warpgroup sees nothing of.
  __device__ __forceinline__ void pass_empty(Consumer& c, Blocks& list) const {
    while (list.more() && list.empty_for_own()) {
      this->template wait_full<KeyRing>(Layout::kFullK, c.blocks);
      arrive(Layout::kEmptyK, KeyRing::stage(c.blocks));
      wait_turn();
      give_turn();
      this->template wait_full<ValueRing>(Layout::kFullV, c.blocks);
      arrive(Layout::kEmptyV, ValueRing::stage(c.blocks));
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
  // The end of the tile before the one begun last. O goes to memory through the place of its Q
  // where the next tile's has another; the place is given back then.
  __device__ __forceinline__ void finish(Consumer& c, const RowEnds& ends) const {
    if constexpr (Base::kCanStage) {
      const int place = consumer * C::kStagesQ + QueryRing::stage(c.queries() - 1);
      this->write_staged(c, slot_before(c), ends,
                         shared + static_cast<unsigned>(Layout::kQAt + place * Layout::kQ));
      arrive(Layout::kEmptyQ, place);
    } else {
      this->write(c, slot_before(c), ends);
    }
  }

  // Tiles follow each other without a gap: S of the first block of the next tile is computed beside
  // the last O += P V of this one.
  __device__ __forceinline__ void consume() const {
    Consumer c;
    if (C::kTakeTurns && consumer == C::kConsumers - 1) give_turn();
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
#pragma unroll
        for (int i = 0; i < C::kHeadDimV / 2; ++i) c.o[i] = 0;
        this->write(c, slot_now(c), ends_of(c.softmax, slot_now(c)));
        t = next_tile(c);
      }
    }
  }

  // S = Q K^T of the next block, whose K is there.
  __device__ __forceinline__ void issue_s(Consumer& c, unsigned q, unsigned k) const {
    wait_turn();
    pin_all(c);
    wgmma_fence();
    issue_qk(c, q, k);
  }
  // Waits for V of the block before, of whose keys `used` are in use.
  __device__ __forceinline__ void wait_v(const Consumer& c, int used) const {
    this->template wait_full<ValueRing>(Layout::kFullV, c.blocks - 1);
    clear_tail(c, used);
  }
  // O += P V of the block before, while the warpgroup goes on to the softmax of the next.
  __device__ __forceinline__ void issue_o(Consumer& c, unsigned v, bool add) const {
    wgmma_fence();
    issue_pv(c, v, add);
    give_turn();
  }
  // Waits for S alone.
  __device__ __forceinline__ void wait_s(Consumer& c) const {
    wgmma_wait<1>();
    pin(c.s);
    if constexpr (Base::kJudgesLate) arrive(Layout::kEmptyK, KeyRing::stage(c.blocks));
  }

  // From the first block of `list`, of tile `t`, for as long as the next tile begins with a block
  // that this warpgroup works on. Leaves in `t` the tile after the last one done.
  __device__ __forceinline__ void attend(Consumer& c, Own& t, Blocks& list) const {
    float factor[2];       // of O, of a step of the online softmax
    RowEnds ended;         // of the tile before
    int used = 0;          // keys in use of the block whose P waits for its V
    bool pending = false;  // there is such a block
    bool add = false;      // O holds earlier blocks of the tile
    bool large = false;    // a score of the tile was: further blocks are careful
    c.k_ready = false;
    while (true) {
      const bool begins = !pending || !list.more();
      if (pending && begins) {
        if constexpr (Base::kCanStage) {
          c.next_query();  // its place is given back by finish
        } else {
          release_q(c);
        }
        t = next_tile(c);
        list = blocks(c, t);
        if (!list.more() || list.empty_for_own()) {
          multiply_v(c, used, add);
          finish(c, ends_of(c.softmax, slot_before(c)));
          return;
        }
      }
      if (begins) {
        wait_q(c);
        clear_queries(c, t);
      }
      const unsigned q = q_descriptor(c), k = k_descriptor(c), v = v_descriptor(c);
      if (!c.k_ready) this->template wait_full<KeyRing>(Layout::kFullK, c.blocks);
      issue_s(c, q, k);
      // What is done here costs no time: products wait for each other.
      const int block = list.block();
      const bool mixed = list.mixed();
      list.advance(*this, slot_now(c));
      // In the first round there is no P yet: what is multiplied then is overwritten by the next
      // product, which does not add. A branch around the product would make the assembler wait for
      // each.
      if (pending) wait_v(c, used);
      issue_o(c, v, add);
      if (begins) {
        if (pending) ended = ends_of(c.softmax, slot_before(c));
        c.softmax = OnlineSoftmax{};
      }
      const auto shared_by = share_rows(t);
      wait_s(c);
      used = t.w.sequence.length_k - block * C::kBlockN;
      const bool careful = Base::kHasPlainRounds || begins || mixed || large;
      bool good = true;
      const float l[2] = {c.softmax.l[0], c.softmax.l[1]};
      if (careful) {
        this->template softmax_raised<false>(c, t, block, mixed, factor);
      } else {
        good = softmax_kept(c, t, shared_by, block, large);
      }
      if (!good) redo(c, t, block, l, factor);
      if constexpr (!Base::kJudgesLate) arrive(Layout::kEmptyK, KeyRing::stage(c.blocks));
      if (pending) arrive(Layout::kEmptyV, ValueRing::stage(c.blocks - 1));
      ++c.blocks;
      if (!begins && (careful || !good)) scale(c, factor);
      drop_elements(c, t, block);
      if (pending && begins) finish(c, ended);
      if constexpr (Expressions::kHasSmallTanh) large = large && !begins;
      add = !begins;
      pending = true;
      if constexpr (Base::kHasPlainRounds) attend_plain(c, t, list, used, add);
    }
  }

  static __device__ __forceinline__ void scale(Consumer& c, const float (&factor)[2]) {
#pragma unroll
    for (int i = 0; i < C::kHeadDimV / 2; ++i) c.o[i] *= factor[i / 2 % 2];
  }

  // A score far above all before it: the block once more from the product on, for this warp.
  __device__ __forceinline__ void redo(Consumer& c, const Own& t, int block, const float (&l)[2],
                                       float (&factor)[2]) const {
    c.softmax.l[0] = l[0];
    c.softmax.l[1] = l[1];
    warp_scores<Element, kStepsK>(c.s, shared + Layout::kQAt + q_slot(c) * Layout::kQ,
                                  static_cast<int>(threadIdx.x % 128 / 32) * 16, 8192,
                                  shared + Layout::kKAt + KeyRing::stage(c.blocks) * Layout::kK,
                                  Layout::kPanelBytes);
    this->template softmax_raised<true>(c, t, block, false, factor);
  }

  // Rounds of blocks that follow the first of a tile and need no mask. What stands between the
  // softmax of one and the products of the next is time in which tensor cores wait, so nothing is
  // decided here of what the general round asks. All warps of the warpgroup must leave together, as
  // they issue the same products; what differs between them is a branch inside.
  __device__ __forceinline__ void attend_plain(Consumer& c, const Own& t, Blocks& list, int& used,
                                               bool& add) const {
    const unsigned q = q_descriptor(c);
    while (list.more() && !list.mixed() && list.steps_inside()) {
      const unsigned k = k_descriptor(c), v = v_descriptor(c);
      mbarrier_wait_unless(c.k_ready, barrier(Layout::kFullK, KeyRing::stage(c.blocks)),
                           KeyRing::parity(c.blocks));
      issue_s(c, q, k);
      const int block = list.block();
      list.step();
      wait_v(c, used);
      issue_o(c, v, add);
      const auto shared_by = share_rows(t);
      const bool high = Base::kJudgesLate && c.softmax.is_high();
      const bool bare = Base::kJudgesLate && Expressions::kHasMask && c.softmax.is_bare();
      wait_s(c);
      used = t.w.sequence.length_k - block * C::kBlockN;
      if (bare) [[unlikely]] {
        c.softmax.begin_bare(c.s, this->exponent_scale());
      }
      const float l[2] = {c.softmax.l[0], c.softmax.l[1]};
      bool large = false;
      const bool good = softmax_kept(c, t, shared_by, block, large);
      if (!Base::kJudgesLate && !good) {
        float factor[2];
        redo(c, t, block, l, factor);
        scale(c, factor);
      }
      if constexpr (!Base::kJudgesLate) arrive(Layout::kEmptyK, KeyRing::stage(c.blocks));
      ++c.blocks;
      if (high) [[unlikely]] {
        this->move_references(c);
      }
      drop_elements(c, t, block);
      add = true;
    }
  }

  // O += P V and nothing else.
  __device__ __forceinline__ void multiply_v(Consumer& c, int used, bool add) const {
    wait_v(c, used);
    pin_all(c);
    wgmma_fence();
    issue_pv(c, v_descriptor(c), add);
    wgmma_wait<0>();
    pin(c.o);
    arrive(Layout::kEmptyV, ValueRing::stage(c.blocks - 1));
  }
};

}  // namespace attn::device
