// Matrix products as every backend sees them: views without a batch dimension that may be missing.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "attn/matmul.hpp"

namespace attn::core {

// A tensor of rank 2 or 3 as [batch, rows, columns]; strides in elements.
struct MatrixView {
  std::byte* data = nullptr;
  DType dtype = DType::f32;
  std::int64_t batch_stride = 0, row_stride = 0, column_stride = 0;

  MatrixView() = default;
  explicit MatrixView(const Tensor& t);
  std::byte* at(std::int64_t batch, std::int64_t row, std::int64_t column) const {
    return data + (batch * batch_stride + row * row_stride + column * column_stride) *
                      static_cast<std::int64_t>(size_of(dtype));
  }
};

// A block mask where the kernels meet it.
struct BlockMaskView {
  enum class Of : std::uint8_t { none, a, b, c };

  BlockMaskView() = default;
  // The mask of B or C, as the caller has it.
  BlockMaskView(const MatmulProblem& problem, const MatmulInputs& inputs);

  Of of = Of::none;
  const std::uint8_t* data = nullptr;
  std::int64_t block = 1, row_stride = 0, column_stride = 0;

  // Whether the block of element (row, column) of the masked matrix is there.
  bool has(std::int64_t row, std::int64_t column) const {
    return data[row / block * row_stride + column / block * column_stride] != 0;
  }
  // Whether A_il is multiplied by B_lj for C_ij.
  bool multiplies(std::int64_t i, std::int64_t l, std::int64_t j) const {
    switch (of) {
      case Of::none:
        return true;
      case Of::a:
        return has(i, l);
      case Of::b:
        return has(l, j);
      case Of::c:
        return has(i, j);
    }
    return true;
  }
};

// A product as backends see it: C has row-major order, as C^T = B^T A^T stands for C where it has
// not, and bias belongs to rows then.
struct MatmulOperands {
  MatmulOperands(const MatmulProblem& problem, const MatmulInputs& inputs, const Tensor& c_tensor);
  std::int64_t batch, m, n, k;
  MatrixView a, b, c;
  const float* bias;  // null: none
  std::int64_t bias_stride;
  bool bias_of_rows;
  const float *scale_a, *scale_b;  // null: 1
  Activation activation;
  BlockMaskView mask;
  bool accumulate;
  BlockFormat format_b;  // of b; a is never in blocks

  float bias_at(std::int64_t row, std::int64_t column) const {
    return bias == nullptr ? 0 : bias[(bias_of_rows ? row : column) * bias_stride];
  }
};

// x after the activation, in double: the definition.
double activate(Activation activation, double x);

// Throws Error(invalid_argument) for sizes, dtypes or orders that describe no product.
void validate_matmul(const MatmulProblem& problem);
// Throws for these too, and for tensors that are not those of the problem, or that share memory.
void validate_matmul(const MatmulProblem& problem, const MatmulInputs& inputs, const Tensor& c,
                     Device device);

}  // namespace attn::core
