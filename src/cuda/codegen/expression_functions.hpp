// Functions of device code that evaluate a program or read a buffer: what the structs of
// expression_text.hpp and expression_gradients.hpp are printed from.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "attn/expr.hpp"
#include "core/expr/cuda_text.hpp"
#include "cuda/codegen/expression_factors.hpp"

namespace attn::cuda {

// A member function.
std::string function(std::string_view result, std::string_view name, std::string_view parameters,
                     std::string_view body);

// Statements that compute instruction `result` and return it. factors: as of ExpressionValues.
std::string value_body(const expr::Program& program, expr::CudaMath math,
                       const ScoreFactors* factors, std::size_t result);

// How a buffer is read: an element for each score, one that many scores share, ranges.
struct Readers {
  bool element = false, shared = false, range = false;
};
// The view of a buffer, of `tensor`, and what reads it; or a scalar.
std::string buffer_text(const expr::Buffer& buffer, const Tensor& tensor, const Readers& readers);

}  // namespace attn::cuda
