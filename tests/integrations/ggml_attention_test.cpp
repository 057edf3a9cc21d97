// The ggml backend's masks and formula, without ggml: what it reads off a mask, and its results
// beside a plain loop in double that adds the mask's numbers one by one, as ggml defines them.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <random>
#include <vector>

#include "attention.hpp"
#include "mask_rows.hpp"
#include "mask_sequences.hpp"

namespace {

using attn_ggml::Attention;
using attn_ggml::MaskRows;

constexpr float kHidden = -std::numeric_limits<float>::infinity();

// A mask of numbers by place, with rows that lie apart as in a view of a larger tensor.
struct Mask {
  std::int64_t batch, heads, rows, keys, pad = 0;
  std::vector<attn::float16> numbers{};

  Mask(std::array<std::int64_t, 4> shape, std::int64_t apart,
       const std::function<float(int, int, int, int)>& at)
      : batch(shape[0]), heads(shape[1]), rows(shape[2]), keys(shape[3]), pad(apart) {
    for (int b = 0; b < batch; ++b) {
      for (int h = 0; h < heads; ++h) {
        for (int i = 0; i < rows; ++i) {
          for (int j = 0; j < keys + pad; ++j) {
            numbers.emplace_back(j < keys ? at(b, h, i, j) : 7);
          }
        }
      }
    }
  }
  attn::Tensor tensor() const {
    attn::Tensor t = attn::tensor(numbers.data(), {batch, heads, rows, keys + pad});
    t.shape[3] = keys;
    return t;
  }
};

std::vector<std::int32_t> ints(std::initializer_list<std::int32_t> list) { return list; }

TEST(GgmlMask, CausalRowsAndPadding) {
  const Mask mask({1, 1, 3, 11}, 2,
                  [](int, int, int i, int j) { return j <= 4 + i ? 0.0F : kHidden; });
  const MaskRows rows = attn_ggml::read_mask(mask.tensor());
  EXPECT_EQ(rows.first, ints({0, 0, 0}));
  EXPECT_EQ(rows.end, ints({5, 6, 7}));
  EXPECT_EQ(rows.length, ints({7}));
  EXPECT_TRUE(rows.bounds_alone);
  EXPECT_TRUE(rows.causal);
  EXPECT_TRUE(rows.from_first_key);
  EXPECT_FALSE(rows.to_length);
}

TEST(GgmlMask, WindowsAndRowsThatSeeNothing) {
  const Mask mask({2, 1, 3, 9}, 0, [](int b, int, int i, int j) {
    if (b == 1 && i == 1) return kHidden;
    return j > i && j <= i + 3 + b ? -0.0F : kHidden;
  });
  const MaskRows rows = attn_ggml::read_mask(mask.tensor());
  EXPECT_EQ(rows.first, ints({1, 2, 3, 1, 0, 3}));
  EXPECT_EQ(rows.end, ints({4, 5, 6, 5, 0, 7}));
  EXPECT_EQ(rows.length, ints({6, 7}));
  EXPECT_TRUE(rows.bounds_alone);
  EXPECT_FALSE(rows.causal);
  EXPECT_FALSE(rows.from_first_key);
}

TEST(GgmlMask, NumbersAndHolesAreNoBounds) {
  for (const float number : {kHidden, 1.0F, -0.03125F, std::nanf("")}) {
    for (int hole = 1; hole < 18; ++hole) {
      const Mask mask({1, 1, 2, 19}, 0,
                      [&](int, int, int i, int j) { return i == 1 && j == hole ? number : 0; });
      const MaskRows rows = attn_ggml::read_mask(mask.tensor());
      EXPECT_FALSE(rows.bounds_alone) << number << " at " << hole;
      EXPECT_EQ(rows.end, ints({19, 19}));
    }
  }
}

TEST(GgmlMask, BoundsOfRandomRows) {
  std::mt19937 random(std::random_device{}());
  for (int trial = 0; trial < 300; ++trial) {
    const int keys = static_cast<int>(random() % 40) + 1;
    const Mask mask({2, 3, 4, keys}, static_cast<std::int64_t>(random() % 3),
                    [&](int, int, int, int) { return random() % 3 == 0 ? 0.0F : kHidden; });
    const MaskRows rows = attn_ggml::read_mask(mask.tensor());
    bool alone = true;
    for (std::size_t row = 0; row < rows.first.size(); ++row) {
      const attn::float16* at =
          mask.numbers.data() + row * static_cast<std::size_t>(keys + mask.pad);
      int first = 0, end = 0, seen = 0;
      for (int j = 0; j < keys; ++j) {
        if (static_cast<float>(at[j]) == kHidden) continue;
        if (seen++ == 0) first = j;
        end = j + 1;
      }
      EXPECT_EQ(rows.first[row], first);
      EXPECT_EQ(rows.end[row], end);
      alone = alone && seen == end - first;
    }
    EXPECT_EQ(rows.bounds_alone, alone);
  }
}

// Rows of sequences whose keys lie anywhere in a cache, each of which sees its own keys so far: row
// i is the next one of sequence owners[i].
std::vector<std::vector<bool>> shared_cache(const std::vector<int>& owners, int keys,
                                            std::mt19937& random) {
  std::vector<int> owner_of_key(static_cast<std::size_t>(keys));
  for (int& owner : owner_of_key) owner = static_cast<int>(random() % 5);
  std::vector<std::vector<bool>> sees;
  for (std::size_t i = 0; i < owners.size(); ++i) {
    // One key less for each later row of the sequence.
    std::int64_t later =
        std::count(owners.begin() + static_cast<std::ptrdiff_t>(i) + 1, owners.end(), owners[i]);
    std::vector<bool>& row = sees.emplace_back(static_cast<std::size_t>(keys));
    for (int j = keys - 1; j >= 0; --j) {
      const auto at = static_cast<std::size_t>(j);
      row[at] = owner_of_key[at] == owners[i] && later-- <= 0;
    }
  }
  return sees;
}

TEST(GgmlMask, SequencesThatShareACache) {
  std::mt19937 random(7);
  const std::vector<int> owners{0, 0, 0, 2, 4, 4, 0, 1};
  const auto sees = shared_cache(owners, 100, random);
  const auto at = [&](int, int, int i, int j) {
    return sees[static_cast<std::size_t>(i)][static_cast<std::size_t>(j)] ? -0.0F : kHidden;
  };
  const Mask mask({1, 1, 8, 100}, 5, at);
  const auto found = attn_ggml::read_sequences(mask.tensor());
  ASSERT_TRUE(found.has_value());
  // The last row of sequence 0 stands apart.
  EXPECT_EQ(found->starts, ints({0, 3, 4, 6, 7, 8}));
  EXPECT_EQ(found->width, 256);
  for (std::size_t s = 0; s < found->lengths.size(); ++s) {
    const auto row = static_cast<std::size_t>(found->starts[s + 1] - 1);
    std::vector<std::int32_t> expected;
    for (int j = 0; j < 100; ++j) {
      if (sees[row][static_cast<std::size_t>(j)]) expected.push_back(j);
    }
    EXPECT_EQ(found->lengths[s], static_cast<std::int32_t>(expected.size()));
    expected.resize(256, -1);
    EXPECT_TRUE(std::equal(expected.begin(), expected.end(),
                           found->keys.begin() + static_cast<std::ptrdiff_t>(s) * 256));
  }
}

TEST(GgmlMask, NumbersAndManyRowsWithKeysOfTheirOwnAreNoSequences) {
  const Mask number({1, 1, 2, 60}, 0, [](int, int, int, int j) {
    return j % 7 == 0 ? kHidden : j == 30 ? 1.0F : 0;
  });
  EXPECT_FALSE(attn_ggml::read_sequences(number.tensor()).has_value());
  const Mask own({1, 1, 40, 60}, 0,
                 [](int, int, int i, int j) { return (i * 7 + j * 3) % 5 < 3 ? 0 : kHidden; });
  EXPECT_FALSE(attn_ggml::read_sequences(own.tensor()).has_value());
}

struct Shape {
  int batch = 2, rows = 5, keys = 37, heads = 6, heads_k = 2, dim = 32, dim_v = 64;
};

// Random tensors, the result of the backend and of the plain loop.
class Case {
 public:
  Case(const Shape& shape, unsigned seed) : shape_(shape), random_(seed) {
    fill(q_, std::int64_t{shape.batch} * shape.rows * shape.heads * shape.dim);
    fill(k_, std::int64_t{shape.batch} * shape.keys * shape.heads_k * shape.dim);
    fill(v_, std::int64_t{shape.batch} * shape.keys * shape.heads_k * shape.dim_v);
    fill(sink_, shape.heads);
    o_.assign(static_cast<std::size_t>(shape.batch) * static_cast<std::size_t>(shape.rows) *
                  static_cast<std::size_t>(shape.heads) * static_cast<std::size_t>(shape.dim_v),
              std::nanf(""));
    a.q = attn::tensor(q_.data(), {shape.batch, shape.rows, shape.heads, shape.dim});
    a.k = attn::tensor(k_.data(), {shape.batch, shape.keys, shape.heads_k, shape.dim});
    a.v = attn::tensor(v_.data(), {shape.batch, shape.keys, shape.heads_k, shape.dim_v});
    a.type_k = a.type_v = attn::CacheType::f32;
    a.o = attn::tensor(o_.data(), {shape.batch, shape.rows, shape.heads, shape.dim_v});
    a.scale = 0.3F;
  }

