// Which keys some row sees.
#pragma once

#include <cstdint>

#include "attn/problem.hpp"
#include "attn/run.hpp"
#include "core/problem/rows.hpp"

namespace attn::core {

// Whether a row of the sequence, of any query head, sees one of the keys [begin, end). Exact;
// halves what bounds of the mask do not decide.
bool sees_any(const Problem& problem, const Inputs& inputs, const Sequence& sequence,
              std::int64_t begin, std::int64_t end);

// Whether a query head of the K, V head sees that key from that query.
bool sees(const Problem& problem, const Inputs& inputs, const Sequence& sequence,
          std::int64_t query, std::int64_t head_k, std::int64_t key);

}  // namespace attn::core
