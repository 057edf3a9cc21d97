// Places of a part of a larger problem (core/problem/places.hpp) where kernels read them.
#pragma once

#include <memory>
#include <vector>

#include "attn/plan.hpp"
#include "cuda/device/params.cuh"
#include "cuda/driver/memory.hpp"
#include "cuda/jit/kernel.hpp"

namespace attn::cuda {

class RowPlaces {
 public:
  // Those of the plan's problem, in memory of its device; null where that is no part. The kernels
  // that are asked for then read them. Throws as DeviceBuffer does.
  static std::shared_ptr<const RowPlaces> of(const Plan& plan,
                                             std::vector<KernelRequest>& requests);

  // Sets cu_seqlens of `parameters` as device/softmax/dropout.cuh says.
  void give(device::ProblemParams& parameters) const;

 private:
  DeviceBuffer query_{}, key_{};
};

}  // namespace attn::cuda
