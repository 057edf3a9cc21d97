#include "cuda/driver/cublas.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "attn/error.hpp"
#include "core/matmul.hpp"
#include "core/platform/platform.hpp"
#include "cuda/driver/device.hpp"
#include "cuda/driver/memory.hpp"

namespace attn::cuda {
namespace {

// Types and numbers of the library's interface, which CUDA 12 and 13 share.
using Status = int;
using Create = Status (*)(void** handle);
using Destroy = Status (*)(void* handle);
using SetStream = Status (*)(void* handle, void* stream);
using SetWorkspace = Status (*)(void* handle, void* memory, std::size_t bytes);
using GetVersion = Status (*)(void* handle, int* version);
using Gemm = Status (*)(void* handle, int transposed_a, int transposed_b, int m, int n, int k,
                        const void* alpha, const void* a, int type_a, int lda, long long stride_a,
                        const void* b, int type_b, int ldb, long long stride_b, const void* beta,
                        void* c, int type_c, int ldc, long long stride_c, int batch,
                        int compute_type, int algorithm);

constexpr int kNotTransposed = 0, kTransposed = 1;       // cublasOperation_t
constexpr int kCompute32F = 68, kDefaultAlgorithm = -1;  // cublasComputeType_t, cublasGemmAlgo_t
constexpr std::size_t kWorkspaceBytes = std::size_t{64} << 20;

int type_of(DType dtype) {  // cudaDataType_t
  constexpr int kR32F = 0, kR16F = 2, kR16BF = 14;
  if (dtype == DType::bf16) return kR16BF;
  return dtype == DType::f16 ? kR16F : kR32F;
}

core::SharedLibrary open_cublas() {
  core::SharedLibrary library;
  for (const char* name : {"libcublas.so.13", "libcublas.so.12",
                           "/usr/local/cuda/lib64/libcublas.so", "libcublas.so"}) {
    core::SharedLibrary found = core::open_library(name);
    if (found.handle != nullptr) return found;
    if (library.error.empty()) library.error = found.error;
  }
  return library;
}

void check_status(Status status, const char* what) {
  if (status != 0) throw Error(ErrorCode::device, fmt::format("{} returned {}", what, status));
}

}  // namespace

struct Cublas::Handle {
  core::SharedLibrary library = open_cublas();
  void* handle = nullptr;
  DeviceBuffer workspace{};

  template <class Function>
  Function find(const char* symbol) const {
    void* found = core::find_symbol(library, symbol);
    if (found == nullptr) {
      throw Error(ErrorCode::unavailable, fmt::format("{} has no {}", library.path, symbol));
    }
    return reinterpret_cast<Function>(found);
  }
};

Cublas::Cublas(int device) : handle_(std::make_unique<Handle>()) {
  if (handle_->library.handle == nullptr) {
    throw Error(ErrorCode::unavailable,
                fmt::format("cuBLAS cannot be opened ({})", handle_->library.error));
  }
  const ContextGuard guard(device);
  check_status(handle_->find<Create>("cublasCreate_v2")(&handle_->handle), "cublasCreate");
  handle_->workspace = DeviceBuffer(device, kWorkspaceBytes);
}

Cublas::~Cublas() {
  if (handle_->handle == nullptr) return;
  const ContextGuard guard(handle_->workspace.device());
  handle_->find<Destroy>("cublasDestroy_v2")(handle_->handle);
}

std::string Cublas::version() const {
  int version = 0;
  handle_->find<GetVersion>("cublasGetVersion_v2")(handle_->handle, &version);
  return fmt::format("{} at {}", version, handle_->library.path);
}

void Cublas::multiply(const MatmulProblem& p, const MatmulInputs& inputs, const Tensor& c,
                      void* stream) const {
  const ContextGuard guard(handle_->workspace.device());
  check_status(handle_->find<SetStream>("cublasSetStream_v2")(handle_->handle, stream),
               "cublasSetStream");
  check_status(handle_->find<SetWorkspace>("cublasSetWorkspace_v2")(
                   handle_->handle, handle_->workspace.data(), kWorkspaceBytes),
               "cublasSetWorkspace");
  // cuBLAS is column-major: C^T = B^T A^T, where a row-major matrix is its own transpose.
  const core::MatmulOperands o(p, inputs, c);
  const auto ld = [](std::int64_t one, std::int64_t other) {
    return static_cast<int>(std::max(one, other));
  };
  const bool plain_b = o.b.column_stride == 1, plain_a = o.a.column_stride == 1;
  const float alpha = 1, beta = 0;
  check_status(handle_->find<Gemm>("cublasGemmStridedBatchedEx")(
                   handle_->handle, plain_b ? kNotTransposed : kTransposed,
                   plain_a ? kNotTransposed : kTransposed, static_cast<int>(o.n),
                   static_cast<int>(o.m), static_cast<int>(o.k), &alpha, o.b.data, type_of(p.dtype),
                   ld(o.b.row_stride, o.b.column_stride), o.b.batch_stride, o.a.data,
                   type_of(p.dtype), ld(o.a.row_stride, o.a.column_stride), o.a.batch_stride, &beta,
                   o.c.data, type_of(p.output), static_cast<int>(o.c.row_stride), o.c.batch_stride,
                   static_cast<int>(o.batch), kCompute32F, kDefaultAlgorithm),
               "cublasGemmStridedBatchedEx");
}

}  // namespace attn::cuda
