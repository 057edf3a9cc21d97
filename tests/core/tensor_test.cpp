#include "attn/tensor.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "attn/error.hpp"
#include "attn/plan.hpp"

namespace attn {
namespace {

// A 16-bit format as IEEE 754 defines it, apart from the code under test.
struct Format {
  int exponent_bits;
  int mantissa_bits;
  int bias() const { return (1 << (exponent_bits - 1)) - 1; }
  std::uint32_t infinity() const { return ((1u << exponent_bits) - 1) << mantissa_bits; }
  bool is_nan(std::uint32_t code) const { return (code & 0x7fffu) > infinity(); }

  // Of a code that is no NaN; infinity reads as the value that would follow the largest finite one.
  double value(std::uint32_t code) const {
    const std::uint32_t magnitude = code & 0x7fffu;
    const int exponent = static_cast<int>(magnitude >> mantissa_bits);
    const int mantissa = static_cast<int>(magnitude & ((1u << mantissa_bits) - 1));
    const double v = exponent == 0 ? std::ldexp(mantissa, 1 - bias() - mantissa_bits)
                                   : std::ldexp(mantissa + (1 << mantissa_bits),
                                                exponent - bias() - mantissa_bits);
    return (code & 0x8000u) != 0 ? -v : v;
  }

  // The code nearest to x, ties to the even one. Differences of a float and its neighbours are
  // exact in double.
  std::uint32_t nearest(float x) const {
    const double magnitude = std::abs(static_cast<double>(x));
    std::uint32_t low = 0, high = infinity();
    if (magnitude >= value(high)) low = high;
    while (high - low > 1) {  // value(low) <= magnitude < value(high)
      const std::uint32_t middle = (low + high) / 2;
      (value(middle) <= magnitude ? low : high) = middle;
    }
    const double below = magnitude - value(low), above = value(high) - magnitude;
    const bool up = below > above || (below == above && low % 2 == 1);
    return (up ? high : low) | (std::signbit(x) ? 0x8000u : 0u);
  }
};
constexpr Format kBfloat16{8, 7}, kFloat16{5, 10};

template <class T>
void check_rounding(const Format& format, float x) {
  const std::uint32_t got = T(x).bits;
  if (std::isnan(x)) {
    ASSERT_TRUE(format.is_nan(got)) << std::hexfloat << x;
  } else {
    ASSERT_EQ(got, format.nearest(x)) << std::hexfloat << x;
  }
}

template <class T>
void check_format(const Format& format) {
  for (std::uint32_t code = 0; code < 0x10000u; ++code) {
    T t;
    t.bits = static_cast<std::uint16_t>(code);
    const auto value = static_cast<float>(t);
    if (format.is_nan(code)) {
      ASSERT_TRUE(std::isnan(value)) << code;
      ASSERT_TRUE(format.is_nan(T(value).bits)) << code;
      continue;
    }
    if ((code & 0x7fffu) == format.infinity()) {
      ASSERT_TRUE(std::isinf(value)) << code;
      ASSERT_EQ(std::signbit(value), code >= 0x8000u);
    } else {
      ASSERT_EQ(value, static_cast<float>(format.value(code))) << code;
      ASSERT_EQ(std::signbit(value), code >= 0x8000u);
      // Half way to the next code, and the floats around it.
      const auto half = static_cast<float>((format.value(code) + format.value(code + 1)) / 2);
      check_rounding<T>(format, half);
      check_rounding<T>(format, std::nextafter(half, 0.0f));
      check_rounding<T>(format, std::nextafter(half, 2 * half));
    }
    ASSERT_EQ(T(value).bits, code);
  }
}

template <class T>
void check_random(const Format& format) {
  const std::uint32_t seed = 2;
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  for (int n = 0; n < 300000; ++n) {
    check_rounding<T>(format, std::bit_cast<float>(static_cast<std::uint32_t>(random())));
    // Magnitudes around the range of float16, subnormals included.
    const float x = std::ldexp(static_cast<float>(random() % 16777216u) / 16777216.0f,
                               static_cast<int>(random() % 48) - 28);
    check_rounding<T>(format, n % 2 == 0 ? x : -x);
    if (testing::Test::HasFatalFailure()) return;
  }
  for (const float x : {0.0f, -0.0f, std::numeric_limits<float>::infinity(),
                        -std::numeric_limits<float>::infinity(), std::numeric_limits<float>::max(),
                        std::numeric_limits<float>::lowest(), std::numeric_limits<float>::min(),
                        std::numeric_limits<float>::denorm_min(),
                        std::numeric_limits<float>::quiet_NaN(), -std::nanf("1"), 65504.0f,
                        65519.0f, 65520.0f, 65536.0f, std::bit_cast<float>(0x7f800001u)}) {
    check_rounding<T>(format, x);
  }
}

TEST(Bfloat16, AllCodes) { check_format<bfloat16>(kBfloat16); }
TEST(Bfloat16, RandomFloats) { check_random<bfloat16>(kBfloat16); }
TEST(Float16, AllCodes) { check_format<float16>(kFloat16); }
TEST(Float16, RandomFloats) { check_random<float16>(kFloat16); }

TEST(DTypes, NamesAndSizes) {
  const std::vector<std::pair<DType, std::size_t>> sizes = {
      {DType::f64, 8}, {DType::f32, 4}, {DType::bf16, 2}, {DType::f16, 2},
      {DType::i64, 8}, {DType::i32, 4}, {DType::u8, 1}};
  for (const auto& [dtype, size] : sizes) {
    EXPECT_EQ(size_of(dtype), size);
    EXPECT_EQ(parse_dtype(name(dtype)), dtype);
    EXPECT_EQ(is_floating(dtype), name(dtype).find('f') != std::string_view::npos);
  }
  try {
    parse_dtype("fp32");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    EXPECT_STREQ(error.what(), "dtype is 'fp32'; accepted are f64, f32, bf16, f16, i64, i32, u8");
  }
}

TEST(Names, ParseWhatTheyPrint) {
  for (const Backend b : {Backend::automatic, Backend::reference, Backend::cpu}) {
    EXPECT_EQ(parse_backend(name(b)), b);
  }
  for (const Algorithm a : {Algorithm::automatic, Algorithm::standard, Algorithm::flash_attention,
                            Algorithm::flash_attention_2, Algorithm::flash_decoding,
                            Algorithm::memory_efficient, Algorithm::block_sparse}) {
    EXPECT_EQ(parse_algorithm(name(a)), a);
  }
  for (const InstructionSet isa :
       {InstructionSet::automatic, InstructionSet::portable, InstructionSet::avx2,
        InstructionSet::avx512, InstructionSet::avx512_bf16, InstructionSet::amx_bf16,
        InstructionSet::neon, InstructionSet::neon_bf16}) {
    EXPECT_EQ(parse_instruction_set(name(isa)), isa);
  }
  EXPECT_EQ(name(Phase::forward), "forward");
  EXPECT_EQ(name(Phase::backward), "backward");
  EXPECT_THROW(parse_backend("gpu"), Error);
  EXPECT_THROW(parse_algorithm(""), Error);
  EXPECT_THROW(parse_instruction_set("AVX2"), Error);
}

TEST(Tensor, RowMajorView) {
  std::vector<float> data(2 * 3 * 4);
  const Tensor t = tensor(data.data(), {2, 3, 4});
  EXPECT_TRUE(t.given());
  EXPECT_EQ(t.dtype, DType::f32);
  EXPECT_EQ(t.rank, 3);
  EXPECT_EQ(t.size(), 24);
  EXPECT_TRUE(t.contiguous());
  EXPECT_EQ(t.offset({1, 2, 3}), 23);
  EXPECT_EQ(t.offset({0, 0, 0}), 0);
  EXPECT_EQ(to_string(t), "f32[2, 3, 4] strides (12, 4, 1) on cpu");
  const std::vector<bfloat16> half(3);
  EXPECT_EQ(tensor(half.data(), {3}).dtype, DType::bf16);
}

TEST(Tensor, NotGiven) {
  EXPECT_FALSE(Tensor{}.given());
  EXPECT_EQ(Tensor{}.size(), 1);
  EXPECT_EQ(to_string(Tensor{}), "no tensor");
}

TEST(Tensor, Contiguity) {
  float x[64] = {};
  Tensor t = tensor(x, {2, 3, 4});
  t.strides = {16, 4, 1};
  EXPECT_FALSE(t.contiguous());
  t.shape[0] = 1;  // the stride of a single element does not matter
  EXPECT_TRUE(t.contiguous());
  t.strides = {16, 5, 1};
  EXPECT_FALSE(t.contiguous());
  t.shape[2] = 0;  // without elements there are no gaps
  EXPECT_TRUE(t.contiguous());
}

TEST(Tensor, EmptyDimensionsKeepTheirStrides) {
  const Tensor t = tensor(static_cast<void*>(nullptr), DType::f16, {2, 0, 4});
  EXPECT_EQ(t.size(), 0);
  EXPECT_EQ(t.strides[0], 4);
  EXPECT_EQ(to_string(t), "f16[2, 0, 4] strides (4, 4, 1) on cpu");
}

TEST(Tensor, RefusesImpossibleShapes) {
  float x = 0;
  EXPECT_EQ(tensor(&x, {}).size(), 1);  // a scalar
  EXPECT_THROW(tensor(&x, {1, 1, 1, 1, 1}), Error);
  EXPECT_THROW(tensor(&x, {2, -1}), Error);
  EXPECT_THROW(tensor(&x, {std::int64_t{1} << 32, std::int64_t{1} << 31}), Error);
}

TEST(Tensor, TransposedIsTheSameMemory) {
  float x[24];
  const Tensor t = tensor(x, {2, 3, 4});
  const Tensor y = transposed(t);
  EXPECT_EQ(y.data, t.data);
  EXPECT_EQ(to_string(y), to_string(transposed(transposed(y))));
  EXPECT_EQ(y.offset({1, 2, 0}), t.offset({1, 0, 2}));
  EXPECT_EQ(y.shape[1], 4);
  EXPECT_EQ(y.shape[2], 3);
  EXPECT_THROW(transposed(tensor(x, {24})), Error);
}

}  // namespace
}  // namespace attn
