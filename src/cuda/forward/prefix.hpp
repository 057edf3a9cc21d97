// The keys of a shared prefix in the forward pass (core/problem/prefix_parts.hpp): each part of
// them has a pass of its own, whose partial results the merge of the own keys takes in.
#pragma once

#include <string_view>
#include <vector>

#include "core/problem/prefix_parts.hpp"
#include "cuda/driver/device.hpp"
#include "cuda/forward/prepare.hpp"
#include "cuda/kernels/forward_kernel.hpp"

namespace attn::cuda {

// A part of the prefix: of every sequence, or as_one, of all their rows together.
struct PrefixKeys {
  Problem problem;
  bool as_one = false;
  ForwardTensors tensors{};  // as a plan assumes them
  KeySplits splits{};
};
// Those of a problem, as a plan without tensors chooses their splits. Throws Error(unsupported)
// where `kernel` does not take one.
std::vector<PrefixKeys> prefix_keys(const core::PrefixParts& parts, Arch arch,
                                    const Multiprocessors& device, std::string_view kernel);

// Bytes of the workspace of all parts, whatever the tensors are, and blocks of threads of the
// largest grid.
struct PrefixNeeds {
  core::Size workspace, blocks;
};
PrefixNeeds prefix_needs(const Problem& problem, const DeviceInfo& device, std::string_view kernel);

// The parts of a call whose passes are compiled for such tensors.
core::PrefixParts prefix_parts_of(const Problem& problem, const ForwardSignature& signature);

// Inputs of a part, with the buffers that hold lengths of own keys. K and V of shared keys have
// Q dense, [1, rows, heads_q, head_dim].
Inputs prefix_inputs(const Problem& problem, const core::PrefixParts& parts, bool as_one,
                     const Inputs& inputs);

}  // namespace attn::cuda
