// backward_sm80 (device/kernels/backward_sm80.cuh): mma.sync, any architecture from 8.0 on.
#pragma once

#include "cuda/kernels/backward_kernel.hpp"
#include "cuda/kernels/backward_sm80/shapes.hpp"

namespace attn::cuda {

BackwardChoice choose_backward_sm80(const BackwardRequest& request);

// A row of the table of shapes, as the architecture has it.
class BackwardSm80 final : public BackwardShape {
 public:
  explicit BackwardSm80(const BackwardSm80Shape& of) : shape(of) {}
  void print(const BackwardConfig& config, ConfigText& to) const override;

  const BackwardSm80Shape shape;
};

}  // namespace attn::cuda
