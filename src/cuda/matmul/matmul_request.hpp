// Rungs and shapes of tiles as people write them.
#pragma once

#include <string_view>

#include "cuda/matmul/matmul_config.hpp"

namespace attn::cuda {

// A rung by its name, and a shape where the name ends in one: "split_k/64x192_s8",
// "pipelined/128x256_w8_k32_r4" or the first of its parts. Empty: to be chosen. Throws
// Error(invalid_argument).
struct MatmulRequest {
  std::string_view rung;
  MatmulShape shape;
};
MatmulRequest parse_matmul_request(std::string_view text);

}  // namespace attn::cuda
