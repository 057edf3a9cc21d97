// What dropout keeps of the scores of a step of the Hopper backward kernel, a bit for each. Where
// dV has a warpgroup for itself, that draws it a step ahead, while it would wait for P, so that
// Philox is not in the chain of the score warpgroup, which finds the bits in shared memory.
// Elsewhere the score warpgroups draw.
#pragma once

#include "kernels/backward_sm90/tiles.cuh"
#include "softmax/dropout.cuh"

namespace attn::device {

template <class C>
struct BackwardSm90KeptBits : BackwardSm90Tiles<C> {
  using Base = BackwardSm90Tiles<C>;
  using Base::arrive, Base::kKeys, Base::p, Base::shared, Base::wait;
  using typename Base::Layout, typename Base::StepRing;
  using Ring = BackwardRing<1>;
  static constexpr bool kAhead = Layout::kKeptPlaces > 0;
  static constexpr int kWords = kKeys / 64;  // of a thread
  // Of a pair of neighbouring scores of an accumulator, the k-th, word k / 16 has bits k % 16 and
  // 16 + k % 16.
  struct Words {
    unsigned of[kWords];
  };

  // Of the same thread in each warpgroup.
  __device__ __forceinline__ unsigned address() const {
    return shared + static_cast<unsigned>(Layout::kKeptAt) + threadIdx.x % 128 * 4;
  }
  // Takes what was drawn ahead of step n, else nothing.
  __device__ __forceinline__ Words take(unsigned n) const {
    Words words{};
    if constexpr (kAhead) {
      wait(Layout::kFullKept, 0, Ring::parity(n));
#pragma unroll
      for (int i = 0; i < kWords; ++i) {
        words.of[i] = static_cast<unsigned>(load_shared_word(address() + 512 * i));
      }
      arrive(Layout::kEmptyKept, 0);
    }
    return words;
  }
  // Draws what was not: of 32 keys, the g-th, before their first use.
  __device__ __forceinline__ void draw_late(Words& words, const BackwardStep& t, int g) const {
    if constexpr (!kAhead) words.of[g / 2] += draw(t, g);
  }
  // Draws step n, if there is one, for who takes it.
  __device__ __forceinline__ void draw_ahead(unsigned n) const {
    wait(Layout::kFullStep, StepRing::stage(n), StepRing::parity(n));
    const BackwardStep t = this->step(n);
    if (this->is(t.flags, BackwardStep::kEnd)) return;
    Words words;
#pragma unroll
    for (int i = 0; i < kWords; ++i) words.of[i] = draw(t, 2 * i) + draw(t, 2 * i + 1);
    wait(Layout::kEmptyKept, 0, Ring::parity(n) ^ 1);
#pragma unroll
    for (int i = 0; i < kWords; ++i) store_shared_word(address() + 512 * i, words.of[i]);
    arrive(Layout::kFullKept, 0);
  }

 private:
  // The bits of 32 keys, the g-th, of the two rows of a thread (docs/numerics.md): bits 2 t + row
  // and 16 + 2 t + row are keys 8 t + 2 (lane % 4) + {0, 1}; of every second 32 keys, 8 bits on.
  __device__ __forceinline__ unsigned draw(const BackwardStep& t, int g) const {
    const auto dropout = dropout_of<C::kRngState>(p);
    const int first_row = static_cast<int>(threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4);
    const DropoutColumns columns(dropout, t.key0 / 32 + g, static_cast<int>(threadIdx.x % 4));
    unsigned kept = 0;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const DropoutRow row(dropout, static_cast<unsigned>(t.batch * p.heads_q + t.head_q),
                           static_cast<unsigned>(t.query0 + first_row + 8 * i));
      const PhiloxWords words = row.words(columns);
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const unsigned pair = halves_at_least(words.word[k], p.dropout_threshold);
        kept += pair << (g % 2 * 8 + 2 * k + i);
      }
    }
    return kept;
  }
};

}  // namespace attn::device
