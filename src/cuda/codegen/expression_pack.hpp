// The bytes of a printed struct of expressions: what a kernel is given for it.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "attn/expr.hpp"
#include "cuda/codegen/printed_buffers.hpp"

namespace attn::cuda {

// A number of the struct that a scalar of each call multiplies.
struct ScaledNumber {
  std::size_t number = 0;  // which of them
  double base = 0;         // what it is where the scalar is 1
  std::size_t scalar = 0;  // which of the buffers, of float32
  bool divides = false;    // the base by the scalar
};

// What follows from the expressions of such a struct, found once: each call packs its tensors
// without allocating. Immutable; threads may share it.
class ExpressionPack {
 public:
  // Views of the buffers, or values of scalars, come first, then the numbers. score: of which the
  // text is printed, or empty.
  explicit ExpressionPack(std::vector<std::shared_ptr<const expr::Buffer>> buffers = {},
                          std::vector<float> numbers = {}, const expr::Expr& score = {},
                          std::vector<ScaledNumber> scaled = {});

  std::size_t size() const noexcept { return size_; }  // a multiple of 8, at least 8
  // Writes size() bytes for tensors on a CUDA device: bound, or the buffers' own. Throws
  // Error(invalid_argument) for tensors that cannot be read there.
  void pack(const expr::Bindings& bindings, std::byte* to) const;
  std::vector<std::byte> packed(const expr::Bindings& bindings) const;  // the same

  // What the text for tensors bound so depends on, and whether it is that of `printed`.
  PrintedBuffers printed(const expr::Bindings& bindings) const;
  bool prints(const PrintedBuffers& printed, const expr::Bindings& bindings) const;

 private:
  PrintedTensor printed_of(std::size_t i, const expr::Bindings& bindings) const;

  std::vector<std::shared_ptr<const expr::Buffer>> buffers_;
  std::vector<bool> vectors_;  // may_load_vectors (expression_vectors.hpp), of each buffer
  std::vector<float> numbers_;
  std::vector<ScaledNumber> scaled_;
  std::size_t size_;
};

// The pack of nothing but the buffers, in the order of those: for `printed` and `prints`.
ExpressionPack buffers_pack(const expr::Expr& mask, const expr::Expr& score);

// The pack of the struct that print_expressions prints, for a softmax_scale and the
// ATTN_PRECISE_MATH it is compiled with; its size depends on neither.
ExpressionPack expression_pack(const expr::Expr& mask, const expr::Expr& score,
                               double softmax_scale, int precise_math);

}  // namespace attn::cuda
