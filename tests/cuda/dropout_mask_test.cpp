// The dropout mask as device code computes it, compiled for the host, against the definition.
#define __device__
#define __forceinline__ inline
#include "softmax/dropout.cuh"
#undef __device__
#undef __forceinline__

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <type_traits>

#include "core/philox.hpp"
#include "cuda/problem_parameters.hpp"

namespace attn {
namespace {

constexpr int kKeys = 64;

struct Case {
  std::uint64_t seed, offset;
  double probability;
  std::uint32_t batch_head, query;
  int first_key;
};

constexpr std::array kCases{
    Case{0, 0, 0.5, 0, 0, 0},
    Case{99, 0, 0.3, 7, 69, 320},
    Case{0x123456789abcdefULL, 0xfedcba9876543210ULL, 0.9, 4095, 1u << 20, 192},
    Case{7, 4294967301ULL, 1.0 / 32768, 0xffffffffu, 0x7fffffffu, 0x7fffff40},
    Case{1, 2, 0.99999, 3, 5, 1 << 30},
    Case{3, 4, 31.0 / 32, 1, 1000, 64},  // the largest that is compared itself
    Case{5, 6, 0.97, 2, 2000, 128},
    Case{8, 9, 0.999, 6, 3000, 0},
};

// What device code is given of a case.
template <class RngState>
struct Mask {
  explicit Mask(const Case& c)
      : state{static_cast<long long>(c.seed), static_cast<long long>(c.offset)} {
    cuda::fill_dropout(parameters, {c.probability, c.seed, c.offset, RngState::value},
                       tensor(state, DType::i64, {2}));
  }
  Mask(const Mask&) = delete;
  Mask& operator=(const Mask&) = delete;

  auto dropout() const { return device::dropout_of<RngState::value>(parameters); }

  long long state[2];
  device::ProblemParams parameters{};
};

template <class RngState>
class DropoutMask : public ::testing::Test {};
using RngStates = ::testing::Types<std::false_type, std::true_type>;
TYPED_TEST_SUITE(DropoutMask, RngStates);

bool keep(const Case& c, int key) {
  return core::dropout_keep(c.seed, c.offset, core::dropout_threshold(c.probability), c.batch_head,
                            c.query, static_cast<std::uint32_t>(c.first_key + key));
}

// Two floats of a pair, as the kernel without tensor cores has them. Of so many queries some
// numbers have the upper byte, one of 128, of what they are compared with, and the lower one
// decides.
TYPED_TEST(DropoutMask, Floats) {
  for (int i = 0; i < 100 * static_cast<int>(kCases.size()); ++i) {
    Case c = kCases[static_cast<std::size_t>(i) % kCases.size()];
    c.query -= static_cast<std::uint32_t>(i);
    const Mask<TypeParam> mask(c);
    const auto dropout = mask.dropout();
    const device::DropoutRow row(dropout, c.batch_head, c.query);
    for (int key = 0; key < kKeys; key += 2) {
      const device::DropoutColumns columns(dropout, (c.first_key + key) / 64, key % 8 / 2);
      float even = 1, odd = 2;
      row.apply(even, odd, row.call(columns).pair(key / 8 % 8));
      EXPECT_EQ(even, keep(c, key) ? 1.f : 0.f) << "query " << c.query << " key " << key;
      EXPECT_EQ(odd, keep(c, key + 1) ? 2.f : 0.f) << "query " << c.query << " key " << key + 1;
    }
  }
}

// The patterns of a type of 16 bits tell device code which it is.
struct BFloat16 {
  static constexpr unsigned kExponent = 0x7f80;
};
struct Float16 {
  static constexpr unsigned kExponent = 0x7c00;
};

// Register 2 j + i holds two neighbouring keys of row i, the even one in the low half.
template <bool kByProduct, class Element, int kTile, bool kRngState>
void expect_operand(Case c, const device::Dropout<kRngState>& dropout) {
  constexpr unsigned kBoth = 0x3c013c02u;
  // As bf16 what a product keeps has an exponent that is less by 7.
  constexpr unsigned kKept =
      kByProduct && device::factor_after_product<Element>() == 128 ? kBoth - 0x03800380u : kBoth;
  Case below = c;  // the other row of the thread, of another head
  below.query += 8;
  below.batch_head ^= 1;
  const device::DropoutRow<kRngState> rows[2] = {{dropout, c.batch_head, c.query},
                                                 {dropout, below.batch_head, below.query}};
  for (int pair = 0; pair < 4; ++pair) {
    unsigned p[kTile / 4];
    for (unsigned& x : p) x = kBoth;
    device::drop<kByProduct, Element>(p, rows, c.first_key, pair);
    for (int r = 0; r < kTile / 4; ++r) {
      const Case& row = r % 2 == 0 ? c : below;
      const int key = r / 2 * 8 + 2 * pair;
      unsigned expected = kKept;
      if (!keep(row, key)) expected &= 0xffff0000u;
      if (!keep(row, key + 1)) expected &= 0xffffu;
      EXPECT_EQ(p[r], expected) << "query " << row.query << " key " << row.first_key + key;
    }
  }
}

template <bool kByProduct, class Element, bool kRngState>
void expect_operands(Case c, const device::Dropout<kRngState>& dropout) {
  expect_operand<kByProduct, Element, kKeys>(c, dropout);
  expect_operand<kByProduct, Element, kKeys / 2>(c, dropout);  // half of what a call gives
  c.first_key += kKeys / 2;
  expect_operand<kByProduct, Element, kKeys / 2>(c, dropout);
  expect_operand<kByProduct, Element, 3 * kKeys / 2>(c, dropout);
}

// Of so many queries some numbers are just what they are compared with, one of 32768.
TYPED_TEST(DropoutMask, OperandOfHalves) {
  for (int i = 0; i < 100 * static_cast<int>(kCases.size()); ++i) {
    Case c = kCases[static_cast<std::size_t>(i) % kCases.size()];
    c.query -= static_cast<std::uint32_t>(i);
    const Mask<TypeParam> mask(c);
    const auto dropout = mask.dropout();
    expect_operands<false, BFloat16>(c, dropout);
    if (dropout.rule.flip != 0) continue;  // which a product does not take
    expect_operands<true, BFloat16>(c, dropout);
    expect_operands<true, Float16>(c, dropout);
  }
}

}  // namespace
}  // namespace attn
