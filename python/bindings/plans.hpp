// Plans of calls from Python and JAX, found again by what a call is beside its memory.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "attn/context.hpp"
#include "attn/plan.hpp"
#include "attn/problem.hpp"
#include "attn/run.hpp"

namespace attn::python {

// The problem of a descriptor, and what a call adds to it that is no tensor.
struct Described {
  std::shared_ptr<const Problem> problem{};
  std::int64_t seqlen_q = 0;  // of the longest packed sequence; 0: found in cu_seqlens
  std::int64_t seqlen_k = 0;
  std::uint64_t seed = 0;  // of dropout
  std::uint64_t offset = 0;
};

// The problem of a descriptor; texts are read once. Thread-safe.
std::shared_ptr<const Problem> parsed(const std::string& text);

// The whole problem of a call: packed or paged as its tensors say, with every size.
Problem complete(const Described& described, const Inputs& inputs);

// How a call runs: the plan of an earlier call with the same problem, sizes, dtype, options and
// number of threads, or a new one. The context of a call on a CPU has an executor. On a GPU a plan
// holds the kernels that it found, and to find them again would take longer than to launch them.
// Holds the last 256 plans. Thread-safe. Throws what complete() and make_plan() throw; where the
// plan is known, tensors are checked by the run alone.
std::shared_ptr<const Plan> plan_of(const Described& described, const Inputs& inputs, Phase phase,
                                    const PlanOptions& options, const Context& context);

// The plan itself where it has the state of dropout that the call has, else a copy in `other` that
// does.
const Plan& with_dropout(const Plan& plan, const Described& described, std::optional<Plan>& other);

// How many plans plan_of() has made, for tests.
std::int64_t plans_made();

}  // namespace attn::python
