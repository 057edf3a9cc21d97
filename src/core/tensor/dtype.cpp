// Names of dtypes, and conversions between float and the two 16-bit formats.
#include <bit>
#include <cstdint>

#include "attn/tensor.hpp"
#include "core/tensor/widen.hpp"
#include "core/text/enum_names.hpp"

namespace attn {
namespace {

constexpr core::EnumName<DType> kDTypes[] = {
    {DType::f64, "f64"}, {DType::f32, "f32"}, {DType::bf16, "bf16"}, {DType::f16, "f16"},
    {DType::i64, "i64"}, {DType::i32, "i32"}, {DType::u8, "u8"},
};

constexpr std::uint32_t kSign = 0x80000000u;
constexpr std::uint32_t kInfinity = 0x7f800000u;  // f32; larger magnitudes are NaN

// bits / 2^shift, rounded to nearest, ties to even. 1 <= shift <= 31.
constexpr std::uint32_t round_shift(std::uint32_t bits, int shift) {
  const std::uint32_t half = 1u << (shift - 1);
  const std::uint32_t odd = (bits >> shift) & 1u;
  return (bits + (half - 1u) + odd) >> shift;
}

}  // namespace

std::string_view name(DType dtype) noexcept { return core::name_of(kDTypes, dtype); }

DType parse_dtype(std::string_view text) { return core::parse_name(kDTypes, "dtype", text); }

bool is_floating(DType dtype) noexcept {
  return dtype == DType::f64 || dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16;
}

bfloat16::bfloat16(float value) noexcept {
  const auto u = std::bit_cast<std::uint32_t>(value);
  const bool nan = (u & ~kSign) > kInfinity;
  // A carry out of the mantissa runs into the exponent, which is right up to infinity. NaN keeps
  // its upper payload and is made quiet, so that it cannot become infinity.
  bits = static_cast<std::uint16_t>(nan ? (u >> 16) | 0x40u : round_shift(u, 16));
}

bfloat16::operator float() const noexcept { return core::widen(*this); }

float16::float16(float value) noexcept {
  const auto u = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t magnitude = u & ~kSign;
  std::uint32_t half = 0;
  if (magnitude > kInfinity) {
    half = 0x7e00u | ((magnitude >> 13) & 0x3ffu);  // quiet, upper payload kept
  } else if (magnitude >= 0x47800000u) {            // 2^16 and above
    half = 0x7c00u;
  } else if (magnitude >=
             0x38800000u) {  // 2^-14 and above: normal; 65520 and above carries into infinity
    half = round_shift(magnitude - (112u << 23), 13);  // exponent bias 127 -> 15
  } else if (magnitude >= 0x33000000u) {  // 2^-25 and above: subnormal, in units of 2^-24
    const std::uint32_t mantissa = (magnitude & 0x7fffffu) | 0x800000u;
    const int exponent =
        static_cast<int>(magnitude >> 23);         // value = mantissa * 2^(exponent - 150)
    half = round_shift(mantissa, 126 - exponent);  // shift 14 to 24
  }
  bits = static_cast<std::uint16_t>((u & kSign) >> 16 | half);
}

float16::operator float() const noexcept { return core::widen(*this); }

}  // namespace attn
