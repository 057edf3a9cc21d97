// What the text of a kernel says of the tensors of a call: code generation sees no more of them.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "attn/expr.hpp"

namespace attn::cuda {

// What the text says of a tensor, beside the buffer's name and rank.
struct PrintedTensor {
  DType dtype = DType::f32;
  bool contiguous = false;  // last_is_contiguous (expression_buffers.hpp)
  int at_once = 1;          // elements_at_once, of a buffer that a score may read so
  bool operator==(const PrintedTensor&) const = default;
};

// By the name of the buffer; those that are not there are as they are declared.
using PrintedBuffers = std::vector<std::pair<std::string, PrintedTensor>>;

PrintedTensor printed_tensor(const expr::Buffer& buffer, const PrintedBuffers& printed);

}  // namespace attn::cuda
