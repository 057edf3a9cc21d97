// Checks of a call's arguments, before anything is written.
#pragma once

#include <array>
#include <cstddef>
#include <memory_resource>
#include <span>
#include <vector>

#include "attn/run.hpp"
#include "core/validate/argument_check.hpp"

namespace attn::core {

// Memory of what a call checks and packs: on the stack of the caller, and on the heap for what is
// more than that, some thirty buffers.
class CallMemory {
 public:
  std::pmr::memory_resource& resource() { return resource_; }

 private:
  std::array<std::byte, 8192> bytes_;
  std::pmr::monotonic_buffer_resource resource_{bytes_.data(), bytes_.size()};
};

// The device of the tensors of a call, which is that of q.
Device device_of(const Inputs& inputs);

// problem has every size set. Each throws Error(invalid_argument) with the argument, its value and
// what is accepted. `device`: where all tensors must be. Those of a call return the tensors that
// were given, in `memory`, under names that look at those of the problem and the gradients.
void validate_problem(const Problem& problem);
// What is asked of a plan: enumerators, no kernel's name without a GPU, no backward pass of paged
// K, V, no dropout beside lists of keys.
void validate_options(const Problem& problem, Phase phase, const PlanOptions& options,
                      const Context& context);
// The plan is one that make_plan gave, of this phase, and still of its backend.
void validate_plan(const Plan& plan, Phase phase);
// Paged K, V, caches in types of their own, shared prefixes and lists of keys in f64 have no
// backward pass. Throws Error(unsupported).
void refuse_backward(const Problem& problem);
// The shapes that mask and score declare for the buffers of shorthands; a call checks those that it
// reads. open: a size of 0 stands for what is bound later.
void validate_declarations(const Problem& problem, bool open = true);
std::pmr::vector<NamedTensor> validate_forward(
    const Problem& problem, const Inputs& inputs, const Outputs& outputs, Device device = {},
    std::pmr::memory_resource& memory = *std::pmr::get_default_resource());
std::pmr::vector<NamedTensor> validate_backward(
    const Problem& problem, const Inputs& inputs, const Outputs& outputs,
    const OutputGradients& d_outputs, const Gradients& gradients, Device device = {},
    std::pmr::memory_resource& memory = *std::pmr::get_default_resource());
// The workspace of a call: Context::workspace, of at least `bytes`, apart from `tensors`.
void validate_workspace(const Problem& problem, const Tensor& workspace, std::int64_t bytes,
                        std::span<const NamedTensor> tensors, Device device);

}  // namespace attn::core
