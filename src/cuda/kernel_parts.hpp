// The name of a kernel as PlanOptions::kernel gives it: "forward_sm90", or with parts of a tile
// shape that replace those of the table, "forward_sm90/wg2_n160_s2_q2_p40". So that shapes can be
// timed, and tested, without building anew.
#pragma once

#include <functional>
#include <string_view>

namespace attn::cuda {

struct KernelName {
  std::string_view kernel, shape;  // shape: empty where none is given
};
KernelName split_kernel_name(std::string_view name);

// The whole number after `letters`; -1 where the part begins otherwise.
int number_after(std::string_view part, std::string_view letters);

// Calls set(part) for what '_' separates in a text that is not empty. Where that is false, throws
// Error(invalid_argument) naming the kernel, the part and what is `accepted`.
void set_parts(std::string_view kernel, std::string_view text, std::string_view accepted,
               const std::function<bool(std::string_view)>& set);

}  // namespace attn::cuda
