// Words in memory by which threads of a grid take turns.
//
// A thread passes its turn on by a release, when cp.async.bulk.wait_group says that its additions
// are done, and the next takes it by an acquire before it asks for additions: relaxed loads and
// stores were no faster (docs/log/cuda-backward.md).
#pragma once

namespace attn::device {

// The word as some thread of the grid left it. The thread does not wait for it before it needs it.
__device__ __forceinline__ unsigned ask_word(const unsigned* word) {
  unsigned x;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(x) : "l"(word) : "memory");
  return x;
}
// Returns once the word is x.
__device__ __forceinline__ void wait_for_word(const unsigned* word, unsigned x) {
  while (ask_word(word) != x) {
  }
}
__device__ __forceinline__ void set_word(unsigned* word, unsigned x) {
  asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(word), "r"(x) : "memory");
}

}  // namespace attn::device
