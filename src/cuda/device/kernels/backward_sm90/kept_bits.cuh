// What dropout keeps of the scores of a step of the Hopper backward kernel, a bit for each. Where
// dV and dK have a warpgroup each, these draw half of it each, a step ahead, while they would wait
// for P and dS, so that Philox is not in the chain of the score warpgroup, which finds the bits in
// shared memory. They wait only for step n + 1 to be made and for the bits of step n to be taken,
// neither of which needs their products of step n: no deadlock. Elsewhere the score warpgroups
// draw.
#pragma once

#include "device.cuh"
#include "kernels/backward_sm90/tiles.cuh"
#include "softmax/kept_bits.cuh"

namespace attn::device {

template <class C>
struct BackwardSm90KeptBits {
  using Tiles = BackwardSm90Tiles<C>;
  using Layout = typename Tiles::Layout;
  static constexpr bool kAhead = Layout::kKeptPlaces > 0;
  static constexpr int kWords = Tiles::kKeys / 64;  // of a thread, in the order of KeptBits
  static_assert(kWords <= 2);
  using Random = Dropout<C::kRngState>;
  struct Words {
    unsigned of[kWords];
  };

  const Tiles& tiles;

  // The address of the word of this thread, which is that of the same thread in each warpgroup.
  ATTN_DEVICE unsigned address() const {
    return tiles.shared + static_cast<unsigned>(Layout::kKeptAt) + threadIdx.x % 128 * 4;
  }
  // Takes what was drawn ahead of step n, else nothing. A half is one of two words, or a row of
  // one.
  ATTN_DEVICE Words take(unsigned n) const {
    Words words{};
    if constexpr (kAhead) {
      tiles.kept_ring().wait(n);
      const auto first = static_cast<unsigned>(load_shared_word(address()));
      const auto second = static_cast<unsigned>(load_shared_word(address() + 512));
      if constexpr (kWords == 1) {
        words.of[0] = first + second;
      } else {
        words.of[0] = first;
        words.of[1] = second;
      }
      tiles.kept_ring().release(n);
    }
    return words;
  }
  // Draws what was not: the k-th word, before its first use.
  ATTN_DEVICE void draw_late(const Random& random, Words& words, const BackwardStep& t,
                             int k) const {
    if constexpr (!kAhead) words.of[k] = draw<0, 2>(random, t, k);
  }
  // Draws half of step n, if there is one, for who takes it.
  template <int kHalf>
  ATTN_DEVICE void draw_ahead(const Random& random, unsigned n) const {
    tiles.wait_for_step(n);
    const BackwardStep t = tiles.step(n);
    if (Tiles::is(t.flags, BackwardStep::kEnd)) return;
    const unsigned word =
        kWords > 1 ? draw<0, 2>(random, t, kHalf) : draw<kHalf, kHalf + 1>(random, t, 0);
    tiles.kept_ring().wait_empty(n);
    store_shared_word(address() + 512 * kHalf, word);
    tiles.kept_ring().fill(n);
  }

 private:
  // Draws the bits of 64 keys, the k-th, of the rows kFirst to kEnd - 1 of the two of a thread.
  template <int kFirst, int kEnd>
  ATTN_DEVICE unsigned draw(const Random& random, const BackwardStep& t, int k) const {
    const int first_row = static_cast<int>(threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4);
    ATTN_TAKE_PLACES(of_sequence, random, tiles.p, t.batch);
    const DropoutColumns columns(of_sequence, t.key0 / 64 + k, static_cast<int>(threadIdx.x % 4));
    unsigned kept = 0;
#pragma unroll
    for (int i = kFirst; i < kEnd; ++i) {
      const DropoutRow row(of_sequence, static_cast<unsigned>(t.batch * tiles.p.heads_q + t.head_q),
                           static_cast<unsigned>(t.query0 + first_row + 8 * i));
      kept += KeptBits::draw(row, i, columns);
    }
    return kept;
  }
};

}  // namespace attn::device
