// The tensors of a matrix product in the memory of a GPU.
#pragma once

#include "cuda/driver/memory.hpp"
#include "verify/matmul.hpp"

namespace attn::verify {

// Copies of a MatmulData and the workspace of a plan. `data` must outlive it.
class DeviceMatmul {
 public:
  DeviceMatmul(MatmulData& data, const MatmulPlan& plan);
  void call(const MatmulPlan& plan, Context context) const;
  void download() const;  // C, gaps included

  MatmulInputs inputs;
  Tensor c;

 private:
  MatmulData& data_;
  cuda::DeviceBuffer a_, b_, c_, bias_, scales_, mask_, workspace_;
};

// One call, with C copied there poisoned and back.
void matmul_on_device(MatmulData& data, const MatmulPlan& plan, const Context& context);

}  // namespace attn::verify
