// Functions of device code that evaluate a program or read a buffer: what the structs of
// expression_text.hpp and expression_gradients.hpp are printed from.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "attn/expr.hpp"
#include "core/expr/cuda_text.hpp"
#include "cuda/codegen/expression_factors.hpp"
#include "cuda/codegen/printed_buffers.hpp"

namespace attn::cuda {

// A member function.
std::string function(std::string_view result, std::string_view name, std::string_view parameters,
                     std::string_view body);

// Statements that compute instruction `result` and return it. factors: as of ExpressionValues.
std::string value_body(const expr::Program& program, expr::CudaMath math,
                       const ScoreFactors* factors, std::size_t result);

// The point at which a derivative is taken, as parameters and as arguments of a member function.
inline constexpr std::string_view kPoint =
    "float dot, int query, int key, int batch, int head, int seqlen_q, int seqlen_k";
inline constexpr std::string_view kArguments = "dot, query, key, batch, head, seqlen_q, seqlen_k";
// A member function of a point that evaluates e, which is int32 or float32.
std::string value_function(std::string_view name, const expr::Expr& e);
// Views of all that a score reads: what its derivatives read is among it.
std::string views_text(const expr::Expr& score, const PrintedBuffers& printed);
// A struct of derivatives with these members, a kernel parameter, and what it includes.
std::string struct_text(std::string_view name, std::string_view body);

// The struct of device code (expr/buffer.cuh) for elements of a dtype that a buffer may have.
std::string_view element_name(DType dtype);

// How a buffer is read: an element for each score, one that many scores share, ranges.
struct Readers {
  bool element = false, shared = false, range = false;
};
// The view of a buffer, of `tensor`, and what reads it; or a scalar.
std::string buffer_text(const expr::Buffer& buffer, const PrintedTensor& tensor,
                        const Readers& readers);

}  // namespace attn::cuda
