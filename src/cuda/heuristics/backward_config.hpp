// What the kernels of the backward pass are compiled for.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "attn/tensor.hpp"
#include "cuda/device/params.cuh"

namespace attn::cuda {

enum class BackwardKernel : std::uint8_t {
  sm90,                // src/cuda/device/kernels/backward_sm90.cuh: Hopper
  sm80,                // backward_sm80.cuh: mma.sync, any architecture from 8.0 on
  sm80_deterministic,  // the same with sums in a fixed order
  sm80_buffers,        // backward_sm80_buffers.cuh: gradients of the buffers that a score reads
  sm90_buffers,        // backward_sm90_buffers.cuh: the gradient of a bias, on Hopper
  simt,                // backward_simt.cuh: float32 and whatever the others do not take
  flash_attention,     // backward_flash_attention.cuh: the paper's order, by name only
  standard,            // backward_standard.cuh: the paper's baseline, by name only
};
std::string_view name(BackwardKernel kernel) noexcept;  // "backward_sm90", ...
// Whether a kernel computes S once: it adds dQ to memory, in no fixed order but where `ordered`.
constexpr bool is_one_pass(BackwardKernel kernel) noexcept {
  return kernel == BackwardKernel::sm90 || kernel == BackwardKernel::sm80;
}

// What the tensors of a call add to the problem.
struct BackwardTensors {
  bool seqused_q = false, seqused_k = false;
  // Addresses and strides of Q, K, V, dO, dQ, dK and dV are multiples of 16 bytes; those of O are,
  // which only the kernel of D reads.
  bool aligned = true, aligned_o = true;
  bool mapped = true;  // the driver makes tensor maps of Q, K, V and dO
  bool operator==(const BackwardTensors&) const = default;
};

// A kernel, what it computes (one gradient, two, or all three), its tile shape, and the features of
// the problem that it is compiled for.
struct BackwardConfig {
  BackwardKernel kernel = BackwardKernel::simt;
  device::Gradient gradient = device::Gradient::dq;
  DType dtype = DType::f32;
  int head_dim = 0, head_dim_v = 0;

  int block_m = 0;  // rows of the gradient of a block of threads
  int block_n = 0;  // rows of the other side that they meet at a time
  int warps = 0;
  int stages = 0;                          // blocks of the other side in flight; sm90: of Q
  int stages_o = 0, stages_p = 0;          // sm90: of dO; of P and of dS
  int piece_columns = 128, stages_dq = 0;  // of the pieces in which dQ is added; sm90: their places
  int score_groups = 1;  // sm90: warpgroups for S, dP and dQ; 2: one for both dV and dK
  int cluster = 1;       // sm90: blocks of threads that share a tile
  int part_keys = 0;     // sm90_buffers: keys whose S and dP a thread holds at a time
  // sm80: warps along the queries of S and dP, the keys of dV and dK, the queries of dQ.
  int score_warps = 0, key_warps = 0, query_warps = 0;
  bool store_matrices = false;  // sm80: P and dS are stored by stmatrix
  int producer_registers = 0, score_registers = 0, gradient_registers = 0;  // of a thread; sm90

  bool packed_q = false, packed_k = false, used_q = false, used_k = false;
  bool dropout = false;
  bool rng_state = false;    // seed and offset of dropout are read by the kernel
  bool ordered = false;      // sm90: tiles add to dQ in a fixed order, asked for or faster
  bool skips_empty = false;  // flash_attention: tiles that the mask empties are left out
  // Gradients of buffers: whether some are of OwnElements, and what these read
  // (codegen/buffer_gradients.hpp).
  bool own_elements = false, reads_batch = false, reads_head = false, by_position = false;
  bool same_vectors = false;  // sm90_buffers: the score loads no elements but those of the buffer
  bool exact_sums = false;    // others are summed in memory exactly, in any order: Superaccumulator
  int l2_megabytes = 0;       // one pass: of the heads whose tiles are dealt together
  // One pass: the mask leaves tiles of different lengths. sm90: what blocks of queries see differs
  // between heads, and between batch entries. A score may be -inf.
  bool longest_first = false, mask_heads = false, mask_batches = false, score_hides = false;

  std::string reason;           // of the tile shape
  int allowed_spill_bytes = 0;  // Source::allowed_spill_bytes

  int threads() const noexcept { return 32 * warps; }
  std::int64_t shared_bytes() const noexcept;  // dynamic
};

// Whether a kernel computes in float32, without tensor cores, is there for who names it or its
// algorithm, and reads RowTerms.
constexpr bool is_scalar(BackwardKernel kernel) noexcept {
  return kernel == BackwardKernel::simt || kernel == BackwardKernel::flash_attention ||
         kernel == BackwardKernel::standard;
}
constexpr bool runs_by_name_only(BackwardKernel kernel) noexcept {
  return kernel == BackwardKernel::flash_attention || kernel == BackwardKernel::standard;
}
constexpr bool reads_row_terms(BackwardKernel kernel) noexcept {
  return kernel == BackwardKernel::simt || kernel == BackwardKernel::sm80_deterministic;
}
// Whether a kernel is given tensor maps, beside its parameters.
constexpr bool reads_maps(BackwardKernel kernel) noexcept {
  return kernel == BackwardKernel::sm90 || kernel == BackwardKernel::sm90_buffers;
}

}  // namespace attn::cuda
