// Sizes that decide how much memory a run takes.
#pragma once

#include <cstddef>
#include <cstdint>

namespace attn::cpu {

// Packed K and V of the forward pass. One head of 65,536 keys at d = 64 in f32 is exactly this
// much.
inline constexpr std::int64_t kKeyPackBudget = std::int64_t{32} << 20;
// Packed Q blocks of the backward pass. One head of 65,536 queries at d = 64 is 68 MiB.
inline constexpr std::int64_t kQueryPackBudget = std::int64_t{80} << 20;
// Packed Q blocks of a wave of heads, where it has tasks for all threads: with dQ of four ranges
// twice this, below what an executor keeps between runs. Four heads of 2048 queries at d = 64
// are 8.5 MB, two at d = 128 as well.
inline constexpr std::int64_t kQueryWaveBytes = std::int64_t{12} << 20;
// dQ of the backward pass's ranges of keys: n = 65,536, d = 64, one head is 16 MiB a range.
inline constexpr std::int64_t kSplitBudget = std::int64_t{128} << 20;
// Workspace that an executor keeps between calls: it holds the forward pass of one head of 65,536
// keys at d = 64. What takes more runs for milliseconds, beside which asking the system is little.
inline constexpr std::size_t kKeptBytes = std::size_t{64} << 20;
// Keys of a backward chunk: K, V, dK and dV of 512 keys at d = 64 are 512 KB, half of a 1 MB L2.
inline constexpr int kChunkKeys = 512;
// Q blocks of the backward pass that are added to dK and dV together: each block of those is read
// and written once for all.
inline constexpr int kGradientGroup = 4;

}  // namespace attn::cpu
