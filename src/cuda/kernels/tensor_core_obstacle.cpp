#include "cuda/kernels/tensor_core_obstacle.hpp"

#include <fmt/format.h>

namespace attn::cuda {

std::string tensor_core_obstacle(const Problem& p, bool aligned) {
  if (p.dtype != DType::bf16 && p.dtype != DType::f16) {
    return fmt::format("dtype is {}; accepted are bf16 and f16", name(p.dtype));
  }
  for (const std::int64_t d : {p.head_dim, p.head_dim_v}) {
    if (d % 8 != 0 || d > 256) {
      return fmt::format("a head_dim is {}; accepted are multiples of 8 up to 256", d);
    }
  }
  if (!aligned) return "an address or stride is not a multiple of 16 bytes";
  return {};
}

}  // namespace attn::cuda
