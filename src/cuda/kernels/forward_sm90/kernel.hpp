// forward_sm90 (device/kernels/forward_sm90.cuh): Hopper.
#pragma once

#include "cuda/kernels/forward_kernel.hpp"
#include "cuda/kernels/forward_sm90/shapes.hpp"

namespace attn::cuda {

ForwardChoice choose_forward_sm90(const ForwardRequest& request);

// A row of the table of shapes, and what the problem adds to it. keys may be fewer in the tiling.
class ForwardSm90 final : public ForwardShape {
 public:
  explicit ForwardSm90(const ForwardSm90Shape& of) : shape(of) {}
  void print(const ForwardConfig& config, ConfigText& to) const override;
  std::string declarations(const ForwardConfig& config) const override;
  std::optional<ForwardMaps> maps(const ForwardConfig& config, const Problem& problem,
                                  const Inputs& inputs, const Outputs& outputs) const override;

  const ForwardSm90Shape shape;
  bool drops_by_product = false;  // P times 1 or 0 of a comparison, not `and` with its mask
  bool stores_boxes = false;  // O leaves through places of Q, and rows of a box of it belong to one
                              // sequence and head
  int near_blocks = 2;        // the next tile is dealt when so many are not asked for
  bool gathers = false;       // a tile of keys is two blocks of 64 that its rows see
  int page_rows = 0;          // keys of one box of the copy engine when paged
};

}  // namespace attn::cuda
