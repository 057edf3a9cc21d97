// Arrays of Python, seen as Tensors, and new ones of the same library for results.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "attn/tensor.hpp"
#include "dlpack.hpp"

namespace attn::python {

namespace nb = nanobind;

// How an array is read, and where results of its kind come from.
enum class Source : std::uint8_t {
  exchange,  // a type with __dlpack_c_exchange_api__: PyTorch 2.10 and newer
  numpy,     // __array_struct__, so that bfloat16 of ml_dtypes and read-only arrays are seen too
  dlpack,    // __dlpack__; results are made by attn/arrays.py
};

struct Array {
  Tensor tensor{};
  Source source = Source::numpy;
  bool read_only = false;
  bool is_pytorch = false;
  bool is_bool = false;                      // which the library knows as u8
  const dlpack::ExchangeApi* api = nullptr;  // Source::exchange
  nb::object object{};
  nb::object imported{};  // what keeps memory that was imported for this view
};

// Views `object`. Throws Error(invalid_argument), which names the argument `name`, what it is and
// what is accepted: for a dtype, device or rank without meaning here, an array without data (fake
// and meta tensors), strides that are no multiple of the element, foreign byte order; TypeError for
// what is no array.
Array view(std::string_view name, nb::handle object);
// The same of an array that will be written: refuses read-only ones.
Array writable_view(std::string_view name, nb::handle object);

// As attn::to_string(array.tensor), with the dtype that the caller knows.
std::string described(const Array& array);

// Whether it is a torch.Tensor or torch.nn.Parameter itself with memory and a contiguous last
// dimension, as the library takes it.
bool is_plain_tensor(nb::handle object);
// Whether it is a tensor of PyTorch of a class that says by __torch_function__ or
// __torch_dispatch__ what functions make of it.
bool asks_class(nb::handle object);
// Refuses such a tensor.
void check_class(std::string_view name, const Array& array);
// Of a tensor of PyTorch.
bool requires_grad(nb::handle tensor);

// An uninitialised array of the library and device of `like`, and of its dtype or float32. Tensors
// of PyTorch lie in memory as `order` does where it is given (pytorch::empty), as those of its own
// functions do; other arrays are row-major.
enum class ResultType : std::uint8_t { as_like, float32 };
Array allocate(const Array& like, ResultType type, const std::vector<std::int64_t>& shape,
               const Tensor* order = nullptr);
// Tells PyTorch that a tensor of the caller's was written, so that a gradient which needs what it
// held before is refused.
void note_written(const Array& array);
// What the caller receives for an array of allocate(): JAX arrays, for one, are made at the end.
nb::object finished(const Array& like, const Array& made);

// The stream of the array's library in which work on its device is put; null on a CPU.
void* current_stream(const Array& array);

}  // namespace attn::python
