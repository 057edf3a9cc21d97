// forward_sm90_float8 (device/kernels/forward_sm90_float8.cuh): Hopper, of Q, K and V in e4m3.
#pragma once

#include "cuda/kernels/forward_sm90/kernel.hpp"

namespace attn::cuda {

ForwardChoice choose_forward_sm90_float8(const ForwardRequest& request);

// Its V is the call's where shape.transposers > 0, else the one that transposed_values() describes.
class ForwardSm90Float8 final : public ForwardSm90 {
 public:
  using ForwardSm90::ForwardSm90;
  // Whether V has rows that give the sums of P, and its rows in shared memory: its columns, and
  // these.
  bool has_ones_in_v(const ForwardFeatures& f) const noexcept {
    return sums_by_product && f.head_dim_v + kRowsOfOnes <= 256;
  }
  int rows_of_v(const ForwardFeatures& f) const noexcept {
    return f.head_dim_v + (has_ones_in_v(f) ? kRowsOfOnes : 0);
  }
  static constexpr int kRowsOfOnes = 8;  // device/schedule/transposed_values.cuh
  // Bytes of a tile of V of so many keys (ForwardSm90Layout::kV).
  std::int64_t bytes_of_v(const ForwardFeatures& f, int keys) const noexcept;
  bool reads_transposed() const noexcept override { return shape.transposers == 0; }
  std::string declarations(const ForwardConfig& config) const override;
  std::optional<ForwardMaps> maps(const ForwardConfig& config, const Problem& problem,
                                  const Inputs& inputs, const Outputs& outputs) const override;
};

}  // namespace attn::cuda
