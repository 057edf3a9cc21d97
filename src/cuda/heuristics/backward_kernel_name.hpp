// Names of backward kernels, which say an algorithm, and of tile shapes (cuda/kernel_parts.hpp).
#pragma once

#include <string>
#include <string_view>

#include "attn/plan.hpp"
#include "cuda/heuristics/backward_config.hpp"
#include "cuda/heuristics/backward_sm80.hpp"
#include "cuda/heuristics/backward_sm90.hpp"

namespace attn::cuda {

// `shape` with the parts that `text` names: b<blocks of threads of a tile> c<score warpgroups>
// n<keys> q<places of Q> o<places of dO> p<places of P and of dS> w<columns of a staged piece of
// dQ> g<places of these> r<registers of a producer> x<of a score thread> l<megabytes of the heads
// whose tiles are dealt together>. Gradient threads get the registers that are left. Throws
// Error(invalid_argument) naming the part and what is accepted.
BackwardSm90Shape with_parts(BackwardSm90Shape shape, std::string_view text);

// Does the same for backward_sm80: m<queries> n<keys> w<warps> s<stages> x<warps along the queries
// of S> k<along the keys of dK> q<along the queries of dQ> l<megabytes> t<stmatrix>.
BackwardSm80Shape with_parts(BackwardSm80Shape shape, std::string_view text);

// Why a shape cannot run with heads whose larger size is `widest`; empty where it can.
std::string obstacle_of(const BackwardSm90Shape& shape, std::int64_t widest);
std::string obstacle_of(const BackwardSm80Shape& shape);

// The name of the kernel that PlanOptions' algorithm and kernel ask for together, for
// BackwardWish::kernel; empty where the library chooses. Throws Error(invalid_argument) where they
// contradict each other, and Error(unsupported) for an algorithm without a kernel.
std::string backward_kernel_name(Algorithm algorithm, std::string_view kernel);
// What a plan for it says.
Algorithm algorithm_of(BackwardKernel kernel, bool skips_empty) noexcept;

}  // namespace attn::cuda
