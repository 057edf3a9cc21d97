// Elements of any dtype one at a time, in tensors of any alignment.
#pragma once

#include "ptx/math.cuh"

namespace attn::device {

template <class Element>
struct Scalar;

template <>
struct Scalar<Float32> {
  using Storage = float;
  static __device__ __forceinline__ float from(float stored) { return stored; }
  static __device__ __forceinline__ float to(float value) { return value; }
};
template <>
struct Scalar<BFloat16> {
  using Storage = unsigned short;
  static __device__ __forceinline__ float from(unsigned short stored) {
    return __uint_as_float(static_cast<unsigned>(stored) << 16);
  }
  static __device__ __forceinline__ unsigned short to(float value) {
    return static_cast<unsigned short>(BFloat16::pack(value, 0));
  }
};
template <>
struct Scalar<Float16> {
  using Storage = unsigned short;
  static __device__ __forceinline__ float from(unsigned short stored) {
    return float_of_half(stored);
  }
  static __device__ __forceinline__ unsigned short to(float value) {
    return static_cast<unsigned short>(Float16::pack(value, 0));
  }
};

// The address of an element.
template <class Element>
__device__ __forceinline__ const typename Scalar<Element>::Storage* element(const void* data,
                                                                            long long index) {
  return static_cast<const typename Scalar<Element>::Storage*>(data) + index;
}
template <class Element>
__device__ __forceinline__ typename Scalar<Element>::Storage* element(void* data, long long index) {
  return static_cast<typename Scalar<Element>::Storage*>(data) + index;
}

}  // namespace attn::device
