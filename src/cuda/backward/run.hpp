// What runs of a plan of the backward pass keep.
#pragma once

#include <memory>

#include "attn/plan.hpp"

namespace attn::cuda {

// Plan::state of a plan whose other fields are set.
std::shared_ptr<void> backward_state(const Plan& plan);

}  // namespace attn::cuda
