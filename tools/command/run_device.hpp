// The tensors of `attn run` in the memory of a GPU.
#pragma once

#include <list>

#include "attn/run.hpp"
#include "command/run_problem.hpp"
#include "cuda/driver/memory.hpp"
#include "harness/device_data.hpp"

namespace attn::command {

// Copies inputs and outputs there. `read` and `plan` outlive it.
class OnDevice {
 public:
  // Sets stream and workspace of the context, which live as long as this object.
  OnDevice(const RunProblem& read, const Outputs& outputs, const Plan& plan, Context& context);

  // The forward pass; returns when the work is done.
  void run(const Context& context) const;
  // Copies the results to where `outputs` said.
  void download() const;

 private:
  void bind(const expr::Buffer& buffer);

  Outputs host_;
  const Plan& plan_;
  cuda::Stream stream_;
  harness::DeviceWorkspace workspace_;
  std::list<cuda::DeviceBuffer> memory_;
  Inputs inputs_;
  Outputs outputs_;
};

}  // namespace attn::command
