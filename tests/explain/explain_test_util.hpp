// Problems for the tests of attn explain.
#pragma once

#include "core/validate/validate.hpp"
#include "explain/problem_json.hpp"
#include "verify/case.hpp"
#include "verify/cases.hpp"
#include "verify/data.hpp"

namespace attn::explain {

inline Request request(std::string_view descriptor) {
  return {.problem = verify::parse_case(descriptor).problem};
}

// Any combination of features; one of its heads.
inline Request random_request(std::uint64_t seed) {
  Request r{.problem = verify::random_case(seed).problem, .seed = seed};
  // Another in the place of a problem without a query or a key, or with lists of keys, a shared
  // prefix or caches in types of their own.
  const auto has_page = [](const Problem& p) {
    return p.seqlen_q > 0 && p.seqlen_k > 0 && p.key_list == 0 && p.seqlen_prefix == 0 &&
           p.type_k == CacheType::as_q && p.type_v == CacheType::as_q;
  };
  for (std::uint64_t other = seed; !has_page(r.problem);) {
    r.problem = verify::random_case(other += 1'000'000).problem;
  }
  r.batch = static_cast<std::int64_t>(seed) % r.problem.batch;
  r.head = static_cast<std::int64_t>(seed / 7) % r.problem.heads_q;
  return r;
}

// The buffers that problem_json() makes up for the mask.
struct MaskedScores {
  explicit MaskedScores(const Problem& p, std::uint64_t seed = 1)
      : data({.problem = {.batch = 1,
                          .seqlen_q = 1,
                          .seqlen_k = 1,
                          .heads_q = 1,
                          .heads_k = 1,
                          .head_dim = 1,
                          .head_dim_v = 1,
                          .mask = p.mask},
              .hints = {}},
             seed),
        scores{.mask = p.mask,
               .buffers = data.inputs.buffers,
               .seqlen_q = static_cast<std::int32_t>(p.seqlen_q),
               .seqlen_k = static_cast<std::int32_t>(p.seqlen_k)} {}

  bool sees(std::int64_t query, std::int64_t key) const {
    return scores.mask.empty() ||
           expr::evaluate<float>(scores.mask, at(query, key), scores.buffers) != 0;
  }
  expr::Point at(std::int64_t query, std::int64_t key) const {
    return {.query = static_cast<std::int32_t>(query),
            .key = static_cast<std::int32_t>(key),
            .batch = scores.batch,
            .head = scores.head,
            .seqlen_q = scores.seqlen_q,
            .seqlen_k = scores.seqlen_k};
  }

  verify::CaseData data;
  Scores scores;
};

}  // namespace attn::explain
