// The operation FLASH_ATTN_EXT of a ggml graph.
#pragma once

#include <string>

#include "attention.hpp"
#include "ggml.h"

namespace attn_ggml {

// Why attn does not take the operation, e.g. "K of type q5_1"; empty where it does. Reads no
// element of a tensor.
std::string refusal(const ggml_tensor& op);

// The operation in attn's terms: views of the tensors' memory. Needs an empty refusal().
Attention describe(const ggml_tensor& op);

}  // namespace attn_ggml
