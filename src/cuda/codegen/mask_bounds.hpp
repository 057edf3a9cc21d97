// The part of a mask that bounds keys, taken out of its expression.
#pragma once

#include "attn/expr.hpp"

namespace attn::cuda {

// mask == (key >= first && key <= last && rest), for keys from 0 on. first and last are int32 and
// do not depend on the key, so that a kernel evaluates them once a row and then compares; each is
// empty where the mask has no such part. From the mask's conjunction: comparisons of the key itself
// with something else; with short_sequences, those of at most 2^20 rows, also of sums and
// differences of it that cannot wrap, as query - key <= 1024, and of the key's place in a whole
// where it rises with the key, as select(key < 64, key, key + 128) <= query.
struct MaskBounds {
  expr::Expr first, last, rest;
};
MaskBounds mask_bounds(const expr::Expr& mask, bool short_sequences = false);  // empty: all are

}  // namespace attn::cuda