  void with_sink() { a.sink = attn::tensor(sink_.data(), {shape_.heads}); }

  void expect_right() {
    attn_ggml::run(a, {});
    for (int b = 0; b < shape_.batch; ++b) {
      for (int i = 0; i < shape_.rows; ++i) {
        for (int h = 0; h < shape_.heads; ++h) {
          const std::vector<double> expected = row(b, i, h);
          for (int d = 0; d < shape_.dim_v; ++d) {
            const auto at = static_cast<std::size_t>(a.o.offset({b, i, h, d}));
            ASSERT_NEAR(o_[at], expected[static_cast<std::size_t>(d)], 1e-5)
                << "entry " << b << ", row " << i << ", head " << h << ", column " << d;
          }
        }
      }
    }
  }

  Attention a{};

 private:
  void fill(std::vector<float>& x, std::int64_t size) {
    std::normal_distribution<float> normal;
    x.resize(static_cast<std::size_t>(size));
    for (float& number : x) number = normal(random_);
  }

  // ggml's slope of a head, by its own formula: powers of two numbers.
  double slope(int head) const {
    if (a.max_bias == 0) return 1;
    const int n = 1 << static_cast<int>(std::floor(std::log2(shape_.heads)));
    const double m0 = std::pow(2.0, -double{a.max_bias} / n);
    const double m1 = std::pow(2.0, -double{a.max_bias} / 2 / n);
    return head < n ? std::pow(m0, head + 1) : std::pow(m1, 2 * (head - n) + 1);
  }

