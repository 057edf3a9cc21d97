// Parameters of the forward kernels for the tensors of a call.
#pragma once

#include <cstdint>
#include <string_view>

#include "attn/run.hpp"
#include "core/tensor/size.hpp"
#include "cuda/device/params.cuh"
#include "cuda/jit/compile.hpp"
#include "cuda/kernels/forward_kernel.hpp"
#include "cuda/plan/decoding_part.hpp"

namespace attn::cuda {

// What `to` says of the alignment of these, of V and K, and of scales.
void describe_operands(ForwardTensors& to, const Problem& problem, const Inputs& inputs,
                       const Tensor& k, const Tensor& v);

// The scales of a cache, as far as they are given.
void fill_scales(device::CachedForwardParams& to, const Problem& problem, const Inputs& inputs);

// What the parameters of every call have in common. The plan has checked that its sizes fit
// (limits.hpp).
device::ForwardParams forward_parameters(const Problem& problem, const ForwardConfig& config,
                                         KeySplits splits);
// The rest: the tensors of a call, and dropout. workspace: partial results, when config.splits,
// then the words of key blocks, when config.classified; or what the kernel's row says.
void fill_forward_tensors(device::ForwardParams& to, const Problem& problem,
                          const ForwardConfig& config, const Inputs& inputs, const Outputs& outputs,
                          void* workspace);

// The offset, in bytes, of LSE among partial results, behind O of so many rows of all splits.
core::Size partial_lse_offset(core::Size rows, std::int64_t head_dim_v);

// Words of blocks of keys (src/cuda/device/schedule/key_words.cuh), 8 bytes each; 0 unless
// config.classified.
core::Size num_key_words(const Problem& problem, const ForwardConfig& config);
// The offset, in bytes, at which these words begin in the workspace.
core::Size key_words_offset(const Problem& problem, KeySplits splits);

// Bytes that suffice whichever kernel runs: partial results, O and LSE in float32, and words of
// blocks of keys; or what the kernel's row says. kernel: forward_kernel_name().
core::Size workspace_bytes(const Problem& problem, Arch arch, KeySplits splits,
                           std::string_view kernel);
// Where the partial results of the decoding part begin behind a workspace of so many bytes, and the
// workspace with them.
core::Size decoding_offset(core::Size workspace);
core::Size with_decoding(core::Size workspace, const DecodingPart& part);
// Blocks of threads of the largest grid of the decoding part.
core::Size most_blocks(const DecodingPart& part);
// Blocks of threads of the largest grid, or tiles, where these are more, whichever kernel runs.
core::Size most_blocks(const Problem& problem, Arch arch, KeySplits splits,
                       std::string_view kernel);

}  // namespace attn::cuda
