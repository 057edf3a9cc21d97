// The name of a kernel as PlanOptions::kernel gives it: "forward_sm90", or with parts of a tile
// shape that replace those of the table, "forward_sm90/wg2_n160_s2_q2_p40". So that shapes can be
// timed, and tested, without building anew.
#pragma once

#include <string_view>

#include "cuda/heuristics/forward_sm90.hpp"

namespace attn::cuda {

struct KernelName {
  std::string_view kernel, shape;  // shape: empty where none is given
};
KernelName split_kernel_name(std::string_view name);

// `shape` with the parts that `text` names: wg<warpgroups> n<keys> s<stages of K and V>
// k<stages of K> q<stages of Q> p<registers of the producer> turns noturns. Consumers get the
// registers that are left. Throws Error(invalid_argument) naming the part and what is accepted.
ForwardSm90Shape with_parts(ForwardSm90Shape shape, std::string_view text);

}  // namespace attn::cuda
