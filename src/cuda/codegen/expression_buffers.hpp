// The buffers of a mask and a score, as the printed struct orders them.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "attn/expr.hpp"

namespace attn::cuda {

// Each name once, the mask's first. Throws Error(invalid_argument) if one name means two tensors,
// Error(unsupported) for more than 32. How many fit into the parameters of a kernel depends on what
// else it is given: check_parameters (limits.hpp).
std::vector<std::shared_ptr<const expr::Buffer>> expression_buffers(const expr::Expr& mask,
                                                                    const expr::Expr& score);

// Bytes of what the printed struct begins with: a view of each buffer on a CUDA device, or the
// value of a scalar. A multiple of 8.
std::size_t buffers_bytes(const std::vector<std::shared_ptr<const expr::Buffer>>& buffers);

// The tensor bound to the buffer's name, else its own, wherever it lies and even without data.
const Tensor& described(const expr::Buffer& buffer, const expr::Bindings& bindings);

// Whether the text may take the last stride of a tensor for 1. A single element accepts any index,
// so its stride is 0.
bool last_is_contiguous(const Tensor& tensor);

// How many elements of the last dimension the text may read at once, at multiples of that number: 8
// of 16 bits, 2 of 16 or 32 bits, else 1. Every row then begins, and ends, at such a multiple.
int elements_at_once(const Tensor& tensor);

}  // namespace attn::cuda
