// Elements of any dtype one at a time, in tensors of any alignment.
#pragma once

#include "device.cuh"
#include "ptx/math.cuh"

namespace attn::device {

template <class Element>
struct Scalar;

template <>
struct Scalar<Float32> {
  using Storage = float;
  static ATTN_DEVICE float from(float stored) { return stored; }
  static ATTN_DEVICE float to(float value) { return value; }
};
template <>
struct Scalar<BFloat16> {
  using Storage = unsigned short;
  static ATTN_DEVICE float from(unsigned short stored) {
    return __uint_as_float(static_cast<unsigned>(stored) << 16);
  }
  static ATTN_DEVICE unsigned short to(float value) {
    return static_cast<unsigned short>(BFloat16::pack(value, 0));
  }
};
template <>
struct Scalar<Float16> {
  using Storage = unsigned short;
  static ATTN_DEVICE float from(unsigned short stored) { return float_of_half(stored); }
  static ATTN_DEVICE unsigned short to(float value) {
    return static_cast<unsigned short>(Float16::pack(value, 0));
  }
};

// 8-bit floats are read only. Their bits are those of a half, but for the bias of e4m3's exponent.
// kOnes: four times 1.
template <>
struct Scalar<Float8E4M3> {
  using Storage = unsigned char;
  static constexpr unsigned kOnes = 0x38383838;
  static ATTN_DEVICE float from(unsigned char stored) {
    const unsigned half = (stored & 0x80u) << 8 | (stored & 0x7fu) << 7;
    if ((stored & 0x7fu) == 0x7fu) return __uint_as_float(0x7fc00000u);
    return 256.f * float_of_half(static_cast<unsigned short>(half));
  }
};
template <>
struct Scalar<Float8E5M2> {
  using Storage = unsigned char;
  static constexpr unsigned kOnes = 0x3c3c3c3c;
  static ATTN_DEVICE float from(unsigned char stored) {
    return float_of_half(static_cast<unsigned short>(static_cast<unsigned>(stored) << 8));
  }
};

template <class Element>
constexpr int kBytesOf = static_cast<int>(sizeof(typename Scalar<Element>::Storage));

// The elements of Q, and what the products Q K^T and P V are of.
template <class C, bool kFloat8 = C::kFloat8>
struct OperandsOf {
  using Query = typename C::Element;
  using Scores = typename C::Element;
  using Values = typename C::Element;
};
template <class C>
struct OperandsOf<C, true> {
  using Query = typename C::OperandQ;
  using Scores = Float8Pair<typename C::OperandQ, typename C::OperandK>;
  using Values = Float8Pair<Float8E4M3, typename C::OperandV>;
};

// The address of an element.
template <class Element>
ATTN_DEVICE const typename Scalar<Element>::Storage* element(const void* data, long long index) {
  return static_cast<const typename Scalar<Element>::Storage*>(data) + index;
}
template <class Element>
ATTN_DEVICE typename Scalar<Element>::Storage* element(void* data, long long index) {
  return static_cast<typename Scalar<Element>::Storage*>(data) + index;
}

}  // namespace attn::device
