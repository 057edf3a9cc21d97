#include "cuda/cuda.hpp"

#include <fmt/format.h>

#include "attn/error.hpp"
#include "cuda/driver/device.hpp"

namespace attn::cuda {
namespace {

[[noreturn]] void refuse(const Problem& problem, Phase phase) {
  throw Error(ErrorCode::unsupported, fmt::format("no kernel of the cuda backend takes {} of {}",
                                                  name(phase), to_string(problem)));
}

}  // namespace

Plan plan(const Problem& problem, Phase phase, const PlanOptions& options, const Context&) {
  device_info(options.device.index);
  refuse(problem, phase);
}

void forward(const Plan& plan, const Inputs&, const Outputs&, const Context&) {
  refuse(plan.problem, plan.phase);
}

std::vector<Source> sources(const Problem& problem, Phase phase, Arch) { refuse(problem, phase); }

}  // namespace attn::cuda
