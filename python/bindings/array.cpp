#include "array.hpp"

#include <string>
#include <unordered_map>
#include <utility>

#include "attn/error.hpp"
#include "core/first_made.hpp"
#include "kept_attribute.hpp"
#include "pytorch.hpp"

namespace attn::python {
namespace {

constexpr std::string_view kAcceptedTypes =
    "float32, bfloat16, float16, float64, int32, int64, uint8 and bool";

[[noreturn]] void refuse(const std::string& message) {
  throw Error(ErrorCode::invalid_argument, message);
}

std::string class_of(nb::handle object) {
  return nb::cast<std::string>(object.type().attr("__name__"));
}

std::string dtype_name(nb::handle object) {
  const nb::object dtype = object.attr("dtype");
  return nb::str(dtype).c_str();
}

// What each library needs beside DLPack: python/attn/arrays.py.
nb::module_ arrays() { return nb::module_::import_("attn.arrays"); }

// Attribute names that are looked up at every call; made once, never freed.
struct Names {
  nb::handle exchange = intern("__dlpack_c_exchange_api__");
  nb::handle array_struct = intern("__array_struct__");
  nb::handle requires_grad = intern("requires_grad");
  nb::handle dtype = intern("dtype");
  nb::handle is_neg = intern("is_neg");

