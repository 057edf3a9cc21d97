#pragma once

namespace attn::device {

// Blocks run one after the other: who waits for a later one waits for ever.
inline void set_flag(unsigned* flag) { *flag = 1; }
inline void wait_for_flag(const unsigned* flag) { emulator::wait_for_word(flag); }

}  // namespace attn::device
