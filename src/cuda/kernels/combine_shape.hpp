// How the threads that merge split keys share the splits and columns of a row
// (device/kernels/combine.cuh).
#pragma once

#include <cstdint>

namespace attn::cuda {

struct CombineShape {
  int across = 32;       // threads side by side in a row of O
  int split_lanes = 1;   // threads that share a column
  int threads = 128;     // of a block of threads
  int shared_bytes = 0;  // of a block: a float for each thread and column that it has

  int rows() const noexcept { return threads / (across * split_lanes); }  // of a block
};

CombineShape choose_combine(std::int64_t head_dim_v, std::int32_t num_splits);

}  // namespace attn::cuda
