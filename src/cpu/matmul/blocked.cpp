// Rung 2. The naive loops wait for memory. Here a block of B (128 steps of k, 256 columns, 128 KB)
// is copied once and used for 64 rows of C, and columns are innermost: neighbours in memory, which
// the compiler puts into vectors. Expected: 20 to 30 times, a vector of four products a cycle.
// Measured: 24 times (25 GFLOP/s). Every sum still goes through L1 at each step of k: a load and a
// store for a multiplication.
#include <algorithm>
#include <vector>

#include "core/tensor/element.hpp"
#include "cpu/matmul/matmul.hpp"

namespace attn::cpu {
namespace {

constexpr std::int64_t kRows = 64, kColumns = 256, kDepth = 128;

// The element as float.
float value(const core::MatrixView& x, std::int64_t batch, std::int64_t row, std::int64_t column) {
  return static_cast<float>(core::load_element(x.at(batch, row, column), x.dtype));
}

// sums[kColumns] += a row of A times the block of B.
void add_row(const float* a, const float* b, std::int64_t depth, float* sums) {
  for (std::int64_t l = 0; l < depth; ++l) {
    const float x = a[l];
    const float* row = b + l * kColumns;
    for (std::int64_t j = 0; j < kColumns; ++j) sums[j] += x * row[j];
  }
}

}  // namespace

void matmul_blocked(const Product& p, const Workers& workers) {
  const std::int64_t down = (p.m + kRows - 1) / kRows, across = (p.n + kColumns - 1) / kColumns;
  workers.parallel_for(p.batch * down * across, [&](std::int64_t index, int) {
    const std::int64_t batch = index / (down * across);
    const std::int64_t i0 = index / across % down * kRows, j0 = index % across * kColumns;
    const std::int64_t rows = std::min(kRows, p.m - i0), columns = std::min(kColumns, p.n - j0);
    std::vector<float> sums(kRows * kColumns), b(kDepth * kColumns), a(kDepth);
    for (std::int64_t i = 0; p.accumulate && i < rows; ++i) {
      for (std::int64_t j = 0; j < columns; ++j) {
        sums[static_cast<std::size_t>(i * kColumns + j)] = value(p.c, batch, i0 + i, j0 + j);
      }
    }
    for (std::int64_t l0 = 0; l0 < p.k; l0 += kDepth) {
      const std::int64_t depth = std::min(kDepth, p.k - l0);
      for (std::int64_t l = 0; l < depth; ++l) {
        for (std::int64_t j = 0; j < columns; ++j) {
          b[static_cast<std::size_t>(l * kColumns + j)] = value(p.b, batch, l0 + l, j0 + j);
        }
      }
      for (std::int64_t i = 0; i < rows; ++i) {
        for (std::int64_t l = 0; l < depth; ++l) {
          a[static_cast<std::size_t>(l)] = value(p.a, batch, i0 + i, l0 + l);
        }
        add_row(a.data(), b.data(), depth, sums.data() + i * kColumns);
      }
    }
    for (std::int64_t i = 0; i < rows; ++i) {
      for (std::int64_t j = 0; j < columns; ++j) {
        const float sum = sums[static_cast<std::size_t>(i * kColumns + j)];
        core::store_element(p.c.at(batch, i0 + i, j0 + j), p.c.dtype,
                            core::activate(p.activation, sum + p.bias_at(i0 + i, j0 + j)));
      }
    }
  });
}

}  // namespace attn::cpu