  std::vector<double> row(int b, int i, int h) const {
    std::vector<double> sums(static_cast<std::size_t>(shape_.dim_v));
    const int hk = h / (shape_.heads / shape_.heads_k);
    double total = a.sink.given() ? std::exp(double{sink_[static_cast<std::size_t>(h)]}) : 0;
    for (int j = 0; j < shape_.keys; ++j) {
      double score = 0;
      for (int d = 0; d < shape_.dim; ++d) {
        score += double{q_[static_cast<std::size_t>(a.q.offset({b, i, h, d}))]} *
                 double{k_[static_cast<std::size_t>(a.k.offset({b, j, hk, d}))]};
      }
      score *= double{a.scale};
      if (a.softcap > 0) score = double{a.softcap} * std::tanh(score / double{a.softcap});
      if (a.mask.given()) {
        const auto at = a.mask.offset({b % a.mask.shape[0], h % a.mask.shape[1], i, j});
        const auto number = static_cast<float>(static_cast<const attn::float16*>(a.mask.data)[at]);
        if (number == kHidden) continue;
        score += slope(h) * double{number};
      }
      const double p = std::exp(score);
      total += p;
      for (int d = 0; d < shape_.dim_v; ++d) {
        sums[static_cast<std::size_t>(d)] +=
            p * double{v_[static_cast<std::size_t>(a.v.offset({b, j, hk, d}))]};
      }
    }
    for (double& sum : sums) sum = total == 0 ? 0 : sum / total;
    return sums;
  }

