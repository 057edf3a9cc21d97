#pragma once

namespace attn::device {

inline unsigned cluster_rank() { return emulator::cluster_rank(); }
inline unsigned cluster_address(unsigned address, unsigned rank) {
  return emulator::cluster_address(address, rank);
}
inline void cluster_arrive() { emulator::cluster_arrive(); }
inline void cluster_wait() { emulator::cluster_wait(); }
inline void store_cluster(unsigned address, const float (&x)[4]) {
  emulator::store_cluster(address, x, sizeof(x));
}
inline void bulk_send(unsigned to, unsigned from, unsigned bytes, unsigned barrier) {
  emulator::send_bytes(to, from, bytes, barrier);
}
inline void mbarrier_arrive_cluster(unsigned barrier) { emulator::mbarrier_arrive(barrier, 0); }

}  // namespace attn::device
