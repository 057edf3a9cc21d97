// A forward pass with the tensors of a call.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory_resource>
#include <optional>
#include <vector>

#include "core/cache_type.hpp"
#include "core/problem/prefix_expressions.hpp"
#include "core/validate/validate.hpp"
#include "cuda/driver/api.hpp"
#include "cuda/driver/counters.hpp"
#include "cuda/driver/device.hpp"
#include "cuda/driver/pointer.hpp"
#include "cuda/forward/copied_operands.hpp"
#include "cuda/forward/forward.hpp"
#include "cuda/forward/parameters.hpp"
#include "cuda/forward/prefix.hpp"
#include "cuda/forward/prepare.hpp"
#include "cuda/forward/transposed_values.hpp"
#include "cuda/plan_state.hpp"
#include "cuda/problem_parameters.hpp"

namespace attn::cuda {
namespace {

// Whether sequences of a packed Q differ much in their numbers of queries, by the rows that it has.
// Where bits must not depend on the batch each sequence's own number decides in every call.
bool is_uneven(const Plan& plan, const Inputs& inputs) {
  const Problem& p = plan.problem;
  if (p.layout_q != Layout::packed) return false;
  return plan.batch_invariant ||
         core::Size(p.batch) * p.seqlen_q >= core::Size(2) * inputs.q.shape[0];
}

// What the kernels of a call are compiled for, but for what they print of its buffers.
ForwardSignature signature_of(const Plan& plan, const Inputs& inputs, const Outputs& outputs) {
  const Problem& p = plan.problem;
  ForwardSignature call;
  ForwardTensors& own = call.tensors;
  own.uneven_q = is_uneven(plan, inputs);
  own.seqused_q = inputs.seqused_q.given();
  own.seqused_k = inputs.seqused_k.given();
  own.wide = wide_tensors(inputs);
  own.lse = outputs.lse.given() && core::is_float8(p);
  own.max_logit = outputs.max_logit.given();
  describe_operands(own, p, inputs, inputs.k, inputs.v);
  own.aligned = own.aligned && alignment_of(outputs.o) % 16 == 0;
  if (p.seqlen_prefix > 0) {
    PrefixTensors& prefix = call.prefix;
    prefix.shared.max_logit = own.max_logit;
    // A copy of Q is in line, wherever Q lies.
    prefix.as_one = (core::has_own_type_q(p) || core::is_in_line(p, inputs)) &&
                    !core::counts_unused_rows(p, inputs, outputs);
    if (p.layout_q == Layout::packed) prefix.rows = core::rows_of_all(p, inputs.q).shape[0];
    prefix.shared.whole_k = p.paged_prefix;
    describe_operands(prefix.shared, p, inputs, p.paged_prefix ? inputs.k : inputs.prefix_k,
                      p.paged_prefix ? inputs.v : inputs.prefix_v);
    if (p.paged_prefix && inputs.prefix_page_table.dtype == DType::i64) {
      prefix.shared.wide = device::kWidePageTable;
    }
    prefix.rest = prefix.shared;
    prefix.rest.seqused_q = inputs.seqused_q.given();
    prefix.rest.wide |= own.wide & (device::kWideCuSeqlensQ | device::kWideSequsedQ);
  }
  return call;
}

// Launches one pass with the tensors of a call, and what merges its results.
void launch_pass(const ForwardPass& pass, const Problem& problem, const ExpressionPack& pack,
                 const Inputs& inputs, const Outputs& outputs, ForwardMaps* maps,
                 device::OtherParts& others, const Context& context,
                 const RowPlaces* places = nullptr) {
  core::CallMemory memory;
  std::pmr::vector<std::byte> expressions(pack.size(), &memory.resource());
  pack.pack(inputs.buffers, expressions.data());
  device::CachedForwardParams parameters{};
  static_cast<device::ForwardParams&>(parameters) = pass.parameters;
  fill_scales(parameters, problem, inputs);
  fill_forward_tensors(parameters, problem, pass.config, inputs, outputs,
                       static_cast<std::byte*>(context.workspace.data) + pass.workspace_offset);
  if (places != nullptr) places->give(parameters);
  if (pass.deals_tiles) parameters.counter = work_counter(context.stream);
  std::array<void*, 3> arguments{&parameters, expressions.data(), maps};
  if (pass.classify != nullptr) {
    pass.classify->launch(pass.classify_launch, context.stream, arguments.data());
  }
  const int launches = pass.config.kernel->launches;
  for (parameters.pass = 0; parameters.pass < launches; ++parameters.pass) {
    pass.forward->launch(pass.forward_launch, context.stream, arguments.data());
  }
  if (pass.combine != nullptr) {
    std::array<void*, 2> merged{&parameters, &others};
    pass.combine->launch(pass.combine_launch, context.stream, merged.data());
  }
}

// Sets the largest score of each head to -inf, from where kernels raise it.
void clear_max_logit(const Tensor& max_logit, void* stream) {
  if (!max_logit.given()) return;
  constexpr unsigned kMinusInfinity = 0xff800000;
  const std::int64_t heads = max_logit.shape[0], stride = max_logit.strides[0];
  const std::int64_t each = stride == 1 ? heads : 1;  // elements of a call
  for (std::int64_t head = 0; head < heads; head += each) {
    const float* const to = static_cast<const float*>(max_logit.data) + head * stride;
    check(api().cuMemsetD32Async(reinterpret_cast<CUdeviceptr>(to), kMinusInfinity,
                                 static_cast<std::size_t>(each), static_cast<CUstream>(stream)),
          "cuMemsetD32Async of max_logit");
  }
}

// Where a pass over the prefix leaves its results.
device::OtherPart other_part(const PrefixPass& part, std::byte* workspace) {
  const Problem& p = part.problem;
  device::OtherPart other{};
  other.rows = p.batch * p.heads_q * p.seqlen_q;
  other.splits = part.pass.parameters.num_splits;
  const std::byte* const results = workspace + part.pass.workspace_offset;
  other.o = reinterpret_cast<const float*>(results);
  other.lse = reinterpret_cast<const device::PartialLse*>(
      results + partial_lse_offset(other.rows * other.splits, p.head_dim_v).value());
  other.seqlen_q = static_cast<int>(p.seqlen_q);
  other.as_one = part.as_one ? 1 : 0;
  return other;
}

// The maps that a pass is given; nothing where the driver does not take the strides.
struct PassMaps {
  std::optional<ForwardMaps> maps{};
  bool made = true;  // or not needed
  ForwardMaps* get() { return maps ? &*maps : nullptr; }
};
PassMaps maps_of(const ForwardPass& pass, const Problem& problem, const Inputs& inputs,
                 const Outputs& outputs) {
  if (!pass.config.kernel->reads_maps) return {};
  PassMaps result{pass.config.shape->maps(pass.config, problem, inputs, outputs)};
  result.made = result.maps.has_value();
  return result;
}

// The maps and inputs of a pass over the prefix.
struct PrefixOperands {
  Inputs inputs{};
  PassMaps maps{};
};
std::vector<PrefixOperands> prefix_operands(const Problem& problem, const ForwardRun& run,
                                            const Inputs& inputs) {
  std::vector<PrefixOperands> all;
  for (const PrefixPass& part : run.prefix) {
    PrefixOperands& to = all.emplace_back();
    to.inputs = prefix_inputs(problem, run.parts, part.as_one, inputs);
    to.maps = maps_of(part.pass, part.problem, to.inputs, {});
  }
  return all;
}

}  // namespace

void launch_forward(const Plan& plan, const Inputs& inputs, const Outputs& outputs,
                    const Context& context) {
  const Problem& problem = plan.problem;
  const ContextGuard guard(plan.device.index);
  if (problem.batch == 0 || problem.seqlen_q == 0 || problem.heads_q == 0) {
    return clear_max_logit(outputs.max_logit, context.stream);
  }
  ForwardSignature call = signature_of(plan, inputs, outputs);
  std::optional<ForwardRun> own;
  const auto find = [&] {
    return &run_of(
        plan, own,
        [&](const ForwardRun& run) {
          return run.signature.tensors == call.tensors && run.signature.prefix == call.prefix &&
                 run.expressions.prints(run.signature.printed, inputs.buffers);
        },
        [&] {
          // Those of the own keys read the same buffers.
          const ExpressionPack buffers =
              buffers_pack(core::over_own_keys(problem.mask, problem.seqlen_prefix),
                           core::over_own_keys(problem.score, problem.seqlen_prefix));
          call.printed = buffers.printed(inputs.buffers);
          return prepare_forward(plan, call, context);
        });
  };
  const ForwardRun* run = find();
  const auto all_made = [](const PassMaps& maps, const std::vector<PrefixOperands>& others) {
    return maps.made &&
           std::ranges::all_of(others, [](const auto& other) { return other.maps.made; });
  };
  auto* const workspace = static_cast<std::byte*>(context.workspace.data);
  // With Q, K and V as the passes read them.
  std::optional<Inputs> copies;
  const auto copies_of = [&](const ForwardRun& of) -> const Inputs& {
    if (of.copy == nullptr) return inputs;
    return copies.emplace(copied_inputs(problem, inputs, of.copies, workspace + of.copies_offset));
  };
  const Inputs* read = &copies_of(*run);
  std::optional<Inputs> mapped;
  if (run->transpose != nullptr) {
    mapped = *read;
    mapped->v =
        transposed_values(problem, run->pass.config, read->v, workspace + run->transposed_offset);
  }
  PassMaps maps = maps_of(run->pass, run->problem, mapped ? *mapped : *read, outputs);
  std::vector<PrefixOperands> operands = prefix_operands(problem, *run, *read);
  if (!all_made(maps, operands)) {
    call.tensors.mapped = false;
    run = find();
    maps = {};
    read = &copies_of(*run);
    operands = prefix_operands(problem, *run, *read);
  }
  clear_max_logit(outputs.max_logit, context.stream);
  if (run->copy != nullptr) {
    launch_copy(*run->copy, problem, inputs, *read, run->copies, context.stream);
  }
  if (run->transpose != nullptr) {
    launch_transpose(*run->transpose, problem, run->pass.config, *read, mapped->v, context.stream);
  }
  device::OtherParts others{};
  for (std::size_t i = 0; i < operands.size(); ++i) {
    const PrefixPass& part = run->prefix[i];
    others.part[i] = other_part(part, workspace);
    if (part.problem.seqlen_q == 0) continue;
    launch_pass(part.pass, part.problem, part.expressions, operands[i].inputs,
                {.o = {}, .lse = {}, .max_logit = outputs.max_logit}, operands[i].maps.get(),
                others, context);
  }
  // A seed of dropout is a number of the call, which what the plan keeps does not know.
  std::optional<Problem> over;
  if (run->copy != nullptr) {
    over = run->problem;
    over->dropout = problem.dropout;
  }
  const Problem& own_keys = over ? *over : problem.seqlen_prefix > 0 ? run->problem : problem;
  launch_pass(run->pass, own_keys, run->expressions, *read, outputs, maps.get(), others, context,
              run->places.get());
  if (run->decoding) {
    launch_pass(*run->decoding, own_keys, run->expressions, *read, outputs, nullptr, others,
                context, run->places.get());
  }
}

}  // namespace attn::cuda
