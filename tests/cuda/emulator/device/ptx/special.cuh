#pragma once

namespace attn::device {

inline int block_index_anew() { return static_cast<int>(blockIdx.x); }

}  // namespace attn::device
