// Words in memory by which threads of a grid take turns.
//
// A turn is passed on by release_words() and set_word(), and taken by a wait, which acquires.
// cp.async.bulk.wait_group is not enough: others see what the copy engine added only after a
// release that follows it.
#pragma once

#include "ptx/mbarrier.cuh"

namespace attn::device {

// Returns true once the word is x, or false once the phase of the given parity is over.
__device__ __forceinline__ bool wait_for_word_or_phase(const unsigned* word, unsigned x,
                                                       unsigned barrier, unsigned parity) {
  while (true) {
    unsigned now;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(word) : "memory");
    if (now == x) return true;
    if (mbarrier_try(barrier, parity)) return false;
  }
}
// Returns once the word is x.
__device__ __forceinline__ void wait_for_turn(const unsigned* word, unsigned x) {
  unsigned now;
  do {
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(word) : "memory");
  } while (now != x);
}
// Orders all that this thread has written, and what others have that it was told of, before the
// words that it sets from then on. Some 2000 clocks.
__device__ __forceinline__ void release_words() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }
__device__ __forceinline__ void set_word(unsigned* word, unsigned x) {
  asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(word), "r"(x) : "memory");
}

}  // namespace attn::device
