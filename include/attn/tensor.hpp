// Element types, devices and non-owning strided tensors.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <type_traits>

#include "attn/export.hpp"

namespace ATTN_API attn {

enum class DType : std::uint8_t { f64, f32, bf16, f16, i64, i32, u8 };

// Bytes of one element; 0 for other values than the enumerators.
constexpr std::size_t size_of(DType dtype) noexcept {
  switch (dtype) {
    case DType::f64:
    case DType::i64:
      return 8;
    case DType::f32:
    case DType::i32:
      return 4;
    case DType::bf16:
    case DType::f16:
      return 2;
    case DType::u8:
      return 1;
  }
  return 0;
}
std::string_view name(DType dtype) noexcept;  // "f32", "bf16", ...; "unknown" for other values
DType parse_dtype(std::string_view text);     // inverse of name(); throws Error(invalid_argument)
bool is_floating(DType dtype) noexcept;       // f64, f32, bf16 or f16

// Storage of the two 16-bit formats: bfloat16 is the upper half of a float, float16 is binary16 of
// IEEE 754. Conversion from float rounds to nearest, ties to even, past the largest number to
// infinity; NaN stays NaN. Conversion to float is exact.
struct bfloat16 {
  std::uint16_t bits = 0;
  bfloat16() = default;
  explicit bfloat16(float value) noexcept;
  explicit operator float() const noexcept;
};
struct float16 {
  std::uint16_t bits = 0;
  float16() = default;
  explicit float16(float value) noexcept;
  explicit operator float() const noexcept;
};

enum class DeviceType : std::uint8_t { cpu, cuda };

// Where memory lies.
struct Device {
  DeviceType type = DeviceType::cpu;
  std::int32_t index = 0;  // of a GPU, as the driver counts them; of the CPU 0
  bool operator==(const Device&) const = default;
};
std::string to_string(Device device);  // "cpu", "cuda:0"

inline constexpr int kMaxRank = 4;

// A view of caller-owned memory, shaped as a DLPack DLTensor: element (i0, ..., ir) lies at
// data + size_of(dtype) * sum(ik * strides[k]). Strides count elements and may be zero (broadcast)
// for tensors that are only read, and for the scale of attn::quantize. Rank 0: "not given", or with
// data a scalar (attn/scalar.hpp). Tensors named as inputs in this API are never written.
struct Tensor {
  void* data = nullptr;
  DType dtype = DType::f32;
  Device device{};
  std::int32_t rank = 0;
  std::array<std::int64_t, kMaxRank> shape{};
  std::array<std::int64_t, kMaxRank> strides{};

  bool given() const noexcept { return rank != 0; }
  std::int64_t size() const noexcept;  // number of elements; 1 for rank 0
  bool contiguous() const noexcept;    // row-major without gaps
  // How many elements behind `data` an element lies: one index a dimension, unchecked.
  std::int64_t offset(std::initializer_list<std::int64_t> index) const noexcept;
};

// Row-major views of rank 0 to 4. The const overload serves inputs. Throws Error(invalid_argument)
// for more dimensions, negative sizes and sizes whose product passes 63 bits.
Tensor tensor(void* data, DType dtype, std::initializer_list<std::int64_t> shape,
              Device device = {});
Tensor tensor(const void* data, DType dtype, std::initializer_list<std::int64_t> shape,
              Device device = {});

// The same memory with the last two dimensions in each other's place: B [k, n] of a matrix product
// from weights [n, k]. Throws Error(invalid_argument) for less than two dimensions.
Tensor transposed(const Tensor& t);

// The DType of a C++ type: dtype_of<float> is DType::f32.
template <class T>
inline constexpr DType dtype_of = [] {
  static_assert(sizeof(T) == 0, "attn has no dtype for this C++ type");
  return DType::f32;
}();
template <>
inline constexpr DType dtype_of<double> = DType::f64;
template <>
inline constexpr DType dtype_of<float> = DType::f32;
template <>
inline constexpr DType dtype_of<bfloat16> = DType::bf16;
template <>
inline constexpr DType dtype_of<float16> = DType::f16;
template <>
inline constexpr DType dtype_of<std::int64_t> = DType::i64;
template <>
inline constexpr DType dtype_of<std::int32_t> = DType::i32;
template <>
inline constexpr DType dtype_of<std::uint8_t> = DType::u8;

// A view of memory of the CPU, with the DType of T: tensor(x.data(), {1, 512, 4, 64}).
template <class T>
Tensor tensor(T* data, std::initializer_list<std::int64_t> shape) {
  return tensor(data, dtype_of<std::remove_cv_t<T>>, shape);
}

// "f32[2, 8, 4, 64] strides (2048, 256, 64, 1) on cpu"; "no tensor" of rank 0.
std::string to_string(const Tensor& tensor);

}  // namespace attn
