#pragma once

namespace attn::device {

inline void copy_async(unsigned destination, const void* source, bool exists) {
  emulator::copy_later(destination, source, exists);
}
template <int kBytes>
void copy_async_bytes(unsigned destination, const void* source, bool exists) {
  emulator::copy_later(destination, source, exists, kBytes);
}
inline void copy_async_commit() { emulator::commit_copies(); }
template <int kGroups>
void copy_async_wait() {
  emulator::wait_copies(kGroups);
}

}  // namespace attn::device
