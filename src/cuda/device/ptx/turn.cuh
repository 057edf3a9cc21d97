// Words in memory by which threads of a grid take turns (PTX ISA, "memory consistency model").
#pragma once

namespace attn::device {

// The word as some thread of the grid left it, which says nothing of other memory: the thread does
// not wait for it before it needs it.
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
// After a word was seen: what was in memory before pass_word() is there for this thread, and for
// what it asks of the copy engine from here on.
__device__ __forceinline__ void take_turn() {
  asm volatile("fence.acq_rel.gpu;\n\tfence.proxy.async.global;" ::: "memory");
}
// The word becomes x, once what this thread knows to be in memory is there for all.
__device__ __forceinline__ void pass_word(unsigned* word, unsigned x) {
  asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(word), "r"(x) : "memory");
}

}  // namespace attn::device
