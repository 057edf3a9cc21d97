// Tensors of elements of 16 bits, or 8, as the copy engine knows them (CUtensorMap).
#pragma once

#include <array>
#include <cstdint>

#include "attn/tensor.hpp"
#include "cuda/driver/types.hpp"

namespace attn::cuda {

using MapSizes = std::array<std::uint64_t, 5>;

// Columns of 16 bits of a panel of shared memory, 128 bytes, and so of every box.
inline constexpr std::uint32_t kMapPanel = 64;

inline std::uint64_t unsigned_of(std::int64_t value) { return static_cast<std::uint64_t>(value); }

// A map of `rank` dimensions, columns first; strides in elements of the dimensions after the first;
// box in elements. False where the driver does not take it, as of strides that are no multiples of
// 16 bytes. The driver is not asked again for one of the last 128 maps of the thread.
bool encode_map(CUtensorMap& map, const Tensor& tensor, int rank, const MapSizes& sizes,
                const MapSizes& strides, const std::array<std::uint32_t, 5>& box);

}  // namespace attn::cuda
