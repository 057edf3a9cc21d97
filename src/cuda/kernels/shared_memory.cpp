#include "cuda/kernels/shared_memory.hpp"

namespace attn::cuda {

std::int64_t most_shared_bytes(Arch arch) noexcept {
  constexpr std::int64_t kSmall = 99 << 10, kAmpere = 163 << 10, kHopper = 227 << 10;
  switch (arch.number) {
    case 80:
    case 87:
      return kAmpere;
    case 90:
    case 100:
    case 101:
    case 103:
      return kHopper;
    default:
      return kSmall;
  }
}

}  // namespace attn::cuda
