// Matrix products with random data, and how their results are judged.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "attn/matmul.hpp"

namespace attn::verify {

// {batch, m, n, k}; variants 0 to 7 have every order of A, B and C, and among them every output,
// bias and activation.
MatmulProblem varied_problem(const std::array<std::int64_t, 4>& shape, DType dtype, int variant);

// The tensors of a product. Rows (columns, in column_major order) have gaps of `gap` elements
// between them, of a negative one gaps up to the next multiple of -gap, and gaps and C are NaN
// until they are written.
class MatmulData {
 public:
  // A and B are drawn from the normal distribution, A with an offset of 1/4 so that sums grow. A
  // mask has about the share `density`, in [0, 1], of the blocks of each row, on diagonals: one of
  // them at least where density is not 0. What it leaves out of B is NaN. Throws
  // Error(out_of_memory), which names the matrix and its size.
  MatmulData(const MatmulProblem& problem, std::uint64_t seed, std::int64_t gap = 0,
             double density = 0.5);
  MatmulData(const MatmulData&) = delete;
  MatmulData& operator=(const MatmulData&) = delete;

  MatmulProblem problem;
  MatmulInputs inputs;
  Tensor c;
  double density;  // the share of the blocks that the mask has; 1 without a mask
  std::vector<std::byte> bytes_a, bytes_b, bytes_c, bytes_bias, bytes_scales, bytes_mask;
  std::vector<std::byte> bytes_before;  // what C held, where the problem accumulates

  void poison();
  // Empty, or what was written between the rows of C.
  std::string damage() const;
};

struct MatmulCheck {
  double worst = 0;  // the largest error as a share of what is allowed: 1 or less passes
  std::int64_t checked = 0;
  std::string where;  // of the worst
  bool passed() const { return worst <= 1; }
};

// Compares C, but for blocks that a mask leaves out, with the fp64 reference: every element of
// small products, else `samples` of them with the corners and edges among them. Allowed is 4 sqrt(k
// + 2) 2^-24 sum_l |A_il B_lj| (Higham and Mary 2019, the probabilistic bound of a sum of k
// products with lambda = 4), times the largest slope of the activation (1.13), and one rounding of
// C. A product of 8-bit floats may be within that of what tensor cores compute, instead: they keep
// 13 bits of a sum, and which is known exactly (reference/tensor_core.hpp).
MatmulCheck check_matmul(const MatmulData& data, std::int64_t samples = 4096);

}  // namespace attn::verify
