#pragma once

namespace attn::device {

template <int kRegisters>
void release_registers() {}
template <int kRegisters>
void take_registers() {}
inline int uniform(int x) { return x; }
inline unsigned uniform(unsigned x) { return x; }
inline unsigned keep(unsigned x) { return x; }
inline bool elect_one() { return threadIdx.x % 32 == 0; }
inline void barrier_sync(int id, int threads) {
  emulator::barrier(static_cast<unsigned>(id), static_cast<unsigned>(threads), true);
}
inline bool barrier_or(int id, int threads, bool x) {
  return emulator::barrier_or(static_cast<unsigned>(id), static_cast<unsigned>(threads), x);
}
inline void barrier_arrive(int id, int threads) {
  emulator::barrier(static_cast<unsigned>(id), static_cast<unsigned>(threads), false);
}

}  // namespace attn::device
