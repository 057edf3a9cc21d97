// What a GPU can do at most, measured: rates of matrix products and of memory.
#pragma once

#include <map>
#include <string>
#include <utility>

#include "attn/context.hpp"
#include "cuda/jit/compile.hpp"

namespace attn::command {

// A kernel that does nothing but multiply: with wgmma (9.0), mma.sync (others), or FMA (f32). u8:
// 8-bit floats, as in MatmulProblem; the tensor cores of 8.9 and up have them.
struct MatrixRate {
  cuda::Source source;  // entry (float* out, int iterations); out has a float a thread
  unsigned threads = 256;
  unsigned blocks_per_sm = 1;
  double flops_per_block = 0;  // of one iteration
};
MatrixRate matrix_rate_kernel(DType dtype, int capability);

// Measured when first asked for and kept. Each takes about a second. Throws as the CUDA backend.
class CudaCeilings {
 public:
  // GFLOP/s of matrix products of this dtype from shared memory or registers; random operands, so
  // that the chip draws the power it would. 0 of 8-bit floats (u8) where tensor cores have none.
  double gflops(DType dtype, int device, const Context& context);
  // GB/s of a copy of device memory, bytes read and bytes written.
  double gbps(int device);

 private:
  std::map<std::pair<DType, int>, double> gflops_;
  std::map<int, double> gbps_;
};

}  // namespace attn::command
