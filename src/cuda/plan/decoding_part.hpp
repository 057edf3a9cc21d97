// Prompts and decoding in one call: where sequences of a packed Q differ much in their numbers of
// queries, those of a few rows run in the kernel for a few rows, and the others in another.
#pragma once

#include <optional>
#include <string_view>

#include "attn/problem.hpp"
#include "cuda/kernels/forward_kernel.hpp"

namespace attn::cuda {

// The problem of the sequences that have a few rows: seqlen_q is the most queries that these have.
struct DecodingPart {
  Problem problem;
  KeySplits splits;
  const ForwardKernel* kernel = nullptr;
};

// of_all: how the keys of the other sequences are split; the same holds for these but for the
// number. Nothing where no sequence may have more, and where Q is not packed over longer keys: then
// all sequences are alike, as of a training step. With batch_invariant the number of keys does not
// count. Also nothing where the mask scans buffers (ForwardFeatures::mask_scans_buffers).
std::optional<DecodingPart> decoding_part(const Problem& problem, Arch arch,
                                          const Multiprocessors& device, KeySplits of_all);

// The choice for these sequences, and for the others, which another kernel has. tensors: of all.
ForwardConfig few_rows_of(const DecodingPart& part, Arch arch, const ForwardTensors& tensors);
ForwardConfig rest_of(const DecodingPart& part, const Problem& problem, Arch arch,
                      const ForwardTensors& tensors, KeySplits splits, std::string_view kernel);

}  // namespace attn::cuda
