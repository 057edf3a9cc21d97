// Tensors that expressions read. The host fills the views: src/cuda/jit/expression_pack.cpp mirrors
// the layout.
#pragma once

namespace attn::device {

struct BufferView {
  const void* data;      // null when the tensor has no element
  unsigned last[4];      // largest index; all ones where the size is 1, which accepts any index
  long long strides[4];  // elements; 0 where the size is 1
};

// Elements: their storage and how it becomes a float or an int. Loads go through the read-only
// cache.
#ifdef __CUDACC__
template <class T>
__device__ __forceinline__ T read_only(const T* address) {
  return __ldg(address);
}
__device__ __forceinline__ float half_to_float(unsigned short bits) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
  return value;
}
#else
template <class T>
inline T read_only(const T* address) {
  return *address;
}
inline float half_to_float(unsigned short bits) {
  const unsigned sign = (bits & 0x8000u) << 16;
  const unsigned rest = bits & 0x7fffu;
  if (rest >= 0x7c00u) return __builtin_bit_cast(float, sign | 0x7f800000u | (rest & 0x3ffu) << 13);
  // As an integer the 15 bits are the float scaled by 2^-112, subnormal numbers included.
  const float magnitude = __builtin_bit_cast(float, rest << 13) * 0x1p112f;
  return sign != 0 ? -magnitude : magnitude;
}
#endif

struct ElementF32 {
  using Storage = float;
  using Value = float;
  static __device__ __forceinline__ float value(float stored) { return stored; }
};
struct ElementBF16 {
  using Storage = unsigned short;
  using Value = float;
  static __device__ __forceinline__ float value(unsigned short stored) {
    return __builtin_bit_cast(float, static_cast<unsigned>(stored) << 16);
  }
};
struct ElementF16 {
  using Storage = unsigned short;
  using Value = float;
  static __device__ __forceinline__ float value(unsigned short stored) {
    return half_to_float(stored);
  }
};
struct ElementI32 {
  using Storage = int;
  using Value = int;
  static __device__ __forceinline__ int value(int stored) { return stored; }
};
struct ElementU8 {
  using Storage = unsigned char;
  using Value = int;
  static __device__ __forceinline__ int value(unsigned char stored) { return stored; }
};

// The element at an index, 0 outside: one unsigned comparison a dimension. kUnit: the last
// dimension is contiguous, so that indices a constant apart share an address. For loads that differ
// for every score.
template <class Element, bool kUnit, class... Index>
__device__ __forceinline__ typename Element::Value load_element(const BufferView& view,
                                                                Index... index) {
  constexpr int kRank = sizeof...(Index);
  const int indices[kRank] = {index...};
  bool inside = view.data != nullptr;
  long long offset = 0;
#pragma unroll
  for (int d = 0; d < kRank; ++d) {
    inside = inside & (static_cast<unsigned>(indices[d]) <= view.last[d]);
    offset += kUnit && d == kRank - 1 ? indices[d] : indices[d] * view.strides[d];
  }
  if (!inside) return 0;
  return Element::value(
      read_only(static_cast<const typename Element::Storage*>(view.data) + offset));
}

// What a load from a tensor without elements reads instead.
static __device__ const float kNoElement = 0;

// The same for loads that many scores share (of a row, a key, a head): it always reads, if need be
// the nearest element, and by an ordinary load, which the compiler does once and early. (__ldg it
// repeats, and a load behind a condition too.)
template <class Element, bool kUnit, class... Index>
__device__ __forceinline__ typename Element::Value load_shared_element(const BufferView& view,
                                                                       Index... index) {
  constexpr int kRank = sizeof...(Index);
  const int indices[kRank] = {index...};
  bool inside = view.data != nullptr;
  long long offset = 0;
#pragma unroll
  for (int d = 0; d < kRank; ++d) {
    const auto i = static_cast<unsigned>(indices[d]);
    const unsigned last = view.last[d];
    inside = inside & (i <= last);
    const long long nearest = i < last ? i : last;
    // Where any index is good the stride is 0.
    offset += kUnit && d == kRank - 1 ? nearest : nearest * view.strides[d];
  }
  const void* data = view.data != nullptr ? view.data : &kNoElement;
  const auto value = Element::value(static_cast<const typename Element::Storage*>(data)[offset]);
  return inside ? value : 0;
}

}  // namespace attn::device
