// What the estimates of matrix products know of a problem.
#pragma once

#include <cstdint>

#include "cuda/matmul/matmul_config.hpp"

namespace attn::cuda {

// The sizes of a product whose C is row-major.
struct MatmulSizes {
  std::int64_t batch, m, n, k;
  std::int64_t depth;     // steps of k of a stage with wgmma: 128 bytes
  bool panels_b = false;  // B comes in panels of 64 columns: it does not lie along k
};

// Which tiles a problem takes.
struct MatmulTileLimits {
  // 8-bit floats need two sums for each element, 256 columns of which are too many registers.
  int most_columns = 320;
  std::int64_t of_rows = 0, of_columns = 0;  // what rows and columns divide, as blocks of a mask

  bool take(const MatmulShape& s) const {
    return s.columns <= most_columns && of_rows % s.rows == 0 && of_columns % s.columns == 0;
  }
};

}  // namespace attn::cuda
