// The calls of ranks that are GPUs of one process, which read each other's memory by address: K and
// V come by copies on a stream of their own while kernels work on heads that have come, and partial
// sums of dK and dV go from GPU to GPU.
#pragma once

#include <memory>

#include "attn/dist.hpp"
#include "dist/call.hpp"
#include "dist/plan_data.hpp"

namespace attn::dist {

// Streams, events and memory of a plan's calls, kept from call to call.
class PeerMemory;

// A call of this rank, which waits for its own work. `memory` is the plan's, made at the first
// call. Throws Error(device | out_of_memory | unavailable).
class PeerCall {
 public:
  PeerCall(const PlanData& plan, const Traffic& traffic, const attn::Context& context);

  // Collective. Nobody reads this rank's K and V any more when it returns.
  void forward(const Inputs& inputs, const Outputs& outputs) const;
  // dq, dk and dv <- what attn::backward of the whole gives. dsink and the gradients of buffers,
  // row-major float tensors of the host, <- this rank's terms.
  void backward(const Inputs& inputs, const Outputs& outputs, const OutputGradients& d_outputs,
                const Gradients& gradients) const;

 private:
  const PlanData& plan_;
  const Traffic& traffic_;
  const attn::Context& context_;
  PeerMemory& memory_;
};

}  // namespace attn::dist
