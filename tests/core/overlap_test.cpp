#include "core/tensor/overlap.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

namespace attn::core {
namespace {

// Offsets of all elements from the tensor's first, in bytes.
std::vector<std::int64_t> element_offsets(const Tensor& t) {
  std::vector<std::int64_t> offsets;
  if (t.size() == 0) return offsets;
  std::vector<std::int64_t> index(static_cast<std::size_t>(t.rank), 0);
  for (;;) {
    std::int64_t offset = 0;
    for (std::size_t k = 0; k < index.size(); ++k) offset += index[k] * t.strides[k];
    offsets.push_back(offset * static_cast<std::int64_t>(size_of(t.dtype)));
    std::size_t k = index.size();
    while (k > 0 && ++index[k - 1] == t.shape[k - 1]) index[--k] = 0;
    if (k == 0) return offsets;
  }
}

// How often each byte of the arena is part of an element.
std::vector<int> coverage(const Tensor& t, const std::byte* arena, std::size_t bytes) {
  std::vector<int> count(bytes);
  for (const std::int64_t offset : element_offsets(t)) {
    const std::byte* first = static_cast<const std::byte*>(t.data) + offset;
    for (std::size_t b = 0; b < size_of(t.dtype); ++b)
      ++count.at(static_cast<std::size_t>(first + b - arena));
  }
  return count;
}

constexpr std::size_t kArena = 4096;

Tensor random_tensor(std::mt19937& random, std::byte* arena) {
  constexpr DType kTypes[] = {DType::u8, DType::f16, DType::f32};
  Tensor t{.dtype = kTypes[random() % 3]};
  t.rank = 1 + static_cast<std::int32_t>(random() % 4);
  const int widest = 1 + static_cast<int>(random() % 12);
  for (std::int32_t k = 0; k < t.rank; ++k) {
    t.shape[k] = static_cast<std::int64_t>(random() % 12 == 0 ? 0 : 1 + random() % 4);
    t.strides[k] =
        static_cast<std::int64_t>(random() % static_cast<unsigned>(2 * widest + 1)) - widest;
  }
  t.data = arena + kArena / 2 + static_cast<std::ptrdiff_t>(random() % 64);
  return t;
}

TEST(Overlap, AgreesWithEnumeration) {
  const std::uint32_t seed = 1;
  std::mt19937 random(seed);
  std::vector<std::byte> arena(kArena);
  int shared = 0, disjoint = 0;
  for (int n = 0; n < 20000; ++n) {
    const Tensor a = random_tensor(random, arena.data()), b = random_tensor(random, arena.data());
    const std::vector<int> count_a = coverage(a, arena.data(), kArena);
    const std::vector<int> count_b = coverage(b, arena.data(), kArena);
    bool expected = false, expected_self = false;
    for (std::size_t i = 0; i < kArena; ++i) {
      expected |= count_a[i] > 0 && count_b[i] > 0;
      expected_self |= count_a[i] > 1;
    }
    ++(expected ? shared : disjoint);
    ASSERT_EQ(overlap(a, b), expected)
        << "seed " << seed << " " << to_string(a) << " and " << to_string(b);
    ASSERT_EQ(self_overlap(a), expected_self) << "seed " << seed << " " << to_string(a);
  }
  EXPECT_GT(shared, 1000);
  EXPECT_GT(disjoint, 1000);
}

// Q, K and V of one [batch, seqlen, 3, heads, head_dim] tensor of realistic size.
TEST(Overlap, InterleavedTensorsAreDisjoint) {
  std::byte base{};  // addresses only; never read
  Tensor q{.data = &base, .rank = 4, .shape = {16, 65536, 32, 128}, .strides = {}};
  q.strides = {65536LL * 3 * 32 * 128, 3 * 32 * 128, 128, 1};
  const auto shifted = [&](std::ptrdiff_t elements) {
    Tensor t = q;
    t.data = static_cast<float*>(q.data) + elements;
    return t;
  };
  EXPECT_FALSE(self_overlap(q));
  EXPECT_FALSE(overlap(q, shifted(32 * 128)));
  EXPECT_FALSE(overlap(q, shifted(2 * 32 * 128)));
  EXPECT_TRUE(overlap(q, shifted(3 * 32 * 128)));
  EXPECT_TRUE(overlap(q, shifted(32 * 128 - 1)));
  Tensor narrow = shifted(32 * 128);  // fewer heads, in the gap
  narrow.shape[2] = 8;
  EXPECT_FALSE(overlap(q, narrow));
  EXPECT_FALSE(overlap(narrow, q));
}

TEST(Overlap, StrideZero) {
  float x[8] = {};
  Tensor t = tensor(x, {2, 4});
  EXPECT_FALSE(self_overlap(t));
  t.strides[0] = 0;
  EXPECT_TRUE(self_overlap(t));
  t.shape[0] = 1;
  EXPECT_FALSE(self_overlap(t));
}

TEST(Overlap, NothingOverlapsWithoutElements) {
  float x[8] = {};
  EXPECT_FALSE(overlap(tensor(x, {8}), Tensor{}));
  EXPECT_FALSE(overlap(tensor(x, {0, 8}), tensor(x, {8})));
}

}  // namespace
}  // namespace attn::core
