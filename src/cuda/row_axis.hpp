// Which axis of a tensor of K or V is that of rows.
#pragma once

#include <cstddef>

#include "attn/tensor.hpp"

namespace attn::cuda {

// Of [batch, rows, heads, columns] 1, of [rows, heads, columns] 0.
inline std::size_t axis_of_rows(const Tensor& t) { return static_cast<std::size_t>(t.rank - 3); }

}  // namespace attn::cuda