  Shape shape_;
  std::mt19937 random_;
  std::vector<float> q_{}, k_{}, v_{}, sink_{}, o_{};
};

TEST(GgmlAttention, EveryKindOfMask) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  const auto holes = [&](int, int, int, int) { return random() % 2 == 0 ? 0.25F : kHidden; };
  const auto causal = [](int, int, int i, int j) { return j <= i + 20 ? 0 : kHidden; };
  const auto early = [](int, int, int i, int j) { return j < i ? 0 : kHidden; };
  const auto lengths = [](int b, int, int, int j) { return j < 11 + 9 * b ? 0 : kHidden; };
  const auto window = [](int b, int h, int i, int j) {
    return j > i + 3 && j <= i + 20 + b - h ? 0 : kHidden;
  };
  const auto distances = [](int, int, int i, int j) {
    return j <= i + 30 ? -std::abs(static_cast<float>(j - i - 30)) : kHidden;
  };
  const auto nothing = [](int, int, int, int) { return kHidden; };
  const std::vector<std::function<float(int, int, int, int)>> masks{
      holes, causal, early, lengths, window, distances, nothing};
  for (std::size_t which = 0; which < masks.size(); ++which) {
    for (const int batch : {1, 2}) {
      for (const int heads : {1, 3, 6}) {
        for (const int rows : {1, 5}) {
          SCOPED_TRACE(testing::Message() << "mask " << which << " of " << batch << " entries, "
                                          << heads << " heads, " << rows << " rows");
          Case test({.rows = rows}, seed);
          const Mask mask({batch, heads, rows, 37}, 3, masks[which]);
          test.a.mask = mask.tensor();
          test.a.max_bias = which % 2 == 0 ? 8 : 0;
          test.a.softcap = which % 3 == 0 ? 2 : 0;
          if (which % 2 == 1) test.with_sink();
          test.expect_right();
        }
      }
    }
  }
}

TEST(GgmlAttention, SequencesThatShareACache) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  const std::vector<std::vector<int>> all{{0, 1, 2, 3},
                                          {0, 0, 0, 0, 0, 0},
                                          {3, 1, 1, 4, 4, 4, 4, 0},
                                          {5, 0, 5}};  // of 5 there are no keys
  for (const std::vector<int>& owners : all) {
    const int rows = static_cast<int>(owners.size());
    for (const int keys : {37, 300}) {
      SCOPED_TRACE(testing::Message() << rows << " rows, " << keys << " keys");
      const auto sees = shared_cache(owners, keys, random);
      const Mask mask({1, 1, rows, keys}, 1, [&](int, int, int i, int j) {
        return sees[static_cast<std::size_t>(i)][static_cast<std::size_t>(j)] ? 0 : kHidden;
      });
      Case test({.batch = 1, .rows = rows, .keys = keys}, seed);
      test.a.mask = mask.tensor();
      test.a.softcap = keys == 37 ? 4 : 0;
      test.a.max_bias = 8;  // of which zeros and -inf know nothing
      if (rows > 4) test.with_sink();
      test.expect_right();
    }
  }
}

TEST(GgmlAttention, WithoutMask) {
  Case test({}, 1);
  test.a.softcap = 3;
  test.with_sink();
  test.expect_right();
}

TEST(GgmlAttention, HeadsThatAreNoPowerOfTwoHaveSlopesInBetween) {
  Case test({.heads = 12, .heads_k = 12}, 2);
  const Mask mask({1, 1, 5, 37}, 0,
                  [](int, int, int i, int j) { return -static_cast<float>(std::abs(i + 32 - j)); });
  test.a.mask = mask.tensor();
  test.a.max_bias = 8;
  test.expect_right();
}

TEST(GgmlAttention, RefusesInWordsOfTheLibrary) {
  Case test({}, 3);
  test.a.type_k = attn::CacheType::q8_0;  // of which f32 is not the storage
  EXPECT_THROW(attn_ggml::run(test.a, {}), attn::Error);
}

}  // namespace
