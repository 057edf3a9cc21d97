#pragma once

namespace attn::device {

inline unsigned shared_address(const void* p) {
  return static_cast<unsigned>(__cvta_generic_to_shared(p));
}
struct alignas(16) Int4 {
  int x, y, z, w;
};
inline void store_shared(unsigned address, const Int4& v) {
  std::memcpy(emulator::shared_memory() + address, &v, sizeof(v));
}
inline Int4 load_shared(unsigned address) {
  Int4 v;
  std::memcpy(&v, emulator::shared_memory() + address, sizeof(v));
  return v;
}
inline void store_shared_floats(unsigned address, const float* x) {
  store_shared(address, {std::bit_cast<int>(x[0]), std::bit_cast<int>(x[1]),
                         std::bit_cast<int>(x[2]), std::bit_cast<int>(x[3])});
}
inline void load_shared_floats(float (&x)[4], unsigned address) {
  const Int4 v = load_shared(address);
  x[0] = std::bit_cast<float>(v.x);
  x[1] = std::bit_cast<float>(v.y);
  x[2] = std::bit_cast<float>(v.z);
  x[3] = std::bit_cast<float>(v.w);
}
inline int load_shared_word(unsigned address) {
  int x;
  std::memcpy(&x, emulator::shared_memory() + address, sizeof(x));
  return x;
}
inline void store_shared_word(unsigned address, unsigned x) {
  std::memcpy(emulator::shared_memory() + address, &x, sizeof(x));
}
inline int load_shared_relaxed(unsigned address) { return load_shared_word(address); }
inline void store_shared_relaxed(unsigned address, unsigned x) { store_shared_word(address, x); }
inline void store_shared_byte(unsigned address, unsigned x) {
  emulator::shared_memory()[address] = static_cast<char>(x);
}
inline unsigned load_shared_byte(unsigned address) {
  return static_cast<unsigned char>(emulator::shared_memory()[address]);
}
inline void mbarrier_init(unsigned barrier, unsigned arrivals) {
  emulator::mbarrier_init(barrier, arrivals);
}
inline void mbarrier_init_fence() {}
inline void mbarrier_arrive(unsigned barrier) { emulator::mbarrier_arrive(barrier, 0); }
inline void mbarrier_arrive_expect(unsigned barrier, unsigned bytes) {
  emulator::mbarrier_arrive(barrier, bytes);
}
inline bool mbarrier_try(unsigned barrier, unsigned parity) {
  return emulator::polled(emulator::mbarrier_done(barrier, parity));
}
inline void mbarrier_wait(unsigned barrier, unsigned parity) {
  emulator::mbarrier_wait(barrier, parity);
}
inline void mbarrier_wait_unless(bool over, unsigned barrier, unsigned parity) {
  if (!over) emulator::mbarrier_wait(barrier, parity);
}

}  // namespace attn::device
