// The matrix product as it is defined (attn/matmul.hpp), in fp64.
#pragma once

#include <span>

#include "attn/matmul.hpp"
#include "core/matmul.hpp"

namespace attn::reference {

// One element of C before it is rounded, and the sum of |A_il B_lj| that its error is measured
// with.
struct Element {
  double value = 0;
  double magnitude = 0;
};

// What C holds where the problem accumulates.
Element before(const core::MatrixView& c, std::int64_t batch, std::int64_t row,
               std::int64_t column);

// Elements of a row of C, as many as c has, from a column on. c: what C held, where the problem
// accumulates.
void matmul_row(const MatmulProblem& problem, const MatmulInputs& inputs, std::int64_t batch,
                std::int64_t row, std::int64_t column, std::span<Element> c);
inline Element matmul_element(const MatmulProblem& problem, const MatmulInputs& inputs,
                              std::int64_t batch, std::int64_t row, std::int64_t column) {
  Element e;
  matmul_row(problem, inputs, batch, row, column, {&e, 1});
  return e;
}

// The same element as the tensor cores of Hopper compute it from 8-bit floats: each 128 steps are a
// sum of four instructions of 32 (tensor_core.hpp), and these sums are added in float.
double matmul_element_float8(const MatmulProblem& problem, const MatmulInputs& inputs,
                             std::int64_t batch, std::int64_t row, std::int64_t column);

// All of C. Arguments are valid.
void matmul(const MatmulProblem& problem, const MatmulInputs& inputs, const Tensor& c);

}  // namespace attn::reference
