// Where a mask depends on what buffers hold.
#pragma once

#include "attn/expr.hpp"

namespace attn::cuda {

// Whether elements of buffers may change the mask somewhere in the tile, whatever the batch entry:
// in `key < 100 || seen[key] != 0` they do not over keys 0 to 99. Looks at none. Scalars are no
// buffers, and may have any value.
bool buffers_matter(const expr::Expr& mask, const expr::Tile& tile);

}  // namespace attn::cuda
