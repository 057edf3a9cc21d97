// How many workers a pool may have.
#pragma once

namespace attn::cpu {

inline constexpr int kMaxThreads = 4096;

}  // namespace attn::cpu
