#pragma once

namespace attn::device {

struct alignas(64) TensorMap {
  unsigned long long words[16];
};
inline void prefetch_tensor_map(const TensorMap&) {}
inline constexpr unsigned long long kEvictNormal = 0, kEvictFirst = 1, kEvictLast = 2;

inline void tma_load(unsigned destination, const TensorMap& map, unsigned barrier,
                     const int* coordinates, unsigned ranks = 1u << emulator::cluster_rank()) {
  emulator::Box box;
  std::memcpy(&box, map.words, sizeof(box));
  emulator::copy_box(box, destination, barrier, coordinates, ranks);
}
inline void tma_load_4d(unsigned destination, const TensorMap& map, unsigned barrier, int c0,
                        int c1, int c2, int c3, unsigned long long) {
  const int at[4] = {c0, c1, c2, c3};
  tma_load(destination, map, barrier, at);
}
inline void tma_prefetch_4d(const TensorMap&, int, int, int, int) {}
inline void tma_load_4d_multicast(unsigned destination, const TensorMap& map, unsigned barrier,
                                  int c0, int c1, int c2, int c3, unsigned short ranks,
                                  unsigned long long) {
  const int at[4] = {c0, c1, c2, c3};
  tma_load(destination, map, barrier, at, ranks);
}
inline void tma_load_5d(unsigned destination, const TensorMap& map, unsigned barrier, int c0,
                        int c1, int c2, int c3, int c4, unsigned long long) {
  const int at[5] = {c0, c1, c2, c3, c4};
  tma_load(destination, map, barrier, at);
}
inline void tma_store_4d(const TensorMap& map, unsigned source, int c0, int c1, int c2, int c3) {
  emulator::Box box;
  std::memcpy(&box, map.words, sizeof(box));
  const int at[4] = {c0, c1, c2, c3};
  emulator::store_box(box, source, at);
}
inline void bulk_commit() { emulator::commit_stores(); }
template <int kPending = 0>
void bulk_wait_read() {
  emulator::finish_stores(kPending);
}
template <int kPending = 0>
void bulk_wait() {
  emulator::finish_stores(kPending);
}
inline void bulk_load(unsigned destination, const void* source, unsigned bytes, unsigned barrier) {
  emulator::copy_bytes(destination, source, bytes, barrier);
}
inline void bulk_store(void* to, unsigned source, unsigned bytes) {
  emulator::store_bytes(to, source, bytes);
}
inline void bulk_add(float* to, unsigned source, unsigned bytes) {
  emulator::add_floats(to, source, bytes);
}
inline void fence_proxy_async() {}
inline void fence_proxy_async_global() {}

}  // namespace attn::device