 private:
  static nb::handle intern(const char* text) { return PyUnicode_InternFromString(text); }
};
const Names& names() {
  static constinit core::FirstMade<const Names> made;
  return made.get([] { return Names(); });
}

// The attribute, or an invalid object where there is none.
nb::object find(nb::handle object, nb::handle attribute) {
  PyObject* found = PyObject_GetAttr(object.ptr(), attribute.ptr());
  if (found == nullptr) PyErr_Clear();
  return nb::steal(found);
}

// What is known of a type of arrays, which stays alive by being known.
struct Kind {
  nb::object type{};
  const dlpack::ExchangeApi* api = nullptr;  // null: it has none
  bool is_pytorch = false;                   // torch.Tensor, or a class of it
  bool is_plain = false;                     // torch.Tensor or torch.nn.Parameter themselves
  bool is_masked = false;                    // numpy.ma.MaskedArray, or a class of it
  // Of a class of torch.Tensor: what it makes of a tensor beside its memory, in words, and whether
  // a caller that has asked the class may read the memory.
  std::string meaning{};
  bool is_readable = true;
};

// Whether `type` is, or derives from, a class of a module that the program may have imported.
bool derives_from(nb::handle type, const char* module, const char* name) {
  const nb::object modules = nb::module_::import_("sys").attr("modules");
  const nb::object found = modules.attr("get")(module);
  return !found.is_none() && PyObject_IsSubclass(type.ptr(), found.attr(name).ptr()) == 1;
}

Kind kind_of_new(nb::handle type) {
  Kind kind{.type = nb::borrow(type)};
  if (const nb::object capsule = find(type, names().exchange); capsule.is_valid()) {
    kind.api = static_cast<const dlpack::ExchangeApi*>(
        PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
    if (kind.api == nullptr) PyErr_Clear();
    if (kind.api != nullptr && kind.api->header.version.major != 1) kind.api = nullptr;
  }
  kind.is_masked = derives_from(type, "numpy.ma", "MaskedArray");
  const bool is_tensor = derives_from(type, "torch", "Tensor");
  kind.is_pytorch = kind.api != nullptr && is_tensor;
  if (is_tensor) {
    const nb::object found = arrays().attr("class_meaning")(type);
    kind.meaning = nb::cast<std::string>(found[0]);
    kind.is_readable = nb::cast<bool>(found[1]);
  }
  if (kind.is_pytorch) {
    const nb::object torch = nb::module_::import_("torch");
    kind.is_plain = type.is(torch.attr("Tensor")) || type.is(torch.attr("nn").attr("Parameter"));
  }
  return kind;
}

const Kind& kind_of(nb::handle type) {
  // Never destroyed: Python is gone by then. At most kMaxTypes, for programs that make types.
  constexpr std::size_t kMaxTypes = 256;
  static constinit core::FirstMade<std::unordered_map<PyObject*, Kind>> made;
  auto& known = made.get([] { return std::unordered_map<PyObject*, Kind>(); });
  if (const auto at = known.find(type.ptr()); at != known.end()) return at->second;
  if (known.size() >= kMaxTypes) known.clear();
  return known.emplace(type.ptr(), kind_of_new(type)).first->second;
}

DType dtype_of_dlpack(std::string_view name, const dlpack::DataType& type, nb::handle object) {
  if (type.lanes == 1) {
    switch (type.code << 8 | type.bits) {
      case dlpack::kFloat << 8 | 64:
        return DType::f64;
      case dlpack::kFloat << 8 | 32:
        return DType::f32;
      case dlpack::kFloat << 8 | 16:
        return DType::f16;
      case dlpack::kBfloat << 8 | 16:
        return DType::bf16;
      case dlpack::kInt << 8 | 64:
        return DType::i64;
      case dlpack::kInt << 8 | 32:
        return DType::i32;
      case dlpack::kUInt << 8 | 8:
      case dlpack::kBool << 8 | 8:
        return DType::u8;
      default:
        break;
    }
  }
  refuse(std::string(name) + " has dtype " + dtype_name(object) + "; accepted are " +
         std::string(kAcceptedTypes));
}

Device device_of_dlpack(std::string_view name, const dlpack::Device& device) {
  switch (device.type) {
    case dlpack::kCpu:
    case dlpack::kCudaHost:
      return {};
    case dlpack::kCuda:
    case dlpack::kCudaManaged:
      return {DeviceType::cuda, device.index};
    default:
      refuse(std::string(name) + " is on a device of DLPack type " + std::to_string(device.type) +
             "; accepted are CPU and CUDA");
  }
}

void check_rank(std::string_view name, std::int64_t rank) {
  if (rank < 1 || rank > kMaxRank) {
    refuse(std::string(name) + " has " + std::to_string(rank) + " dimensions; accepted are 1 to " +
           std::to_string(kMaxRank));
  }
}

void check_data(std::string_view name, const Tensor& tensor, nb::handle object) {
  if (tensor.data == nullptr && tensor.size() > 0) {
    refuse(std::string(name) + " is a " + class_of(object) +
           " without data (a fake or meta tensor?); accepted are arrays in memory");
  }
}

Tensor tensor_of_dlpack(std::string_view name, const dlpack::DLTensor& from, nb::handle object) {
  check_rank(name, from.rank);
  Tensor tensor;
  tensor.dtype = dtype_of_dlpack(name, from.dtype, object);
  tensor.device = device_of_dlpack(name, from.device);
  tensor.rank = from.rank;
  std::int64_t stride = 1;
  for (int k = from.rank - 1; k >= 0; --k) {
    const auto i = static_cast<std::size_t>(k);
    tensor.shape[i] = from.shape[k];
    tensor.strides[i] = from.strides != nullptr ? from.strides[k] : stride;
    stride *= from.shape[k];
  }
  if (from.data != nullptr) tensor.data = static_cast<std::byte*>(from.data) + from.byte_offset;
  check_data(name, tensor, object);
  return tensor;
}

// With the reason that its library gave: the first line of the Python error that is set.
[[noreturn]] void refuse_view(std::string_view name, nb::handle object, const Kind& kind) {
  const nb::python_error error;
  if (kind.is_pytorch && nb::cast<bool>(arrays().attr("is_transformed")(object))) {
    refuse(std::string(name) + " is within a transform of torch.func, of which its memory tells " +
           "nothing; accepted are tensors outside of one");
  }
  const std::string reason = nb::str(error.value()).c_str();
  refuse(std::string(name) + " is a " + class_of(object) + " that shows no memory (" +
         reason.substr(0, reason.find('\n')) + "); accepted are strided arrays in memory");
}

[[noreturn]] void refuse_meaning(std::string_view name, nb::handle object, const Kind& kind) {
  refuse(std::string(name) + " is a " + class_of(object) + ", " + kind.meaning);
}

// Whether a tensor of PyTorch stands for the negative of what its memory holds.
bool is_negated(nb::handle tensor) {
  PyObject* found = PyObject_CallMethodObjArgs(tensor.ptr(), names().is_neg.ptr(), nullptr);
  if (found == nullptr) PyErr_Clear();
  return nb::steal(found).ptr() == Py_True;
}

Array exchange_view(std::string_view name, nb::handle object, const Kind& kind) {
  const dlpack::ExchangeApi& api = *kind.api;
  // The table does not say it.
  if (kind.is_pytorch && is_negated(object)) {
    refuse(std::string(name) + " has PyTorch's negative bit; accepted is its resolve_neg()");
  }
  Array array{.source = Source::exchange,
              .is_pytorch = kind.is_pytorch,
              .api = &api,
              .object = nb::borrow(object)};
  if (api.view_of_object != nullptr) {
    dlpack::DLTensor view{};
    if (api.view_of_object(object.ptr(), &view) != 0) refuse_view(name, object, kind);
    array.tensor = tensor_of_dlpack(name, view, object);
    array.is_bool = view.dtype.code == dlpack::kBool;
  } else {
    dlpack::ManagedTensorVersioned* managed = nullptr;
    if (api.managed_from_object(object.ptr(), &managed) != 0) refuse_view(name, object, kind);
    array.imported = nb::capsule(managed, [](void* p) noexcept {
      auto* owned = static_cast<dlpack::ManagedTensorVersioned*>(p);
      owned->deleter(owned);
    });
    array.read_only = (managed->flags & dlpack::kReadOnly) != 0;
    array.tensor = tensor_of_dlpack(name, managed->tensor, object);
    array.is_bool = managed->tensor.dtype.code == dlpack::kBool;
  }
  return array;
}

// What the capsule of __array_struct__ holds (numpy.org, "The array interface protocol").
struct ArrayInterface {
  int two;
  int rank;
  char kind;
  int bytes;
  int flags;
  Py_ssize_t* shape;
  Py_ssize_t* strides;  // in bytes
  void* data;
  PyObject* description;
};
constexpr int kNativeByteOrder = 0x200;
constexpr int kWriteable = 0x400;

DType dtype_of_numpy(std::string_view name, const ArrayInterface& from, nb::handle object) {
  if ((from.flags & kNativeByteOrder) != 0) {
    switch (from.kind << 8 | from.bytes) {
      case 'f' << 8 | 8:
        return DType::f64;
      case 'f' << 8 | 4:
        return DType::f32;
      case 'f' << 8 | 2:
        return DType::f16;
      case 'i' << 8 | 8:
        return DType::i64;
      case 'i' << 8 | 4:
        return DType::i32;
      case 'u' << 8 | 1:
      case 'b' << 8 | 1:
        return DType::u8;
      case 'V' << 8 | 2:  // as NumPy sees the bfloat16 of ml_dtypes
        if (dtype_name(object) == "bfloat16") return DType::bf16;
        break;
      default:
        break;
    }
  }
  refuse(std::string(name) + " has dtype " + dtype_name(object) + "; accepted are " +
         std::string(kAcceptedTypes) + " in native byte order");
}

Array numpy_view(std::string_view name, nb::handle object, const nb::object& capsule) {
  const auto* from =
      static_cast<const ArrayInterface*>(PyCapsule_GetPointer(capsule.ptr(), nullptr));
  if (from == nullptr) throw nb::python_error();
  check_rank(name, from->rank);
  Array array{.source = Source::numpy, .object = nb::borrow(object)};
  array.read_only = (from->flags & kWriteable) == 0;
  Tensor& tensor = array.tensor;
  tensor.dtype = dtype_of_numpy(name, *from, object);
  array.is_bool = from->kind == 'b';
  tensor.rank = from->rank;
  tensor.data = from->data;
  for (int k = 0; k < from->rank; ++k) {
    const auto i = static_cast<std::size_t>(k);
    tensor.shape[i] = from->shape[k];
    tensor.strides[i] = from->strides[k] / from->bytes;
    if (from->strides[k] % from->bytes != 0) {
      refuse(std::string(name) + " has a stride of " + std::to_string(from->strides[k]) +
             " bytes; accepted are multiples of its element, " + std::to_string(from->bytes));
    }
  }
  check_data(name, tensor, object);
  return array;
}

template <class Managed>
Array managed_view(std::string_view name, nb::handle object, const nb::object& capsule,
                   const char* capsule_name, const char* used_name) {
  auto* managed = static_cast<Managed*>(PyCapsule_GetPointer(capsule.ptr(), capsule_name));
  if (managed == nullptr || PyCapsule_SetName(capsule.ptr(), used_name) != 0) {
    throw nb::python_error();
  }
  Array array{.source = Source::dlpack, .object = nb::borrow(object)};
  array.imported = nb::capsule(managed, [](void* p) noexcept {
    auto* owned = static_cast<Managed*>(p);
    if (owned->deleter != nullptr) owned->deleter(owned);
  });
  if constexpr (requires { managed->flags; }) {
    if (managed->version.major != 1) {
      refuse(std::string(name) + " is exported by DLPack " +
             std::to_string(managed->version.major) + "; accepted is version 1");
    }
    array.read_only = (managed->flags & dlpack::kReadOnly) != 0;
  }
  array.tensor = tensor_of_dlpack(name, managed->tensor, object);
  array.is_bool = managed->tensor.dtype.code == dlpack::kBool;
  return array;
}

Array dlpack_view(std::string_view name, nb::handle object) {
  const nb::object capsule = arrays().attr("export")(object, std::string(name));
  if (PyCapsule_IsValid(capsule.ptr(), "dltensor_versioned") != 0) {
    return managed_view<dlpack::ManagedTensorVersioned>(name, object, capsule, "dltensor_versioned",
                                                        "used_dltensor_versioned");
  }
  return managed_view<dlpack::ManagedTensor>(name, object, capsule, "dltensor", "used_dltensor");
}

dlpack::DataType dlpack_dtype(DType dtype) {
  const auto bits = static_cast<std::uint8_t>(8 * size_of(dtype));
  return {dtype == DType::bf16 ? dlpack::kBfloat : dlpack::kFloat, bits, 1};
}

Array exchange_allocate(const Array& like, ResultType type, const std::vector<std::int64_t>& shape,
                        const Tensor* order) {
  const DType dtype = type == ResultType::float32 ? DType::f32 : like.tensor.dtype;
  if (like.is_pytorch) {
    const pytorch::Made made = pytorch::empty(dtype, like.tensor.device, shape, order);
    if (made.object != nullptr) {
      return {.tensor = made.tensor,
              .source = Source::exchange,
              .is_pytorch = true,
              .api = like.api,
              .object = nb::steal(made.object)};
    }
  }
  std::vector<std::int64_t> sizes = shape;
  const Device device = like.tensor.device;
  dlpack::DLTensor prototype{};
  prototype.device = {device.type == DeviceType::cuda ? dlpack::kCuda : dlpack::kCpu, device.index};
  prototype.rank = static_cast<std::int32_t>(sizes.size());
  prototype.dtype = dlpack_dtype(dtype);
  prototype.shape = sizes.data();
  dlpack::ManagedTensorVersioned* managed = nullptr;
  std::string message;
  const auto keep = [](void* context, const char*, const char* text) {
    *static_cast<std::string*>(context) = text;
  };
  if (like.api->allocate(&prototype, &managed, &message, keep) != 0) {
    PyErr_Clear();
    throw Error(ErrorCode::out_of_memory, "a result could not be allocated: " + message);
  }
  Array made{.source = Source::exchange, .api = like.api};
  made.tensor = tensor_of_dlpack("result", managed->tensor, like.object);
  void* object = nullptr;
  if (like.api->managed_to_object(managed, &object) != 0) throw nb::python_error();
  made.object = nb::steal(static_cast<PyObject*>(object));
  return made;
}

nb::tuple as_tuple(const std::vector<std::int64_t>& shape) {
  nb::list sizes;
  for (const std::int64_t size : shape) sizes.append(size);
  return nb::tuple(sizes);
}

Array numpy_allocate(const Array& like, ResultType type, const std::vector<std::int64_t>& shape) {
  static constinit KeptAttribute empty("numpy", "empty"), float32("numpy", "float32");
  const nb::object dtype =
      type == ResultType::float32 ? nb::borrow(float32.get()) : find(like.object, names().dtype);
  return view("result", empty.get()(as_tuple(shape), dtype));
}

}  // namespace

Array view(std::string_view name, nb::handle object) {
  const Kind& kind = kind_of(object.type());
  if (kind.api != nullptr) {
    Array array = exchange_view(name, object, kind);
    if (!kind.is_readable) refuse_meaning(name, object, kind);
    return array;
  }
  if (kind.is_masked) {
    refuse(std::string(name) + " is a " + class_of(object) +
           ", whose mask would not be read; accepted are arrays without one, as its filled() is");
  }
  const nb::object capsule = find(object, names().array_struct);
  const bool has_capsule = capsule.is_valid() && PyCapsule_CheckExact(capsule.ptr()) != 0;
  if (has_capsule) return numpy_view(name, object, capsule);
  if (!capsule.is_valid() && nb::hasattr(object, "__dlpack__")) {  // a Proxy of torch.fx has both
    if (!kind.is_readable) refuse_meaning(name, object, kind);
    return dlpack_view(name, object);
  }
  throw nb::type_error((std::string(name) + " is a " + class_of(object) +
                        "; accepted are arrays of NumPy, PyTorch, JAX, CuPy or others with "
                        "__dlpack__")
                           .c_str());
}

bool asks_class(nb::handle object) { return !kind_of(object.type()).meaning.empty(); }

void check_class(std::string_view name, const Array& array) {
  const Kind& kind = kind_of(array.object.type());
  if (!kind.meaning.empty()) refuse_meaning(name, array.object, kind);
}

std::string described(const Array& array) {
  const std::string text = to_string(array.tensor);
  return array.is_bool ? "bool" + text.substr(attn::name(array.tensor.dtype).size()) : text;
}

bool is_plain_tensor(nb::handle object) {
  const Kind& kind = kind_of(object.type());
  if (!kind.is_plain || kind.api->view_of_object == nullptr) return false;
  dlpack::DLTensor view{};
  if (kind.api->view_of_object(object.ptr(), &view) != 0) {
    PyErr_Clear();
    return false;
  }
  return view.data != nullptr && view.rank > 0 &&
         (view.strides == nullptr || view.strides[view.rank - 1] == 1);
}

bool requires_grad(nb::handle tensor) {
  return find(tensor, names().requires_grad).ptr() == Py_True;
}

Array writable_view(std::string_view name, nb::handle object) {
  Array array = view(name, object);
  if (array.source == Source::dlpack && !nb::cast<bool>(arrays().attr("is_writable")(object))) {
    array.read_only = true;
  }
  if (array.read_only) {
    refuse(std::string(name) + " is a read-only " + class_of(object) +
           "; accepted are arrays that can be written");
  }
  return array;
}

Array allocate(const Array& like, ResultType type, const std::vector<std::int64_t>& shape,
               const Tensor* order) {
  switch (like.source) {
    case Source::exchange:
      return exchange_allocate(like, type, shape, order);
    case Source::numpy:
      return numpy_allocate(like, type, shape);
    case Source::dlpack:
      return view("result", arrays().attr("empty")(like.object, as_tuple(shape),
                                                   type == ResultType::float32));
  }
  throw Error(ErrorCode::internal, "an array of unknown source");
}

void note_written(const Array& array) {
  if (!array.is_pytorch) return;  // PyTorch may not be there
  static constinit KeptAttribute increment("torch.autograd.graph", "increment_version");
  increment.get()(array.object);
}

nb::object finished(const Array& like, const Array& made) {
  if (like.source != Source::dlpack) return made.object;
  return arrays().attr("finish")(like.object, made.object);
}

void* current_stream(const Array& array) {
  const Device device = array.tensor.device;
  if (device.type == DeviceType::cpu) return nullptr;
  void* stream = nullptr;
  if (array.api != nullptr) {
    if (array.api->current_stream(dlpack::kCuda, device.index, &stream) != 0) {
      throw nb::python_error();
    }
    return stream;
  }
  return reinterpret_cast<void*>(nb::cast<std::uintptr_t>(arrays().attr("stream")(array.object)));
}

}  // namespace attn::python
