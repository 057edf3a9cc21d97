#include "cuda/kernels/tensor_core_obstacle.hpp"

#include <fmt/format.h>

#include <tuple>

namespace attn::cuda {

std::string tensor_core_obstacle(const Problem& p, bool aligned, std::int64_t most,
                                 std::int64_t most_v) {
  if (p.dtype != DType::bf16 && p.dtype != DType::f16) {
    return fmt::format("dtype is {}; accepted are bf16 and f16", name(p.dtype));
  }
  for (const auto& [name, d, up_to] :
       {std::tuple{"head_dim", p.head_dim, most}, std::tuple{"head_dim_v", p.head_dim_v, most_v}}) {
    if (d % 8 != 0 || d > up_to) {
      return fmt::format("{} is {}; accepted are multiples of 8 up to {}", name, d, up_to);
    }
  }
  if (!aligned) return "an address or stride is not a multiple of 16 bytes";
  return {};
}

std::string tensor_core_obstacle(const Problem& p, const BackwardTensors& tensors,
                                 std::int64_t most) {
  constexpr bool kAligned = true;
  if (std::string why = tensor_core_obstacle(p, kAligned, most, most);
      !why.empty() || tensors.aligned) {
    return why;
  }
  return "an address or stride of q, k, v, d_o, dq, dk or dv is not a multiple of 16 bytes";
}

}  // namespace attn::cuda
