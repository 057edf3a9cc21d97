// The order of dQ's float32 sums in memory and on their way there: as threads hold them, so that
// adding needs no exchange. A block of queries has its columns in parts of up to 128, what one
// product gives; a part has 4 warps; a warp has words of 16 bytes, those of its 32 threads
// together.
#pragma once

namespace attn::device {

struct alignas(16) Float4 {
  float x, y, z, w;
};

template <int kQueries, int kHeadDim>
struct DqOrder {
  static constexpr int kMostColumns = 128, kParts = (kHeadDim + kMostColumns - 1) / kMostColumns;
  static constexpr __device__ __forceinline__ int columns(int part) {
    return part + 1 < kParts ? kMostColumns : kHeadDim - kMostColumns * (kParts - 1);
  }
  // Floats.
  static constexpr int kWord = 32 * 4;  // from a word of a thread to its next
  static constexpr __device__ __forceinline__ int part_at(int part) {
    return part * kQueries * kMostColumns;
  }
  static constexpr __device__ __forceinline__ int warp_floats(int columns) {
    return columns / 8 * kWord;
  }
  // To this thread's first word of a part.
  static __device__ __forceinline__ int thread_at(int columns) {
    return static_cast<int>(threadIdx.x % 128 / 32) * warp_floats(columns) +
           static_cast<int>(threadIdx.x % 32) * 4;
  }
};

}  // namespace attn::device
