// The text of the kernels of matrix products.
#pragma once

#include "cuda/codegen/source.hpp"
#include "cuda/matmul/matmul_config.hpp"

namespace attn::cuda {

Source matmul_source(const MatmulConfig& config);

}  // namespace attn::cuda
