#pragma once

namespace attn::device {

inline int block_index_anew() { return static_cast<int>(blockIdx.x); }

inline unsigned long long grid_id() { return 1; }

}  // namespace attn::device
