// The tensors of a test case in the memory of a GPU.
#pragma once

#include <cstddef>
#include <list>
#include <vector>

#include "attn/plan.hpp"
#include "attn/run.hpp"
#include "cuda/driver/memory.hpp"
#include "verify/data.hpp"

namespace attn::verify {

// Copies of whole storages, gaps included, each in an allocation of its own. What is poisoned on
// the host is poisoned here. `data` must outlive the copy. Not copyable: tensors point into it.
class DeviceData {
 public:
  // Throws Error(unavailable | out_of_memory | device).
  DeviceData(const CaseData& data, Phase phase, Device device);
  DeviceData(const DeviceData&) = delete;
  DeviceData& operator=(const DeviceData&) = delete;

  Inputs inputs;  // buffers: also those that the expressions hold themselves
  Outputs outputs;
  OutputGradients d_outputs;  // of the backward phase
  Gradients gradients;        // likewise

  // Inputs, or outputs, become what they are on the host.
  void upload_inputs() { upload(inputs_); }
  void upload_outputs() { upload(outputs_); }
  // Inputs and outputs of the host become what they are here: CaseData::damage() then tells what
  // was written that must not be.
  void download() const;

 private:
  struct Copy {
    const Storage* storage = nullptr;
    cuda::DeviceBuffer memory;
  };
  Tensor here(const Tensor& host) const;
  static void upload(std::list<Copy>& copies);

  Device device_;
  std::list<Copy> inputs_, outputs_;
  std::list<cuda::DeviceBuffer> others_;
};

// The workspace of a plan. Filled with 0xff, and with guards around it.
class DeviceWorkspace {
 public:
  explicit DeviceWorkspace(const Plan& plan);
  const Tensor& tensor() const noexcept { return tensor_; }  // not given where the plan needs none
  // Whether something around it was written.
  bool overrun() const;
  // What the device's work has left in it; poison where nothing was written.
  std::vector<std::byte> download() const;

 private:
  cuda::DeviceBuffer memory_;
  Tensor tensor_;
};

// Plans and runs the forward pass of `data` on the device by the public calls, in a stream of its
// own, with its outputs poisoned first, and copies everything back. Throws as forward does,
// Error(internal) where memory around the workspace was written.
void forward_on_device(CaseData& data, const PlanOptions& options, const Context& context,
                       bool with_lse);

// Does the same with the backward pass, which is given O and LSE of the host.
void backward_on_device(CaseData& data, const PlanOptions& options, const Context& context);

// Copies a tensor of the host, row-major, into `memory` and gives the view of it there.
Tensor upload(const Tensor& host, Device device, std::list<cuda::DeviceBuffer>& memory);

}  // namespace attn::verify
