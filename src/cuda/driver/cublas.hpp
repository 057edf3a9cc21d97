// cuBLAS, opened at run time where it is installed: a peer in benchmarks, never a dependency.
#pragma once

#include <memory>
#include <string>

#include "attn/matmul.hpp"

namespace attn::cuda {

// A handle of one device, for one thread. Products are C = A B without bias and activation, float
// sums, by cublasGemmStridedBatchedEx with cuBLAS' own choice of algorithm.
class Cublas {
 public:
  // Throws Error(unavailable) where the library is not found, Error(device) where it fails.
  explicit Cublas(int device);
  ~Cublas();
  Cublas(const Cublas&) = delete;
  Cublas& operator=(const Cublas&) = delete;

  // Puts the product into the stream. Tensors are those of a valid problem on the device.
  void multiply(const MatmulProblem& problem, const MatmulInputs& inputs, const Tensor& c,
                void* stream) const;
  std::string version() const;  // "13.0.0 at /usr/lib/libcublas.so.13"

 private:
  struct Handle;
  std::unique_ptr<Handle> handle_;
};

}  // namespace attn::cuda
