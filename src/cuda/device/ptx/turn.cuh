// Words in memory by which threads of a grid take turns.
//
// By PTX's memory model a turn would be passed on by a release and taken by an acquire. Here loads
// and stores are relaxed: a fence of the GPU costs the thread that adds dQ several hundred clocks,
// and what turns put in order is additions that L2 does, each of them whole in any order. A thread
// passes its turn on when cp.async.bulk.wait_group says that its additions are done, and the next
// asks for additions after it has read the word. If some GPU let one of them overtake the other,
// sums would differ in the last bit, and be no less right.
#pragma once

namespace attn::device {

// The word as some thread of the grid left it. The thread does not wait for it before it needs it.
__device__ __forceinline__ unsigned ask_word(const unsigned* word) {
  unsigned x;
  asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(x) : "l"(word) : "memory");
  return x;
}
// Returns once the word is x.
__device__ __forceinline__ void wait_for_word(const unsigned* word, unsigned x) {
  while (ask_word(word) != x) {
  }
}
__device__ __forceinline__ void set_word(unsigned* word, unsigned x) {
  asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(word), "r"(x) : "memory");
}

}  // namespace attn::device
