#include "pytorch.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <utility>

#include "core/first_made.hpp"

namespace attn::python::pytorch {
namespace {

using Handle = void*;  // an at::Tensor* that its holder deletes

// Of torch/csrc/inductor/aoti_torch/c/shim.h, which PyTorch keeps compatible from version to
// version; THPVariable_Wrap, by which extensions of PyTorch have returned tensors since 1.5, whose
// mangled name says its argument; and TorchDispatchModeTLS::stack_len, getTracingState,
// at::hasCallbacks and at::get_num_threads, for which Python has functions that take ten times as
// long.
struct Functions {
  std::int32_t (*empty_strided)(std::int64_t rank, const std::int64_t* shape,
                                const std::int64_t* strides, std::int32_t dtype,
                                std::int32_t device_type, std::int32_t device_index, Handle* made);
  std::int32_t (*data)(Handle tensor, void** pointer);
  std::int32_t (*destroy)(Handle tensor);
  bool (*grad_mode)();
  PyObject* (*wrap)(const void* tensor);
  std::int64_t (*modes)();                // how many dispatch modes are active; may be null
  const void* const* (*tracing_state)();  // a shared_ptr, whose first word points; may be null
  bool (*callbacks)();                    // of profilers; may be null
  int (*threads)();                       // may be null
  std::int32_t cpu, cuda;                 // device types
  std::int32_t float16, bfloat16, float32, float64;  // dtypes
  bool complete;
};

template <class Function>
bool find(void* library, const char* name, Function& function) {
  function = library == nullptr ? nullptr : reinterpret_cast<Function>(dlsym(library, name));
  return function != nullptr;
}

bool number(void* library, const char* name, std::int32_t& number) {
  std::int32_t (*function)() = nullptr;
  if (!find(library, name, function)) return false;
  number = function();
  return true;
}

Functions load() {
  Functions f{};
  // RTLD_NOLOAD: the libraries that `import torch` has opened.
  void* const core = dlopen("libtorch_cpu.so", RTLD_LAZY | RTLD_NOLOAD);
  void* const python = dlopen("libtorch_python.so", RTLD_LAZY | RTLD_NOLOAD);
  void* const c10 = dlopen("libc10.so", RTLD_LAZY | RTLD_NOLOAD);
  find(c10, "_ZN3c104impl20TorchDispatchModeTLS9stack_lenEv", f.modes);
  find(core, "_ZN5torch3jit6tracer15getTracingStateEv", f.tracing_state);
  find(core, "_ZN2at12hasCallbacksEv", f.callbacks);
  find(core, "_ZN2at15get_num_threadsEv", f.threads);
  f.complete = find(core, "aoti_torch_empty_strided", f.empty_strided) &&
               find(core, "aoti_torch_get_data_ptr", f.data) &&
               find(core, "aoti_torch_delete_tensor_object", f.destroy) &&
               find(core, "aoti_torch_grad_mode_is_enabled", f.grad_mode) &&
               find(python, "_Z16THPVariable_WrapRKN2at10TensorBaseE", f.wrap) &&
               number(core, "aoti_torch_device_type_cpu", f.cpu) &&
               number(core, "aoti_torch_device_type_cuda", f.cuda) &&
               number(core, "aoti_torch_dtype_float16", f.float16) &&
               number(core, "aoti_torch_dtype_bfloat16", f.bfloat16) &&
               number(core, "aoti_torch_dtype_float32", f.float32) &&
               number(core, "aoti_torch_dtype_float64", f.float64);
  return f;
}

// Asked for when a tensor of PyTorch has been seen.
const Functions& functions() {
  static constinit core::FirstMade<const Functions> found;
  return found.get([] { return load(); });
}

// Negative: results of attention have no such dtype.
std::int32_t code_of(const Functions& f, DType dtype) {
  switch (dtype) {
    case DType::f16:
      return f.float16;
    case DType::bf16:
      return f.bfloat16;
    case DType::f32:
      return f.float32;
    case DType::f64:
      return f.float64;
    case DType::i64:
    case DType::i32:
    case DType::u8:
      break;
  }
  return -1;
}

using Strides = std::array<std::int64_t, kMaxRank>;
using Axes = std::array<std::size_t, kMaxRank>;

std::size_t rank_of(const Tensor& t) { return static_cast<std::size_t>(t.rank); }

// Strides that put the axes into memory without gaps, `axes` from the innermost on.
Strides packed(const Axes& axes, std::span<const std::int64_t> shape) {
  Strides strides{};
  std::int64_t stride = 1;
  for (std::size_t i = 0; i < shape.size(); ++i) {
    strides[axes[i]] = stride;
    stride *= std::max<std::int64_t>(shape[axes[i]], 1);
  }
  return strides;
}

Axes last_first(std::size_t rank) {
  Axes axes{};
  for (std::size_t i = 0; i < rank; ++i) axes[i] = rank - 1 - i;
  return axes;
}

// at::is_non_overlapping_and_dense: whether the elements lie side by side, in any order of the
// axes.
bool is_dense(const Tensor& t) {
  const auto counts = [&](std::size_t axis) { return t.shape[axis] > 1; };
  const Axes axes = last_first(rank_of(t));
  const std::span used(axes.data(), rank_of(t));
  std::int64_t stride = 1;
  for (auto left = std::ranges::count_if(used, counts); left > 0; --left) {
    const auto next = std::ranges::find_if(
        used, [&](std::size_t axis) { return counts(axis) && t.strides[axis] == stride; });
    if (next == used.end()) return false;
    stride *= t.shape[*next];
  }
  return true;
}

// The axes in the order that `compare` (negative: before) says, by at::infer_dense_strides'
// insertion sort: strides of 0 are equal to all others, so that there is no order which any sort
// would find.
template <class Compare>
Axes inner_first(std::size_t rank, const Compare& compare) {
  Axes axes = last_first(rank);
  for (std::size_t i = 1; i < rank; ++i) {
    std::size_t at = i;
    for (std::size_t before = i; before-- > 0;) {
      const int order = compare(axes[before], axes[at]);
      if (order < 0) break;
      if (order == 0) continue;
      std::swap(axes[before], axes[at]);
      at = before;
    }
  }
  return axes;
}

Strides dense_strides(const Tensor& t) {
  const auto compare = [&](std::size_t a, std::size_t b) {
    if (t.strides[a] == 0 || t.strides[b] == 0) return 0;
    if (t.strides[a] != t.strides[b]) return t.strides[a] < t.strides[b] ? -1 : 1;
    return t.shape[a] > t.shape[b] ? 1 : 0;
  };
  return packed(inner_first(rank_of(t), compare), {t.shape.data(), rank_of(t)});
}

Strides strides_as(const Tensor* order, std::span<const std::int64_t> shape) {
  const std::size_t rank = shape.size();
  const Strides row_major = packed(last_first(rank), shape);
  if (order == nullptr || rank_of(*order) != rank || rank == 0) return row_major;
  Strides strides = is_dense(*order) ? order->strides : dense_strides(*order);
  if (!std::ranges::equal(shape, std::span(order->shape.data(), rank))) {
    const auto compare = [&](std::size_t a, std::size_t b) {
      return strides[a] == strides[b] ? 0 : strides[a] < strides[b] ? -1 : 1;
    };
    strides = packed(inner_first(rank, compare), shape);
  }
  if (strides[rank - 1] != 1) return row_major;
  // DLPack does not tell the stride of an axis of one element.
  for (std::size_t axis = rank - 1; axis-- > 0;) {
    if (shape[axis] == 1)
      strides[axis] = strides[axis + 1] * std::max<std::int64_t>(shape[axis + 1], 1);
  }
  return strides;
}

}  // namespace

Made empty(DType dtype, Device device, std::span<const std::int64_t> shape, const Tensor* order) {
  const Functions& f = functions();
  const std::int32_t code = f.complete ? code_of(f, dtype) : -1;
  if (code < 0 || shape.size() > kMaxRank) return {};
  Made made;
  Tensor& t = made.tensor;
  t.dtype = dtype;
  t.device = device;
  t.rank = static_cast<std::int32_t>(shape.size());
  std::ranges::copy(shape, t.shape.begin());
  t.strides = strides_as(order, shape);
  const bool on_gpu = device.type == DeviceType::cuda;
  Handle handle = nullptr;
  if (f.empty_strided(t.rank, t.shape.data(), t.strides.data(), code, on_gpu ? f.cuda : f.cpu,
                      on_gpu ? device.index : -1, &handle) != 0) {
    return {};
  }
  if (f.data(handle, &t.data) == 0) made.object = f.wrap(handle);
  if (made.object == nullptr) PyErr_Clear();
  f.destroy(handle);
  return made;
}

bool records_gradients() {
  const Functions& f = functions();
  return !f.complete || f.grad_mode();
}

int num_threads() {
  const Functions& f = functions();
  return f.threads == nullptr ? 0 : f.threads();
}

bool is_observed() {
  const Functions& f = functions();
  if (f.modes != nullptr && f.tracing_state != nullptr && f.callbacks != nullptr) {
    return f.modes() > 0 || *f.tracing_state() != nullptr || f.callbacks();
  }
  // Never freed: Python may be gone by then.
  static constinit core::FirstMade<PyObject*> made;
  PyObject* const module = made.get([] { return PyImport_ImportModule("attn.arrays"); });
  PyObject* const answer = PyObject_CallMethod(module, "is_observed", nullptr);
  const bool is_not = answer == Py_False;
  if (answer == nullptr) PyErr_Clear();
  Py_XDECREF(answer);
  return !is_not;
}

bool is_forward_mode() {
  // Never freed: Python may be gone by then.
  static constinit core::FirstMade<PyObject*> made, made_name;
  PyObject* const module =
      made.get([] { return PyImport_ImportModule("torch.autograd.forward_ad"); });
  PyObject* const name = made_name.get([] { return PyUnicode_InternFromString("_current_level"); });
  PyObject* const level = module == nullptr ? nullptr : PyObject_GetAttr(module, name);
  const bool is_none = level != nullptr && PyLong_Check(level) && PyLong_AsLong(level) < 0;
  if (PyErr_Occurred() != nullptr) PyErr_Clear();
  Py_XDECREF(level);
  return !is_none;  // a PyTorch that says nothing is asked for each tensor
}

}  // namespace attn::python::pytorch
