#include "reference/tensor_core_sums.hpp"

#include <array>
#include <cstddef>

#if defined(__x86_64__) && !defined(_WIN32)
#include <immintrin.h>
#define ATTN_SUMS_WITH_AVX2 1
#endif

namespace attn::reference {
namespace {

constexpr int kMostTerms = std::max(kTensorCore16.terms, kTensorCore8.terms);

// Columns [first, last), one by one.
void add_each(float* sums, std::int64_t first, std::int64_t last, const float* a,
              const float* const* x, int terms, const TensorCore& core) {
  std::array<float, kMostTerms> column;
  for (std::int64_t c = first; c < last; ++c) {
    for (std::size_t k = 0; k < static_cast<std::size_t>(terms); ++k) column[k] = x[k][c];
    sums[c] = tensor_core_sum(sums[c], a, column.data(), terms, core);
  }
}

#ifdef ATTN_SUMS_WITH_AVX2
constexpr int kInfinite = 255, kBias = 127;  // of exponents of floats

// What all columns share of their factors a. exponent: less the bias; of 0 below all others.
struct Factors {
  std::array<std::int32_t, kMostTerms> exponent;
  std::array<double, kMostTerms> value;
  bool finite = true;
};
Factors factors_of(const float* a, int terms) {
  constexpr int kOfZero = -1024;
  Factors f;
  for (std::size_t k = 0; k < static_cast<std::size_t>(terms); ++k) {
    f.exponent[k] = a[k] != 0 ? biased_exponent(a[k]) - kBias : kOfZero;
    f.value[k] = a[k];
    f.finite = f.finite && biased_exponent(a[k]) != kInfinite;
  }
  return f;
}

// Functions below run only where there is AVX2, whatever the rest of the file is compiled for. They
// are compiled without FMA.
#define ATTN_AVX2 __attribute__((target("avx2")))

// Of four columns, whose largest exponents these are. The integers are those of tensor_core_sum,
// whose order of summation does not matter.
ATTN_AVX2 inline __m128 add_four(__m128 sum, __m128i largest, const Factors& f,
                                 const float* const* x, std::int64_t first, int terms,
                                 const TensorCore& core) {
  constexpr int kDouble = 52, kDoubleBias = 1023;  // bits of a double, bias of its exponent
  const __m256i unit =
      _mm256_sub_epi64(_mm256_cvtepi32_epi64(largest), _mm256_set1_epi64x(kBias + core.bits));
  const __m256i bias = _mm256_set1_epi64x(kDoubleBias);
  const __m256d to_units =
      _mm256_castsi256_pd(_mm256_slli_epi64(_mm256_sub_epi64(bias, unit), kDouble));
  const __m256d from_units =
      _mm256_castsi256_pd(_mm256_slli_epi64(_mm256_add_epi64(bias, unit), kDouble));
  // A product is below 4 at the largest exponent, 2^27 units of 16-bit factors: 16 of them are
  // below 2^31. Those of 8-bit floats are far below that.
  __m128i products = _mm_setzero_si128();
  for (std::size_t k = 0; k < static_cast<std::size_t>(terms); ++k) {
    const __m256d row = _mm256_cvtps_pd(_mm_loadu_ps(x[k] + first));
    const __m256d product = _mm256_mul_pd(_mm256_set1_pd(f.value[k]), row);
    products = _mm_add_epi32(products, _mm256_cvttpd_epi32(_mm256_mul_pd(product, to_units)));
  }
  const __m128i own = _mm256_cvttpd_epi32(_mm256_mul_pd(_mm256_cvtps_pd(sum), to_units));
  const __m256d total = _mm256_add_pd(_mm256_cvtepi32_pd(own), _mm256_cvtepi32_pd(products));
  const __m256d kept =
      _mm256_castsi256_pd(_mm256_set1_epi64x(-(std::int64_t{1} << (kDouble - core.kept))));
  return _mm256_cvtpd_ps(_mm256_and_pd(_mm256_mul_pd(total, from_units), kept));
}

ATTN_AVX2 void add_columns(float* sums, std::int64_t n, const float* a, const float* const* x,
                           int terms, const TensorCore& core) {
  constexpr std::int64_t kColumns = 8;
  const Factors f = factors_of(a, terms);
  const __m256i no_sign = _mm256_set1_epi32(0x7fffffff), zero = _mm256_setzero_si256();
  std::int64_t c = 0;
  for (; f.finite && c + kColumns <= n; c += kColumns) {
    const __m256 sum = _mm256_loadu_ps(sums + c);
    __m256i largest = _mm256_srli_epi32(_mm256_and_si256(_mm256_castps_si256(sum), no_sign), 23);
    __m256i largest_factor = largest;
    for (std::size_t k = 0; k < static_cast<std::size_t>(terms); ++k) {
      const __m256i row = _mm256_and_si256(_mm256_castps_si256(_mm256_loadu_ps(x[k] + c)), no_sign);
      const __m256i of_row = _mm256_srli_epi32(row, 23);
      const __m256i of_product = _mm256_add_epi32(of_row, _mm256_set1_epi32(f.exponent[k]));
      const __m256i is_zero = _mm256_cmpeq_epi32(row, zero);
      largest = _mm256_max_epi32(largest, _mm256_andnot_si256(is_zero, of_product));
      largest_factor = _mm256_max_epi32(largest_factor, of_row);
    }
    const __m256i infinite = _mm256_cmpeq_epi32(largest_factor, _mm256_set1_epi32(kInfinite));
    if (_mm256_movemask_epi8(infinite) != 0) {
      add_each(sums, c, c + kColumns, a, x, terms, core);
      continue;
    }
    const __m128 low = add_four(_mm256_castps256_ps128(sum), _mm256_castsi256_si128(largest), f, x,
                                c, terms, core);
    const __m128 high = add_four(_mm256_extractf128_ps(sum, 1),
                                 _mm256_extracti128_si256(largest, 1), f, x, c + 4, terms, core);
    _mm_storeu_ps(sums + c, low);
    _mm_storeu_ps(sums + c + 4, high);
  }
  add_each(sums, c, n, a, x, terms, core);
}
#endif

}  // namespace

void tensor_core_sums(float* sums, std::int64_t n, const float* a, const float* const* x, int terms,
                      const TensorCore& core) {
#ifdef ATTN_SUMS_WITH_AVX2
  if (__builtin_cpu_supports("avx2") != 0) return add_columns(sums, n, a, x, terms, core);
#endif
  add_each(sums, 0, n, a, x, terms, core);
}

}  // namespace attn::reference
