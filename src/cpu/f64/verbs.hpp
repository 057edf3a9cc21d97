// The verbs of the f64 algorithms (src/cpu/f64), one table of them for each instruction set. Here
// rows of a tile lie one after the other and keys in lanes: S, P, dP and dS are [row][kTileLd].
// Sums are in double. The caller owns all memory.
#pragma once

#include <cstddef>

namespace attn::cpu {

// Doubles of a cache line: columns are computed up to a multiple of it.
inline constexpr int kLineDoubles = 8;
constexpr int whole_lines(int columns) {
  return (columns + kLineDoubles - 1) / kLineDoubles * kLineDoubles;
}
// From one row of a packed matrix to the next: an odd number of cache lines, so that the lines of
// one column fall into different sets of a cache.
constexpr int leading_dim_f64(int columns) {
  return (whole_lines(columns) / kLineDoubles | 1) * kLineDoubles;
}
inline constexpr int kTileLd = leading_dim_f64(64);  // kBlockK columns

// C[i][j] <- scale sum_k A(i, k) B[k][j] + keep[i] C[i][j] for i < rows, j < columns; element (i,
// k) of A is a[i * a_row + k * a_step], so that A may be read transposed.
struct ProductF64 {
  const double* a = nullptr;
  std::ptrdiff_t a_row = 0, a_step = 0;
  const double* b = nullptr;
  std::ptrdiff_t b_row = 0;
  double* c = nullptr;
  std::ptrdiff_t c_row = 0;
  int rows = 0, columns = 0, depth = 0;  // columns: a multiple of kLineDoubles
  double scale = 1;
  const double* keep = nullptr;  // [rows]; null: C is written, not added to
  // Where A is 0 nothing is added, be B an infinity or NaN; where B is finite the bits are the
  // same.
  bool careful = false;
};

struct VerbsF64 {
  void (*multiply)(const ProductF64& product);
  // Online softmax of each row: m' = max(m, max s), alpha = e^(m - m'), s <- P = e^(s - m'), l <-
  // alpha l + sum P, m <- m'. m starts at the least finite double. columns: a multiple of
  // kLineDoubles; -inf is left out.
  void (*softmax)(double* s, int rows, int columns, double* m, double* l, double* alpha);
  // s <- P = e^(s - lse[row]), 0 where s is -inf whatever lse.
  void (*probabilities)(double* s, int rows, int columns, const double* lse);
  // dp <- dS = P (dP - delta[row]), 0 where P is 0 whatever dP and delta.
  void (*score_gradient)(const double* p, double* dp, int rows, int columns, const double* delta);
  // Of a few rows against keys where they lie: key j at row[j], of `dim` columns.
  // s[j] <- scale q . row[j]
  void (*dots)(const double* q, const double* const* row, int keys, int dim, double scale,
               double* s);
  // o[0, dim) <- alpha o + sum_j p[j] row[j][0, dim); careful: as of ProductF64.
  void (*add_weighted)(const double* p, const double* const* row, int keys, int dim, double alpha,
                       bool careful, double* o);
  // Whether x[0, count) holds no infinity and no NaN; count: a multiple of kLineDoubles.
  bool (*all_finite)(const double* x, std::ptrdiff_t count);
  // to[column][ld] <- from[row][0, columns), transposed.
  void (*transpose)(const double* const* row, int rows, int columns, double* to, int ld);
};

}  // namespace attn::cpu
