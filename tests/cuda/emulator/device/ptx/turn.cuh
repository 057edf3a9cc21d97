#pragma once

namespace attn::device {

inline unsigned ask_word(const unsigned* word) { return *word; }
inline void wait_for_word(const unsigned* word, unsigned x) { emulator::wait_for_word(word, x); }
inline void set_word(unsigned* word, unsigned x) { *word = x; }

}  // namespace attn::device
