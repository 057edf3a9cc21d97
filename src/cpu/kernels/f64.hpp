// The verbs of f64/verbs.hpp: one product of matrices, and the elementwise steps of softmax.
#pragma once

#include "cpu/f64/verbs.hpp"
#include "cpu/kernels/finite.hpp"
#include "cpu/kernels/gradient_sums.hpp"
#include "cpu/kernels/products.hpp"
#include "cpu/kernels/vec.hpp"

namespace attn::cpu::ATTN_ISA {

ATTN_INLINE D set_double(double x) { return x - D{}; }
ATTN_INLINE D load_d(const double* p) { return load_as<D>(p); }
ATTN_INLINE void store_d(double* p, D v) { __builtin_memcpy(p, &v, sizeof(v)); }
ATTN_INLINE D select(L condition, D a, D b) { return condition ? a : b; }

// a * b + c, rounded once where the instruction set has it.
ATTN_INLINE D fma(D a, D b, D c) {
#if ATTN_VECTOR_BYTES == 64
  return _mm512_fmadd_pd(a, b, c);
#elif ATTN_VECTOR_BYTES == 32
  return _mm256_fmadd_pd(a, b, c);
#elif defined(__aarch64__)
  return vfmaq_f64(c, a, b);
#else
  return a * b + c;
#endif
}

// e^d for d <= 0, and 1 above: a probability. -inf gives 0, NaN gives NaN, results below 2^-1021
// are 0; else within 1 ulp (2 without FMA).
ATTN_INLINE D exp_of_difference(D d) {
  const D floor = set_double(-708.0);
  const D x = select(d > 0.0, D{}, select(d < floor, floor, d));
  // d = n ln 2 + r. ln 2 is subtracted in two parts, of which the first has 21 zero bits at its
  // end, so that n times it is exact.
  const D magic = set_double(0x1.8p52);  // adding it leaves n in the low bits of the mantissa
  const D shifted = fma(x, set_double(0x1.71547652b82fep0), magic);
  const D n = shifted - magic;
  const D high = fma(n, set_double(-0x1.62e42fee00000p-1), x);
  const D r = fma(n, set_double(-0x1.a39ef35793c76p-33), high);
  // e^r = 1 + r + r^2 p(r) for r in [-ln 2 / 2, ln 2 / 2]: p interpolates at the nodes of
  // Chebyshev, degree 9; the relative error of e^r is 1.6e-17.
  D p = fma(set_double(0x1.af38a9b0ec855p-26), r, set_double(0x1.289185613a3d6p-22));
  p = fma(p, r, set_double(0x1.71de0dae63bb3p-19));
  p = fma(p, r, set_double(0x1.a019b90d2ae7ap-16));
  p = fma(p, r, set_double(0x1.a01a01a7c41d5p-13));
  p = fma(p, r, set_double(0x1.6c16c1788bd90p-10));
  p = fma(p, r, set_double(0x1.11111111109b3p-7));
  p = fma(p, r, set_double(0x1.5555555553d63p-5));
  p = fma(p, r, set_double(0x1.5555555555556p-3));
  p = fma(p, r, set_double(0.5));
  const D power = fma(r * r, p, r) + 1.0;
  // n >= -1021 and e^r >= 0.7, so adding n to the exponent field leaves a normal number.
  const D scaled = bit_cast<D>(bit_cast<L>(power) + (bit_cast<L>(shifted) << 52));
  return select(d < floor, D{}, select(d == d, scaled, d));
}

// Rows and vectors of a register tile: 6 x 4 sums where there are 32 registers, else what
// products.hpp takes.
inline constexpr int kF64Rows = kManyRegisters ? 6 : kRegisterKeys;
inline constexpr int kF64Vectors = kManyRegisters ? 4 : 2;

template <bool kCareful, int kCount, int kWidth>
ATTN_INLINE void multiply_tile(const ProductF64& x, int row, int column) {
  const double* a = x.a + row * x.a_row;
  const double* b = x.b + column;
  const std::ptrdiff_t a_row = x.a_row, a_step = x.a_step, b_row = x.b_row;
  const int depth = x.depth;
  D acc[kCount][kWidth] = {};
  for (int k = 0; k < depth; ++k, a += a_step, b += b_row) {
    D v[kWidth];
#pragma GCC unroll 4
    for (int w = 0; w < kWidth; ++w) v[w] = load_d(b + w * kDoubles);
#pragma GCC unroll 8
    for (int r = 0; r < kCount; ++r) {
      if (kCareful && a[r * a_row] == 0) continue;
      const D s = set_double(a[r * a_row]);
#pragma GCC unroll 4
      for (int w = 0; w < kWidth; ++w) acc[r][w] = fma(s, v[w], acc[r][w]);
    }
  }
  const D scale = set_double(x.scale);
#pragma GCC unroll 8
  for (int r = 0; r < kCount; ++r) {
    double* c = x.c + (row + r) * x.c_row + column;
#pragma GCC unroll 4
    for (int w = 0; w < kWidth; ++w) {
      const D sum = acc[r][w] * scale;
      const D before = x.keep == nullptr ? D{} : load_d(c + w * kDoubles);
      const D kept = x.keep == nullptr ? sum : fma(set_double(x.keep[row + r]), before, sum);
      store_d(c + w * kDoubles, kept);
    }
  }
}

// The rows of kWidth vectors. Eight rows are twice four: sums of two rows would wait for each
// other.
template <bool kCareful, int kWidth>
ATTN_INLINE void multiply_columns(const ProductF64& x, int column) {
  int row = 0;
  for (; x.rows - row >= kF64Rows && x.rows - row != 8; row += kF64Rows) {
    multiply_tile<kCareful, kF64Rows, kWidth>(x, row, column);
  }
  for (; x.rows - row >= 4; row += 4) multiply_tile<kCareful, 4, kWidth>(x, row, column);
  for (; row < x.rows; ++row) multiply_tile<kCareful, 1, kWidth>(x, row, column);
}

template <bool kCareful>
static void multiply_all(const ProductF64& x) {
  constexpr int kStep = kF64Vectors * kDoubles;
  int column = 0;
  for (; column + kStep <= x.columns; column += kStep)
    multiply_columns<kCareful, kF64Vectors>(x, column);
  for (; column < x.columns; column += kDoubles) multiply_columns<kCareful, 1>(x, column);
}

static void multiply_f64(const ProductF64& x) {
  x.careful ? multiply_all<true>(x) : multiply_all<false>(x);
}

static void softmax_f64(double* s, int rows, int columns, double* m, double* l, double* alpha) {
  for (int row = 0; row < rows; ++row, s += kTileLd) {
    D most = set_double(m[row]);  // what is NaN is no maximum, and makes the sum NaN
    for (int j = 0; j < columns; j += kDoubles) {
      const D x = load_d(s + j);
      most = select(x > most, x, most);
    }
    double maximum = most[0];
    for (int i = 1; i < kDoubles; ++i) maximum = most[i] > maximum ? most[i] : maximum;
    alpha[row] = exp_of_difference(set_double(m[row] - maximum))[0];
    m[row] = maximum;
    D sum = {};
    for (int j = 0; j < columns; j += kDoubles) {
      const D p = exp_of_difference(load_d(s + j) - maximum);
      sum += p;
      store_d(s + j, p);
    }
    l[row] = alpha[row] * l[row] + sum_of_lanes(sum);
  }
}

static void probabilities_f64(double* s, int rows, int columns, const double* lse) {
  for (int row = 0; row < rows; ++row, s += kTileLd) {
    for (int j = 0; j < columns; j += kDoubles) {
      const D x = load_d(s + j);
      const D p = exp_of_difference(x - lse[row]);
      store_d(s + j, select(x == -__builtin_inf(), D{}, p));
    }
  }
}

static void score_gradient_f64(const double* p, double* dp, int rows, int columns,
                               const double* delta) {
  for (int row = 0; row < rows; ++row, p += kTileLd, dp += kTileLd) {
    for (int j = 0; j < columns; j += kDoubles) {
      const D x = load_d(p + j);
      store_d(dp + j, select(x == 0.0, D{}, x * (load_d(dp + j) - delta[row])));
    }
  }
}

static void transpose_f64(const double* const* row, int rows, int columns, double* to, int ld) {
  int i = 0;
  for (; i + 4 <= rows; i += 4) {  // four rows are read side by side
    const double *a = row[i], *b = row[i + 1], *c = row[i + 2], *d = row[i + 3];
    double* out = to + i;
    for (int j = 0; j < columns; ++j, out += ld) {
      out[0] = a[j];
      out[1] = b[j];
      out[2] = c[j];
      out[3] = d[j];
    }
  }
  for (; i < rows; ++i) {
    for (int j = 0; j < columns; ++j) to[j * ld + i] = row[i][j];
  }
}

// kKeys keys at a time, whose sums do not wait for each other.
template <int kKeys>
ATTN_INLINE void dots_of(const double* q, const double* const* row, int dim, double scale,
                         double* s) {
  D acc[kKeys] = {};
  int d = 0;
  for (; d + kDoubles <= dim; d += kDoubles) {
    const D x = load_d(q + d);
#pragma GCC unroll 8
    for (int j = 0; j < kKeys; ++j) acc[j] = fma(x, load_d(row[j] + d), acc[j]);
  }
#pragma GCC unroll 8
  for (int j = 0; j < kKeys; ++j) {
    double sum = sum_of_lanes(acc[j]);
    for (int rest = d; rest < dim; ++rest) sum += q[rest] * row[j][rest];
    s[j] = scale * sum;
  }
}

static void dots_f64(const double* q, const double* const* row, int keys, int dim, double scale,
                     double* s) {
  int j = 0;
  for (; j + 4 <= keys; j += 4) dots_of<4>(q, row + j, dim, scale, s + j);
  for (; j < keys; ++j) dots_of<1>(q, row + j, dim, scale, s + j);
}

// kWidth vectors of columns.
template <bool kCareful, int kWidth>
ATTN_INLINE void add_columns(const double* p, const double* const* row, int keys, int column,
                             double alpha, double* o) {
  D acc[kWidth];
#pragma GCC unroll 8
  for (int w = 0; w < kWidth; ++w) acc[w] = load_d(o + column + w * kDoubles) * alpha;
  for (int j = 0; j < keys; ++j) {
    if (kCareful && p[j] == 0) continue;
    const D x = set_double(p[j]);
    const double* const v = row[j] + column;
#pragma GCC unroll 8
    for (int w = 0; w < kWidth; ++w) acc[w] = fma(x, load_d(v + w * kDoubles), acc[w]);
  }
#pragma GCC unroll 8
  for (int w = 0; w < kWidth; ++w) store_d(o + column + w * kDoubles, acc[w]);
}

template <bool kCareful>
static void add_weighted_of(const double* p, const double* const* row, int keys, int dim,
                            double alpha, double* o) {
  constexpr int kWidth = 8;
  int d = 0;
  for (; d + kWidth * kDoubles <= dim; d += kWidth * kDoubles) {
    add_columns<kCareful, kWidth>(p, row, keys, d, alpha, o);
  }
  for (; d + kDoubles <= dim; d += kDoubles) {
    add_columns<kCareful, 1>(p, row, keys, d, alpha, o);
  }
  for (; d < dim; ++d) {
    double sum = alpha * o[d];
    for (int j = 0; j < keys; ++j) sum += kCareful && p[j] == 0 ? 0 : p[j] * row[j][d];
    o[d] = sum;
  }
}

static void add_weighted_f64(const double* p, const double* const* row, int keys, int dim,
                             double alpha, bool careful, double* o) {
  careful ? add_weighted_of<true>(p, row, keys, dim, alpha, o)
          : add_weighted_of<false>(p, row, keys, dim, alpha, o);
}

static constexpr VerbsF64 verbs_f64() {
  VerbsF64 verbs{};
  verbs.multiply = multiply_f64;
  verbs.softmax = softmax_f64;
  verbs.probabilities = probabilities_f64;
  verbs.score_gradient = score_gradient_f64;
  verbs.dots = dots_f64;
  verbs.add_weighted = add_weighted_f64;
  verbs.all_finite = all_finite_f64;
  verbs.transpose = transpose_f64;
  return verbs;
}

}  // namespace attn::cpu::ATTN_ISA
