// A rank's own call where its tensors are in memory of a GPU: K, V and sums go through memory of
// the host, where the other ranks' transports take and leave them.
#pragma once

#include <vector>

#include "attn/dist.hpp"
#include "dist/call.hpp"
#include "dist/plan_data.hpp"
#include "dist/row_tensor.hpp"

namespace attn::dist {

// The plan of the rank's part, as cpu::plan is for ranks of a CPU.
attn::Plan plan_on_device(const Problem& part, Phase phase, const PlanOptions& options,
                          const attn::Context& context);

// Copies to and from the device are put into the context's stream; what the host needs has come
// when a function returns.
class DeviceCall {
 public:
  DeviceCall(const PlanData& plan, const attn::Context& context)
      : plan_(plan), context_(context), device_(plan.options.local.device) {}

  // host <- the rows of k and v, which have the same rows, in the same dtype.
  void download(const Tensor& k, const Tensor& v, const RowMemory& host) const;
  // What download() does, the other way; a tensor that is not given is left out.
  void upload(const RowMemory& host, const Tensor& k, const Tensor& v) const;
  // A float tensor of any strides <- values, in row-major order.
  void upload(const std::vector<double>& values, const Tensor& to) const;

  void forward(const Inputs& inputs, const RowMemory& gathered, const Outputs& outputs) const;
  // gradients: dq is the caller's tensor; dk and dv of `partial`, dsink and those of buffers, which
  // are float, are of the host.
  void backward(const Inputs& inputs, const RowMemory& gathered, const Outputs& outputs,
                const OutputGradients& d_outputs, const Gradients& gradients) const;

 private:
  const PlanData& plan_;
  const attn::Context& context_;
  Device device_;
};

}  // namespace attn::dist
