// Words in memory by which threads of a grid take turns.
//
// A turn is passed on by a release and taken by an acquire. cp.async.bulk.wait_group is not enough:
// others see what the copy engine added only after a release that follows it. The whole chain of a
// turn: additions -> wait_group -> a barrier of the block of threads -> st.release.gpu of the word
// -> ld.acquire by the next block -> a barrier of it -> fence.proxy.async.global -> its additions.
#pragma once

#include "device.cuh"

namespace attn::device {

// Whether the word is x. Some 700 clocks, also for many lanes at once.
ATTN_DEVICE bool word_is(const unsigned* word, unsigned x) {
  unsigned now;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(word) : "memory");
  return now == x;
}
// Sets a word after all that this thread has written, and what others have that it was told of.
// Some 2000 clocks, also for many lanes at once.
ATTN_DEVICE void release_word(unsigned* word, unsigned x) {
  asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(word), "r"(x) : "memory");
}

}  // namespace attn::device
