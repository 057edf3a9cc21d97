// What a kernel of matrix products is compiled for: a rung of the ladder and the shape of its
// tiles.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "attn/matmul.hpp"

namespace attn::cuda {

// Slowest first; src/cuda/device/matmul has a file for each.
enum class MatmulRung : std::uint8_t {
  naive,
  coalesced,
  shared_tiles,
  register_tiles,
  vector_loads,
  mma_sync,
  cp_async,
  ldmatrix,
  pipelined,
  tma_wgmma,
  warp_specialised,
  persistent,
  cluster_multicast,
  split_k,
  stream_k,
};
std::string_view name(MatmulRung rung) noexcept;
std::vector<std::string> cuda_matmul_rungs();
bool is_cuda_matmul_rung(std::string_view text) noexcept;
// Throws Error(invalid_argument) for other texts than a name.
MatmulRung parse_matmul_rung(std::string_view text);

// Columns of B that one instruction of a warpgroup multiplies at most.
inline constexpr int kMostWgmmaColumns = 256;

// A tile of C, and the parts of k that run apart. 0 rows: to be chosen.
struct MatmulShape {
  int rows = 0, columns = 0, splits = 1;
  // What names of `pipelined` say; 0: to be chosen. Warps of a block, steps of k of a stage, stages
  // of the ring.
  int warps = 0, depth = 0, stages = 0;
  bool operator==(const MatmulShape&) const = default;
};

// All that a kernel's source depends on, and what its launch needs.
struct MatmulConfig {
  MatmulRung rung{};
  DType dtype{}, output{};
  Float8 float8 = Float8::none;
  bool scaled = false;
  bool steps_together_a = true, steps_together_b = true;  // once C is row-major
  int bias = 0;                                           // 1: of columns, 2: of rows
  int masked = 0;                                         // 1: A, 2: B, 3: C
  int block = 1;                                          // of the mask
  Activation activation{};
  int block_m = 0, block_n = 0, block_k = 0;
  int threads = 256, shared_bytes = 0;
  int groups = 0;      // of warps, of the rungs with wgmma
  int stages = 0;      // of these and of `pipelined`
  int warps_down = 0;  // below each other, of `pipelined`
  int blocks = 1;      // that share a multiprocessor, for which registers leave room
  bool stores_boxes = false, aligned_c = true;
  int splits = 1;
  int multicast = 1;  // blocks of a cluster that have the same B
  std::string_view reason;

  int cluster() const { return splits * multicast; }
  bool operator==(const MatmulConfig&) const = default;
};

}  // namespace attn::cuda
