// Which query sees which key, one key at a time, by formulas that the library has no part in. With
// all scores 0 and the identity for V, O is P: 1 / (number of visible keys) where a query sees a
// key, exactly 0 where not. Lengths differ by 0 to 127, so that the diagonal crosses tiles at every
// place.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "verify/data.hpp"

namespace attn::verify {

struct Visibility {
  const char* mask;  // as in descriptors
  // distance: of the query's place among the keys, bottom-right aligned, from the key
  bool (*sees)(std::int64_t distance, std::int64_t query, std::int64_t key);
};
inline constexpr Visibility kVisibilities[] = {
    {"_causal", [](std::int64_t distance, std::int64_t, std::int64_t) { return distance >= 0; }},
    {"_window20x9", [](std::int64_t distance, std::int64_t,
                       std::int64_t) { return distance <= 20 && distance >= -9; }},
    {"_causaltl", [](std::int64_t, std::int64_t query, std::int64_t key) { return query >= key; }},
};
inline constexpr std::int64_t kMaxDifference = 127;
inline constexpr std::int64_t kQueries = 64;

// 64 queries, 64 more keys than queries at most in each head of V.
inline std::string visibility_case(const Visibility& visibility, std::int64_t difference,
                                   const std::string& dtype) {
  return "b1_sq" + std::to_string(kQueries) + "_sk" + std::to_string(kQueries + difference) +
         "_h3_d64" + visibility.mask + "_" + dtype + "/identity";
}

inline double relative_error(DType dtype) {
  return dtype == DType::bf16 ? 0x1p-7 : dtype == DType::f16 ? 0x1p-10 : 0x1p-20;
}

// matrix: of one element for each row and key, P (O) or its transpose (dV), as the identity in the
// heads gives it. Returns what is wrong first, empty when nothing is.
inline std::string visibility_error(const CaseData& data, const Visibility& visibility,
                                    const Tensor& matrix, bool transposed) {
  const Problem& p = data.problem;
  const auto sees = [&](std::int64_t i, std::int64_t j) {
    return visibility.sees(i + p.seqlen_k - p.seqlen_q - j, i, j);
  };
  for (std::int64_t i = 0; i < p.seqlen_q; ++i) {
    std::int64_t visible = 0;
    for (std::int64_t j = 0; j < p.seqlen_k; ++j) visible += sees(i, j) ? 1 : 0;
    for (std::int64_t j = 0; j < p.seqlen_k; ++j) {
      const std::int64_t unit = transposed ? i : j;  // the row that is a unit vector
      const std::int64_t head = unit / p.head_dim_v;
      if (head >= p.heads_q) continue;
      const double got =
          load_element(matrix, matrix.offset({0, transposed ? j : i, head, unit % p.head_dim_v}));
      const double want = sees(i, j) ? 1.0 / static_cast<double>(visible) : 0;
      if (std::abs(got - want) <= relative_error(p.dtype) * want) continue;
      return "query " + std::to_string(i) + ", key " + std::to_string(j) + ": " +
             std::to_string(got) + " instead of " + std::to_string(want);
    }
  }
  return {};
}

}  // namespace attn::verify
