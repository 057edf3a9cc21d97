// Parameters of the forward kernels for the tensors of a call.
#pragma once

#include <optional>
#include <string_view>

#include "attn/run.hpp"
#include "core/tensor/size.hpp"
#include "cuda/device/params.cuh"
#include "cuda/driver/types.hpp"
#include "cuda/heuristics/forward_config.hpp"
#include "cuda/jit/compile.hpp"

namespace attn::cuda {

// Mirrors attn::device::ForwardMaps.
struct ForwardMaps {
  CUtensorMap q, k, v, o;
};

// What the parameters of every call have in common. The plan has checked that its sizes fit
// (limits.hpp).
device::ForwardParams forward_parameters(const Problem& problem, const ForwardConfig& config,
                                         std::int32_t num_splits);
// The rest: the tensors of a call, and dropout. workspace: partial results, when num_splits is more
// than 1, then the words of key blocks, when config.classified; of flash_attention the rows between
// blocks of keys, of standard the scores.
void fill_forward_tensors(device::ForwardParams& to, const Problem& problem,
                          const ForwardConfig& config, const Inputs& inputs, const Outputs& outputs,
                          const Tensor& workspace);

// Words of blocks of keys (src/cuda/device/schedule/key_words.cuh), 8 bytes each; 0 unless
// config.classified.
core::Size num_key_words(const Problem& problem, const ForwardConfig& config);
// The offset, in bytes, at which these words begin in the workspace.
core::Size key_words_offset(const Problem& problem, std::int32_t num_splits);

// Bytes that suffice whichever kernel runs: partial results, O and LSE in float32, and words of
// blocks of keys; what flash_attention and standard keep. kernel: forward_kernel_name().
core::Size workspace_bytes(const Problem& problem, Arch arch, std::int32_t num_splits,
                           std::string_view kernel);
// Blocks of threads of the largest grid, or tiles, where these are more, whichever kernel runs.
core::Size most_blocks(const Problem& problem, Arch arch, std::int32_t num_splits,
                       std::string_view kernel);

// Maps of Q, K, V and O for the copy engine; nothing where the driver does not take their strides.
std::optional<ForwardMaps> forward_maps(const Problem& problem, const ForwardConfig& config,
                                        const Inputs& inputs, const Outputs& outputs);

}  // namespace attn::cuda
