// What PyTorch offers in C beside DLPack, found in the process: attn is built without PyTorch and
// links none of it.
#pragma once

#include <Python.h>

#include <cstdint>
#include <span>

#include "attn/tensor.hpp"

namespace attn::python::pytorch {

// A new tensor of PyTorch, uninitialised, and its object in Python (a new reference).
struct Made {
  Tensor tensor{};
  PyObject* object = nullptr;
};

// One in the time of torch.empty in C++, half of that of DLPack's allocator (which wraps the memory
// in a tensor again). `object` is null where this PyTorch lacks the functions or memory is short:
// DLPack's allocator then says why. The interpreter lock is held. It lies in memory as `order`, of
// its rank, does: with the strides of torch.empty_like(order) where the shapes are equal, else with
// its dimensions from the outermost to the innermost in that order; the stride of a dimension of
// one element is as in a row-major tensor. Row-major where `order` is null or its last dimension
// would not be contiguous. attn/torch/ops.py has the same rule.
Made empty(DType dtype, Device device, std::span<const std::int64_t> shape,
           const Tensor* order = nullptr);

// Whether PyTorch records gradients in this thread; true where it cannot be asked in C.
bool records_gradients();

// The number of threads of PyTorch's own operators in this thread, as torch.get_num_threads() has
// it; 0 where it cannot be asked in C.
int num_threads();

// Whether a mode of PyTorch, a profiler of it or torch.jit.trace follows the operators that run in
// this thread. PyTorch has been imported.
bool is_observed();

// Whether tensors may have tangents of forward-mode differentiation now. PyTorch has been imported.
bool is_forward_mode();

}  // namespace attn::python::pytorch
