#pragma once

namespace attn::device {

inline bool word_is(const unsigned* word, unsigned x) { return emulator::polled(*word == x); }
inline void release_word(unsigned* word, unsigned x) {
  emulator::release_memory();
  *word = x;
}

}  // namespace attn::device
