// backward_sm90 (device/kernels/backward_sm90.cuh): Hopper.
#pragma once

#include "cuda/kernels/backward_kernel.hpp"
#include "cuda/kernels/backward_sm90/shapes.hpp"

namespace attn::cuda {

BackwardChoice choose_backward_sm90(const BackwardRequest& request);
std::optional<BackwardMaps> backward_sm90_maps(const BackwardConfig& config, const Problem& problem,
                                               const Inputs& inputs, const Tensor& d_o);

// A row of the table of shapes, in which piece_columns and stages_dq may be those of order.
class BackwardSm90 final : public BackwardShape {
 public:
  explicit BackwardSm90(const BackwardSm90Shape& of) : shape(of) {}
  void print(const BackwardConfig& config, ConfigText& to) const override;
  std::string declarations(const BackwardConfig& config) const override;

  const BackwardSm90Shape shape;
};

}  // namespace attn::cuda
