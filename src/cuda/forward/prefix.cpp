#include "cuda/forward/prefix.hpp"

#include <algorithm>

#include "core/cache_type.hpp"
#include "cuda/forward/parameters.hpp"
#include "cuda/limits.hpp"
#include "cuda/plan/choose_forward.hpp"
#include "cuda/plan/splits.hpp"

namespace attn::cuda {
namespace {

core::OwnLengths lengths_of(const Problem& problem, bool seqused) {
  if (seqused) return core::OwnLengths::seqused;
  return problem.layout_k == Layout::packed ? core::OwnLengths::cu_seqlens
                                            : core::OwnLengths::problem;
}

// Numbers that a buffer of an expression reads: of int64 the low halves, which are the numbers, as
// lengths are in range.
Tensor low_halves(const Tensor& t) {
  if (t.dtype != DType::i64) return t;
  Tensor low = t;
  low.dtype = DType::i32;
  low.strides[0] *= 2;
  return low;
}

}  // namespace

std::vector<PrefixKeys> prefix_keys(const core::PrefixParts& parts, Arch arch,
                                    const Multiprocessors& device, std::string_view kernel) {
  std::vector<PrefixKeys> all;
  const auto add = [&](const Problem& problem, bool as_one) {
    PrefixKeys part{.problem = problem, .as_one = as_one};
    if (as_one) part.problem.layout_q = Layout::dense;
    part.splits.keeps_parts = true;
    part.tensors.whole_k = problem.layout_k == Layout::paged;
    const ForwardConfig config =
        choose_forward(part.problem, arch, part.tensors, part.splits, kernel);
    part.splits.count = choose_splits(part.problem, config, device);
    all.push_back(std::move(part));
  };
  if (parts.shared) add(*parts.shared, true);
  if (parts.rest) add(*parts.rest, false);
  return all;
}

PrefixNeeds prefix_needs(const Problem& problem, const DeviceInfo& device,
                         std::string_view kernel) {
  const Arch arch = arch_of_capability(device.arch);
  PrefixNeeds needs;
  for (const bool as_one : {true, false}) {
    core::Size workspace;
    const auto parts = core::prefix_parts(problem, core::OwnLengths::seqused, as_one);
    for (const PrefixKeys& part : prefix_keys(parts, arch, multiprocessors(device), kernel)) {
      workspace =
          decoding_offset(workspace) + workspace_bytes(part.problem, arch, part.splits, kernel);
      needs.blocks = std::max(needs.blocks, most_blocks(part.problem, arch, part.splits, kernel));
    }
    needs.workspace = std::max(needs.workspace, workspace);
  }
  return needs;
}

core::PrefixParts prefix_parts_of(const Problem& problem, const ForwardSignature& signature) {
  return core::prefix_parts(problem, lengths_of(problem, signature.tensors.seqused_k),
                            signature.prefix.as_one);
}

Inputs prefix_inputs(const Problem& problem, const core::PrefixParts& parts, bool as_one,
                     const Inputs& inputs) {
  if (as_one) {
    Inputs part = core::shared_inputs(problem, parts, inputs);
    Tensor& q = part.q;
    q.rank = 4;
    q.shape = {1, q.shape[0], q.shape[1], q.shape[2]};
    q.strides = {q.shape[1] * q.strides[0], q.strides[0], q.strides[1], q.strides[2]};
    return part;
  }
  Inputs part = core::rest_inputs(problem, parts, inputs);
  if (inputs.seqused_k.given()) {
    part.buffers.emplace_back(core::kOwnLengths, low_halves(inputs.seqused_k));
  }
  if (inputs.cu_seqlens_k.given()) {
    part.buffers.emplace_back(core::kOwnStarts, low_halves(inputs.cu_seqlens_k));
  }
  return part;
}

}  // namespace attn::cuda
