// Masks and scores of a problem with a shared prefix, for a part of its keys (prefix_parts.hpp).
#pragma once

#include <cstdint>

#include "attn/problem.hpp"

namespace attn::core {

// Whether the score is one function of score, head and key: empty, a softcap, a bias of keys.
bool same_for_all_queries(const expr::Expr& score);

// Whether the mask shows keys [0, keys) of the prefix to every query of every sequence, whatever
// its lengths are; false where interval arithmetic does not prove it, or buffers decide.
bool sees_first_keys(const Problem& problem, std::int64_t keys);

// e where key 0 is key `prefix` of the whole and seqlen_k counts the own keys alone; empty for an
// empty e.
expr::Expr over_own_keys(const expr::Expr& e, std::int64_t prefix);
// e where key 0 is key `first` of the prefix and a sequence of the whole has seqlen_k + first +
// own_length keys.
expr::Expr over_prefix_keys(const expr::Expr& e, std::int64_t first, const expr::Expr& own_length);

}  // namespace attn::core
