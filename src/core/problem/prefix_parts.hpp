// A problem with a shared prefix (Problem::seqlen_prefix) as problems without one, over disjoint
// parts of the keys, whose results are merged by LSE (attn::merge says how). Masks and scores are
// written anew for each, since key 0 of a part is another key of the whole.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "attn/problem.hpp"
#include "attn/run.hpp"

namespace attn::core {

// Where the lengths of own keys stand, which mask and score of PrefixParts::rest may read.
enum class OwnLengths : std::uint8_t {
  problem,     // all sequences have seqlen_k
  cu_seqlens,  // in a buffer kOwnStarts, i32 [batch + 1], as differences
  seqused,     // in a buffer kOwnLengths, i32 [batch]
};
inline constexpr const char* kOwnLengths = "prefix_own_lengths";
inline constexpr const char* kOwnStarts = "prefix_own_starts";

struct PrefixParts {
  // Keys [0, shared_keys) of the prefix: those of which it is certain that every query sees them,
  // by a score that is the same function for all queries. 0 where there are too few to be worth it.
  std::int64_t shared_keys = 0;
  // The rows of all sequences, those that are not in use too, as one sequence over these keys: 2
  // sequences of 3 queries are 6 rows. seqlen_q is the most rows that there may be.
  std::optional<Problem> shared{};
  // Each sequence over the other keys of the prefix.
  std::optional<Problem> rest{};
  // Each sequence over its own keys. The sink is here.
  Problem own{};
};
// as_one: whether the rows of all sequences of Q may be taken as those of one. Else nothing is
// shared.
PrefixParts prefix_parts(const Problem& problem, OwnLengths lengths, bool as_one = true);

// Whether the rows of all sequences of Q, and their scales, lie at one distance.
bool is_in_line(const Problem& problem, const Inputs& inputs);
// Whether the largest score, if rows were taken as those of one sequence, would be that of rows
// that are in no sequence as well. Where Q is packed, only its lengths in memory say that.
bool counts_unused_rows(const Problem& problem, const Inputs& inputs, const Outputs& outputs);
// Q, its scales or another tensor of its layout that is in line, as [rows, heads, dim] of one
// packed sequence.
Tensor rows_of_all(const Problem& problem, const Tensor& q);

// Inputs of the parts. cu_seqlens_q of shared, and buffers that hold own lengths, are the caller's
// to add.
Inputs shared_inputs(const Problem& problem, const PrefixParts& parts, const Inputs& inputs);
Inputs rest_inputs(const Problem& problem, const PrefixParts& parts, const Inputs& inputs);
Inputs own_inputs(const Inputs& inputs);

// "16320 of 16384 keys of the shared prefix are read once for the batch ...".
std::string prefix_reason(const Problem& problem, const PrefixParts& parts);

}  // namespace attn::core
