// The keys that a row of a tile sees.
#pragma once

#include "device.cuh"

namespace attn::device {

// Keys outside of origin + [first, last] are not seen; of those inside the mask may leave some out
// (Expressions::mask_rest).
struct VisibleKeys {
  int first, last;
};
template <class Expressions>
ATTN_DEVICE VisibleKeys visible_keys(const Expressions& e, int origin, int query, int batch,
                                     int head, int length_q, int length_k) {
  int first = 0, last = length_k - 1;
  if constexpr (Expressions::kMaskFirst) {
    first = min(max(e.mask_first(query, batch, head, length_q, length_k), 0), length_k);
  }
  if constexpr (Expressions::kMaskLast) {
    last = min(max(e.mask_last(query, batch, head, length_q, length_k), -1), last);
  }
  return {first - origin, last - origin};
}

}  // namespace attn::device
