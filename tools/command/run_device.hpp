// The tensors of `attn run` in the memory of a GPU.
#pragma once

#include <list>
#include <utility>
#include <vector>

#include "attn/run.hpp"
#include "command/run_problem.hpp"
#include "cuda/driver/memory.hpp"
#include "verify/device_data.hpp"

namespace attn::command {

// Copies inputs and outputs there. `read` and `plan` outlive it.
class OnDevice {
 public:
  // Copies the tensors of the plan's phase: backward reads `outputs` and `d_outputs` and writes
  // `gradients`, forward writes `outputs`. Sets stream and workspace of the context, which live as
  // long as this object.
  OnDevice(const RunProblem& read, const Outputs& outputs, const OutputGradients& d_outputs,
           const Gradients& gradients, const Plan& plan, Context& context);

  // The phase; returns when the work is done.
  void run(const Context& context) const;
  // Copies what was written to the host.
  void download() const;

 private:
  Tensor here(const Tensor& host);
  Tensor written(const Tensor& host);
  void bind(const expr::Buffer& buffer);

  const Plan& plan_;
  cuda::Stream stream_;
  verify::DeviceWorkspace workspace_;
  std::list<cuda::DeviceBuffer> memory_;
  std::vector<std::pair<const cuda::DeviceBuffer*, Tensor>> written_;  // and where on the host
  Inputs inputs_;
  Outputs outputs_;
  OutputGradients d_outputs_;
  Gradients gradients_;
};

}  // namespace attn::command
