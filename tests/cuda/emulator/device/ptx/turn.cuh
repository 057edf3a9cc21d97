#pragma once

namespace attn::device {

inline bool wait_for_word_or_phase(const unsigned* word, unsigned x, unsigned barrier,
                                   unsigned parity) {
  return emulator::wait_for_word_or_phase(word, x, barrier, parity);
}
inline void wait_for_turn(const unsigned* word, unsigned x) { emulator::wait_for_turn(word, x); }
inline void release_words() { emulator::release_memory(); }
inline void set_word(unsigned* word, unsigned x) { *word = x; }

}  // namespace attn::device
