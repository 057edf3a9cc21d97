// Tensors that expressions read. The host fills the views: src/cuda/codegen/expression_pack.cpp
// mirrors the layout.
#pragma once

#include "device.cuh"
#include "expr/integer.cuh"

namespace attn::device {

struct BufferView {
  const void* data;      // null when the tensor has no element; the rest is 0 then
  unsigned last[4];      // largest index; all ones where the size is 1, which accepts any index
  long long strides[4];  // bytes; 0 where the size is 1
};

// A number that came with the call; an int32 with what divides by it.
template <class T>
struct alignas(8) Scalar {
  T value;
};
template <>
struct alignas(8) Scalar<int> : Divisor {};

// Addresses may lie anywhere: what is outside is not read.
#ifdef __CUDACC__
template <class T>
ATTN_DEVICE const T* at_offset(const void* data, long long bytes) {
  return reinterpret_cast<const T*>(static_cast<const char*>(data) + bytes);
}
template <class T>
ATTN_DEVICE const T* at_index(const T* data, int index) {
  return data + index;
}
#else
template <class T>
inline const T* at_offset(const void* data, long long bytes) {
  return reinterpret_cast<const T*>(reinterpret_cast<unsigned long long>(data) +
                                    static_cast<unsigned long long>(bytes));
}
template <class T>
inline const T* at_index(const T* data, int index) {
  return at_offset<T>(data, index * static_cast<long long>(sizeof(T)));
}
#endif

// Elements: their storage and how it becomes a float or an int.
#ifdef __CUDACC__
// What lies at the address, 0 where it must not be read: one predicated load through the read-only
// cache. A condition around a load would become a branch for each score.
ATTN_DEVICE unsigned char read_if(bool inside, const unsigned char* address) {
  unsigned value;
  asm("{\n\t.reg .pred p;\n\tsetp.ne.u32 p, %2, 0;\n\tmov.u32 %0, 0;\n\t"
      "@p ld.global.nc.u8 %0, [%1];\n\t}"
      : "=r"(value)
      : "l"(address), "r"(static_cast<unsigned>(inside)));
  return static_cast<unsigned char>(value);
}
ATTN_DEVICE unsigned short read_if(bool inside, const unsigned short* address) {
  unsigned short value;
  asm("{\n\t.reg .pred p;\n\tsetp.ne.u32 p, %2, 0;\n\tmov.u16 %0, 0;\n\t"
      "@p ld.global.nc.u16 %0, [%1];\n\t}"
      : "=h"(value)
      : "l"(address), "r"(static_cast<unsigned>(inside)));
  return value;
}
ATTN_DEVICE int read_if(bool inside, const int* address) {
  int value;
  asm("{\n\t.reg .pred p;\n\tsetp.ne.u32 p, %2, 0;\n\tmov.u32 %0, 0;\n\t"
      "@p ld.global.nc.u32 %0, [%1];\n\t}"
      : "=r"(value)
      : "l"(address), "r"(static_cast<unsigned>(inside)));
  return value;
}
ATTN_DEVICE float read_if(bool inside, const float* address) {
  return __int_as_float(read_if(inside, reinterpret_cast<const int*>(address)));
}
ATTN_DEVICE float half_to_float(unsigned short bits) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
  return value;
}
#else
template <class T>
inline T read_if(bool inside, const T* address) {
  return inside ? *address : T();
}
inline float half_to_float(unsigned short bits) {
  const unsigned sign = (bits & 0x8000u) << 16;
  const unsigned rest = bits & 0x7fffu;
  if (rest >= 0x7c00u) return __builtin_bit_cast(float, sign | 0x7f800000u | (rest & 0x3ffu) << 13);
  // Read as the bits of a float, the 15 bits are the value times 2^-112, subnormal numbers
  // included.
  const float magnitude = __builtin_bit_cast(float, rest << 13) * 0x1p112f;
  return sign != 0 ? -magnitude : magnitude;
}
#endif

struct ElementF32 {
  using Storage = float;
  using Value = float;
  static ATTN_DEVICE float value(float stored) { return stored; }
};
struct ElementBF16 {
  using Storage = unsigned short;
  using Value = float;
  static ATTN_DEVICE float value(unsigned short stored) {
    return __builtin_bit_cast(float, static_cast<unsigned>(stored) << 16);
  }
};
struct ElementF16 {
  using Storage = unsigned short;
  using Value = float;
  static ATTN_DEVICE float value(unsigned short stored) { return half_to_float(stored); }
};
struct ElementI32 {
  using Storage = int;
  using Value = int;
  static ATTN_DEVICE int value(int stored) { return stored; }
};
struct ElementU8 {
  using Storage = unsigned char;
  using Value = int;
  static ATTN_DEVICE int value(unsigned char stored) { return stored; }
};

// The element at an index, 0 outside: one unsigned comparison a dimension. kUnit: the last
// dimension is contiguous, so that indices a constant apart share an address. For loads that differ
// for every score.
template <class Element, bool kUnit, class... Index>
ATTN_DEVICE typename Element::Value load_element(const BufferView& view, Index... index) {
  constexpr int kRank = sizeof...(Index);
  const int indices[kRank] = {index...};
  bool inside = view.data != nullptr;
  long long bytes = 0;
#pragma unroll
  for (int d = 0; d < kRank; ++d) {
    inside = inside & (static_cast<unsigned>(indices[d]) <= view.last[d]);
    if (!kUnit || d < kRank - 1) bytes += indices[d] * view.strides[d];
  }
  using Storage = typename Element::Storage;
  const Storage* element = at_offset<Storage>(view.data, bytes);
  // Added at the end, in one instruction: the rest is of the row.
  if (kUnit) element = at_index(element, indices[kRank - 1]);
  return Element::value(read_if(inside, element));
}

// What a shared load from a tensor without elements reads.
static __device__ const float kNoElement = 0;

// Loads an element that many scores share (that of a row, a key, a head). It always reads, if need
// be the nearest element, and by an ordinary load, which the compiler does once and early. (It
// repeats __ldg, and a load behind a condition too.)
template <class Element, bool kUnit, class... Index>
ATTN_DEVICE typename Element::Value load_shared_element(const BufferView& view, Index... index) {
  constexpr int kRank = sizeof...(Index);
  const int indices[kRank] = {index...};
  bool inside = view.data != nullptr;
  long long bytes = 0;
#pragma unroll
  for (int d = 0; d < kRank; ++d) {
    const auto i = static_cast<unsigned>(indices[d]);
    const unsigned last = view.last[d];
    inside = inside & (i <= last);
    const long long nearest = i < last ? i : last;
    // Where any index is good the stride is 0.
    constexpr long long kSize = sizeof(typename Element::Storage);
    bytes += nearest * (kUnit && d == kRank - 1 ? kSize : view.strides[d]);
  }
  const void* data = view.data != nullptr ? view.data : &kNoElement;
  const auto value = Element::value(*at_offset<typename Element::Storage>(data, bytes));
  return inside ? value : 0;
}

}  // namespace attn::device
