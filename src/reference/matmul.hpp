// The matrix product as it is defined (attn/matmul.hpp), in fp64.
#pragma once

#include "attn/matmul.hpp"

namespace attn::reference {

// One element of C before it is rounded, and the sum of |A_il B_lj| that its error is measured
// with.
struct Element {
  double value = 0;
  double magnitude = 0;
};
Element matmul_element(const MatmulProblem& problem, const MatmulInputs& inputs, std::int64_t batch,
                       std::int64_t row, std::int64_t column);

// The same element as the tensor cores of Hopper compute it from 8-bit floats: each 128 steps are a
// sum of four instructions of 32 (tensor_core.hpp), and these sums are added in float.
double matmul_element_float8(const MatmulProblem& problem, const MatmulInputs& inputs,
                             std::int64_t batch, std::int64_t row, std::int64_t column);

// All of C. Arguments are valid.
void matmul(const MatmulProblem& problem, const MatmulInputs& inputs, const Tensor& c);

}  // namespace attn::reference
