// What a forward kernel is compiled for: its tile shape and the features of the problem.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "attn/tensor.hpp"
#include "cuda/heuristics/combine_shape.hpp"

namespace attn::cuda {

enum class ForwardKernel : std::uint8_t {
  sm90,      // src/cuda/device/kernels/forward_sm90.cuh: Hopper
  sm80,      // forward_sm80.cuh: mma.sync, any architecture from 8.0 on
  few_rows,  // forward_sm80_few_rows.cuh: the same, decoding
  simt,      // forward_simt.cuh: float32 and whatever the others do not take
  // The papers' other orders, which run when their algorithm or they are asked for:
  flash_attention,  // forward_flash_attention.cuh
  standard,         // forward_standard.cuh
};
std::string_view name(ForwardKernel kernel) noexcept;  // "forward_sm90", ...
constexpr bool runs_by_name_only(ForwardKernel kernel) noexcept {
  return kernel == ForwardKernel::flash_attention || kernel == ForwardKernel::standard;
}

// What the tensors of a call add to the problem.
struct ForwardTensors {
  bool seqused_q = false, seqused_k = false;
  // Addresses and strides of Q, K, V and O are multiples of 16 bytes.
  bool aligned = true;
  bool mapped = true;  // the driver makes tensor maps of them, which forward_sm90 needs
  bool operator==(const ForwardTensors&) const = default;
};

// What a problem and the tensors of a call ask of a kernel, whatever its tile shape.
struct ForwardFeatures {
  DType dtype = DType::bf16;
  int head_dim = 0, head_dim_v = 0;
  bool packed_q = false, packed_k = false, used_q = false, used_k = false, paged = false;
  int page_size = 0;  // when paged
  bool sink = false, dropout = false;
  bool dropout_flipped = false;  // core::DropoutRule::flipped
  bool rng_state = false;        // seed and offset of dropout are read by the kernel
  bool vector_o = true;          // O may be written 16 bytes at a time
  // What the mask says of blocks of keys differs between heads, and between batch entries.
  bool mask_heads = false, mask_batches = false;
  bool mask_reads_buffers = false;
  // The mask is not empty, or a score may be -inf: rows of O that are not finite are looked at
  // again (device/softmax/visible_row.cuh).
  bool hides_keys = false;
};

// A kernel, its tile shape, and what else was chosen for the problem.
struct ForwardConfig {
  ForwardKernel kernel = ForwardKernel::simt;
  ForwardFeatures features;

  int block_m = 0;                 // rows of Q of a block of threads
  int block_n = 0;                 // keys of a K, V tile
  int warps = 0;                   // that compute
  int stages = 0;                  // tiles of K and V in shared memory; sm90: of V
  int stages_k = 0, stages_q = 1;  // sm90: of K and of Q
  int group = 1;            // query heads of one K, V head that share a tile; 1: each has its own
  bool take_turns = false;  // sm90
  bool drops_by_product = false;  // sm90: P times 1 or 0 of a comparison, not `and` with its mask
  int near_blocks = 2;            // sm90: the next tile is dealt when so many are not asked for
  int producer_registers = 0, consumer_registers = 0;  // of a thread; sm90
  int page_rows = 0;  // sm90: keys of one box of the copy engine when paged

  bool splits = false;
  CombineShape combine;      // where keys are split
  bool skips_empty = false;  // flash_attention: tiles that the mask empties are left out
  // A kernel of its own classifies blocks of keys before (device/kernels/classify.cuh), since the
  // mask reads buffers.
  bool classified = false;

  std::string reason;           // of the tile shape
  int allowed_spill_bytes = 0;  // Source::allowed_spill_bytes

  int threads() const noexcept;
  int keys_at_once() const noexcept;  // B_c of flash_attention; else block_n
  int parts() const noexcept;  // of a tile's rows, that go through blocks of keys by themselves
  // sm90: O leaves through places of Q, and rows of a box of it belong to one sequence and head.
  bool stores_boxes() const noexcept;
  std::int64_t shared_bytes() const noexcept;  // dynamic
};

}  // namespace attn::cuda
