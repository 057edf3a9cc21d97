// The binary interface of DLPack 1.x (dmlc.github.io/dlpack), as far as attn speaks it: arrays of
// other libraries without their headers.
#pragma once

#include <cstdint>

namespace attn::python::dlpack {

enum DeviceType : std::int32_t { kCpu = 1, kCuda = 2, kCudaHost = 3, kCudaManaged = 13 };
enum TypeCode : std::uint8_t { kInt = 0, kUInt = 1, kFloat = 2, kBfloat = 4, kBool = 6 };

struct Device {
  std::int32_t type;
  std::int32_t index;
};

struct DataType {
  std::uint8_t code;
  std::uint8_t bits;
  std::uint16_t lanes;
};

struct DLTensor {
  void* data;
  Device device;
  std::int32_t rank;
  DataType dtype;
  std::int64_t* shape;
  std::int64_t* strides;  // in elements; null: row-major
  std::uint64_t byte_offset;
};

// What a capsule named "dltensor" holds.
struct ManagedTensor {
  DLTensor tensor;
  void* context;
  void (*deleter)(ManagedTensor*);
};

struct Version {
  std::uint32_t major;
  std::uint32_t minor;
};

inline constexpr std::uint64_t kReadOnly = 1;  // a bit of ManagedTensorVersioned::flags

// What a capsule named "dltensor_versioned" holds.
struct ManagedTensorVersioned {
  Version version;
  void* context;
  void (*deleter)(ManagedTensorVersioned*);
  std::uint64_t flags;
  DLTensor tensor;
};

struct ExchangeHeader {
  Version version;
  ExchangeHeader* previous;
};

// Functions of a type's `__dlpack_c_exchange_api__` (DLPack 1.3): no Python call, no capsule. They
// return 0, or -1 with a Python error set (allocate tells through set_error instead).
struct ExchangeApi {
  ExchangeHeader header;
  int (*allocate)(DLTensor* prototype, ManagedTensorVersioned** out, void* error_context,
                  void (*set_error)(void* error_context, const char* kind, const char* message));
  int (*managed_from_object)(void* object, ManagedTensorVersioned** out);
  int (*managed_to_object)(ManagedTensorVersioned* tensor, void** out_object);
  int (*view_of_object)(void* object, DLTensor* out);  // borrows; may be null
  int (*current_stream)(std::int32_t device_type, std::int32_t device_index, void** out);
};

}  // namespace attn::python::dlpack
