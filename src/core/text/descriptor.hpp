// The shorthands of mask.hpp inside the text form of a problem (docs/descriptors.md).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "attn/mask.hpp"
#include "attn/problem.hpp"

namespace attn::core {

// A row-major tensor without data: what a descriptor knows of a buffer.
Tensor shape_only(DType dtype, const std::vector<std::int64_t>& shape);
std::vector<std::int64_t> shape_of(const Tensor& tensor);
// "2x8x64" for {2, 8, 64}
std::string shape_text(const std::vector<std::int64_t>& shape);

// Shapes that `alibi`, `bias` and `documents` stand for when none is written.
std::vector<std::int64_t> default_slopes_shape(const Problem& problem);
std::vector<std::int64_t> default_bias_shape(const Problem& problem, Alignment alignment);
std::vector<std::int64_t> default_ids_shape(const Problem& problem, Alignment alignment);
// The block mask that `butterfly<block>` stands for.
BlockMask default_butterfly(const Problem& problem, std::int32_t block, Alignment alignment);

// e with the buffers called `from` called `to`.
expr::Expr rename_buffer(const expr::Expr& e, std::string_view from, const std::string& to);
// The name of the n-th buffer that shorthands ask for under one name: bias, bias2, bias3.
std::string numbered(std::string_view name, int n);

}  // namespace attn::core
