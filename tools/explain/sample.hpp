// A few queries and keys of a head with random numbers, and what the fp64 reference makes of them.
#pragma once

#include <cstdint>

#include "attn/problem.hpp"
#include "explain/tile_map.hpp"

namespace attn::explain {

// A small part of the problem: at most 12 queries and 12 keys (16 keys where the lengths differ),
// spread evenly over the sequence, with at most 4 columns of Q, K and V. Mask and score see the
// true positions. "queries" and "keys" are those positions; matrices are row-major:
//   {"queries", "keys", "d", "d_v", "scale", "q", "k", "v", "d_o", "visible": text of 0 and 1,
//    "score": "text" or null, "scores": the score expression of each element or null, "slopes": its
//    derivative, "dropout": Z or null, "sink": a number or null,
//    "reference": {"o", "lse", "dq", "dk", "dv"}}
// Infinities and NaN are the texts "inf", "-inf" and "nan".
Json sample(const Problem& problem, const Scores& scores, std::uint64_t seed);

}  // namespace attn::explain
