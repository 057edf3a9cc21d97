#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <type_traits>
#include <vector>

#include "attn/error.hpp"
#include "attn/run.hpp"

namespace attn {
namespace {

// What T converts to and from, and the dtype of its LSE.
template <class T>
using Wide = std::conditional_t<std::is_same_v<T, double>, double, float>;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr std::int64_t kBatch = 2, kQueries = 3, kHeads = 2, kDim = 5, kKeys = 12;
constexpr std::int64_t kRows = kBatch * kQueries * kHeads;

// Scores of every row over all keys, and values; attention over a subset of the keys by definition.
struct Attention {
  std::vector<double> score = std::vector<double>(kRows * kKeys);
  std::vector<double> value = std::vector<double>(kKeys * kDim);

  explicit Attention(std::uint32_t seed) {
    std::mt19937 random(seed);
    std::uniform_real_distribution<double> uniform(-30, 30);
    for (double& s : score) s = uniform(random);
    for (double& v : value) v = uniform(random);
  }

  // Row-major O [rows][dim] and LSE [rows] over keys [begin, end).
  void compute(std::int64_t begin, std::int64_t end, std::vector<double>& o,
               std::vector<double>& lse) const {
    o.assign(kRows * kDim, 0);
    lse.assign(kRows, -kInfinity);
    for (std::int64_t r = 0; r < kRows; ++r) {
      double sum = 0;
      for (std::int64_t j = begin; j < end; ++j)
        sum += std::exp(score[static_cast<std::size_t>(r * kKeys + j)]);
      lse[static_cast<std::size_t>(r)] = std::log(sum);
      for (std::int64_t j = begin; j < end; ++j) {
        const double p = std::exp(score[static_cast<std::size_t>(r * kKeys + j)]) / sum;
        for (std::int64_t c = 0; c < kDim; ++c) {
          o[static_cast<std::size_t>(r * kDim + c)] +=
              p * value[static_cast<std::size_t>(j * kDim + c)];
        }
      }
    }
  }
};

// Rows are (batch, query, head) in O and (batch, head, query) in LSE.
std::size_t lse_index(std::int64_t row) {
  const std::int64_t b = row / (kQueries * kHeads), i = row / kHeads % kQueries, h = row % kHeads;
  return static_cast<std::size_t>((b * kHeads + h) * kQueries + i);
}

template <class T>
struct Part {
  std::vector<T> o = std::vector<T>(kRows * kDim);
  std::vector<Wide<T>> lse = std::vector<Wide<T>>(kRows);

  Outputs outputs() {
    return {tensor(o.data(), {kBatch, kQueries, kHeads, kDim}),
            tensor(lse.data(), {kBatch, kHeads, kQueries})};
  }
  void set(const std::vector<double>& o_values, const std::vector<double>& lse_values) {
    for (std::size_t n = 0; n < o.size(); ++n)
      o[n] = static_cast<T>(static_cast<Wide<T>>(o_values[n]));
    for (std::int64_t r = 0; r < kRows; ++r) {
      lse[lse_index(r)] =
          static_cast<typename decltype(lse)::value_type>(lse_values[static_cast<std::size_t>(r)]);
    }
  }
};

// unit: the largest relative error of one rounding to T.
template <class T>
void check_merge(double unit, std::uint32_t seed) {
  SCOPED_TRACE("seed " + std::to_string(seed));
  const Attention attention(seed);
  std::vector<double> o, lse;
  Part<T> parts[3], result;
  const std::int64_t ends[] = {0, 5, 5, kKeys};  // the second part has no keys
  for (int p = 0; p < 3; ++p) {
    attention.compute(ends[p], ends[p + 1], o, lse);
    parts[p].set(o, lse);
  }
  for (auto& v : result.o) v = T(std::numeric_limits<float>::quiet_NaN());
  merge({parts[0].outputs(), parts[1].outputs(), parts[2].outputs()}, result.outputs());
  attention.compute(0, kKeys, o, lse);
  // Parts of up to 30 are rounded, and so is the result, of up to 30 (1 + unit). LSE of up to 33,
  // rounded, shifts weights by 33 roundings, before and in the merge. The definition's sums of up
  // to 12 exponentials and of 12 products err by 32 roundings of double, in the parts and the
  // whole.
  const double wide = std::is_same_v<T, double> ? 0x1p-53 : 0x1p-24;
  const double tolerance = 30 * (unit * (2 + unit) + 2 * 33 * wide + 2 * 32 * 0x1p-53);
  for (std::size_t n = 0; n < o.size(); ++n) {
    ASSERT_NEAR(static_cast<double>(static_cast<Wide<T>>(result.o[n])), o[n], tolerance) << n;
  }
  for (std::int64_t r = 0; r < kRows; ++r) {
    ASSERT_NEAR(result.lse[lse_index(r)], lse[static_cast<std::size_t>(r)],
                33 * (std::is_same_v<T, double> ? 0x1p-50 : 0x1p-23));
  }
}

template <class T>
void check_merges(double unit) {
  for (std::uint32_t seed = 1; seed <= 200; ++seed) check_merge<T>(unit, seed);
}

TEST(Merge, DoubleParts) { check_merges<double>(0x1p-53); }
TEST(Merge, FloatParts) { check_merges<float>(0x1p-24); }
TEST(Merge, Bfloat16Parts) { check_merges<bfloat16>(0x1p-8); }  // 8 bits of significand
TEST(Merge, Float16Parts) { check_merges<float16>(0x1p-11); }

TEST(Merge, ResultMayBeAPart) {
  const Attention attention(3);
  std::vector<double> o, lse;
  Part<float> a, b, result;
  attention.compute(0, 4, o, lse);
  a.set(o, lse);
  attention.compute(4, kKeys, o, lse);
  b.set(o, lse);
  merge({a.outputs(), b.outputs()}, result.outputs());
  merge({a.outputs(), b.outputs()}, b.outputs());
  EXPECT_EQ(b.o, result.o);
  EXPECT_EQ(b.lse, result.lse);
}

TEST(Merge, PackedEqualsDense) {
  const Attention attention(4);
  std::vector<double> o, lse;
  Part<float> a, b, dense;
  attention.compute(0, 4, o, lse);
  a.set(o, lse);
  attention.compute(4, kKeys, o, lse);
  b.set(o, lse);
  merge({a.outputs(), b.outputs()}, dense.outputs());
  // Batch 0 alone, as a packed tensor.
  std::vector<float> packed_o(kQueries * kHeads * kDim), packed_lse(kHeads * kQueries);
  const auto packed = [](std::vector<float>& o_data, std::vector<float>& lse_data) {
    return Outputs{tensor(o_data.data(), {kQueries, kHeads, kDim}),
                   tensor(lse_data.data(), {kHeads, kQueries})};
  };
  merge({packed(a.o, a.lse), packed(b.o, b.lse)}, packed(packed_o, packed_lse));
  for (std::size_t n = 0; n < packed_o.size(); ++n) EXPECT_EQ(packed_o[n], dense.o[n]);
  for (std::size_t n = 0; n < packed_lse.size(); ++n) EXPECT_EQ(packed_lse[n], dense.lse[n]);
}

TEST(Merge, PartsThatAttendToNothing) {
  Part<float> a, b;
  a.o.assign(a.o.size(), std::numeric_limits<float>::quiet_NaN());
  a.lse.assign(a.lse.size(), static_cast<float>(-kInfinity));
  b.o.assign(b.o.size(), 2.0f);
  b.lse.assign(b.lse.size(), 1.5f);
  Part<float> result;
  merge({a.outputs(), b.outputs()}, result.outputs());
  EXPECT_EQ(result.o, b.o);
  EXPECT_EQ(result.lse, b.lse);
  merge({a.outputs(), a.outputs()}, result.outputs());
  EXPECT_EQ(result.o, std::vector<float>(result.o.size(), 0));
  EXPECT_EQ(result.lse, a.lse);
}

// Each key a part of its own. The first parts have no keys, so that what the last ones give is most
// of the result.
TEST(Merge, PartsOfOneKeyEach) {
  const Attention attention(5);
  std::vector<double> o, lse;
  std::vector<Part<double>> parts(kKeys + 4);
  std::vector<Outputs> outputs;
  for (std::size_t p = 0; p < parts.size(); ++p) {
    const std::int64_t key = static_cast<std::int64_t>(p) - 4;
    attention.compute(std::max<std::int64_t>(key, 0), key + 1, o, lse);
    parts[p].set(o, lse);
    outputs.push_back(parts[p].outputs());
  }
  Part<double> result;
  merge(outputs, result.outputs());
  attention.compute(0, kKeys, o, lse);
  for (std::size_t n = 0; n < o.size(); ++n) ASSERT_NEAR(result.o[n], o[n], 1e-12) << n;
  for (std::int64_t r = 0; r < kRows; ++r) {
    ASSERT_NEAR(result.lse[lse_index(r)], lse[static_cast<std::size_t>(r)], 1e-12) << r;
  }
}

// 2^53 and more apart from the LSE of its parts, log 2 is lost; the mean is not.
TEST(Merge, PartsOfLargeLse) {
  for (const float large : {1e10F, 1e17F, 1e30F}) {
    const float o[] = {3, 5};
    const float lse[] = {large, large};
    float merged = std::nanf(""), merged_lse = std::nanf("");
    const auto outputs = [](const float* o_of, const float* lse_of) {
      return Outputs{.o = tensor(o_of, {1, 1, 1, 1}), .lse = tensor(lse_of, {1, 1, 1})};
    };
    merge({outputs(&o[0], &lse[0]), outputs(&o[1], &lse[1])}, outputs(&merged, &merged_lse));
    EXPECT_FLOAT_EQ(merged, 4) << large;
    EXPECT_FLOAT_EQ(merged_lse, large);
  }
}

TEST(Merge, NaNPropagates) {
  Part<float> a, b, result;
  a.o[0] = std::numeric_limits<float>::quiet_NaN();
  b.lse[1] = std::numeric_limits<float>::quiet_NaN();  // batch 0, head 0, query 1
  merge({a.outputs(), b.outputs()}, result.outputs());
  EXPECT_TRUE(std::isnan(result.o[0]));
  EXPECT_FALSE(std::isnan(result.o[1]));
  EXPECT_TRUE(std::isnan(result.o[kHeads * kDim]));
  EXPECT_TRUE(std::isnan(result.lse[1]));
  EXPECT_FALSE(std::isnan(result.lse[0]));
}

TEST(Merge, Refusals) {
  Part<float> a, b, result;
  result.o.assign(result.o.size(), 7.0f);
  const auto refused = [&](const std::vector<Outputs>& parts, const Outputs& out,
                           const char* phrase) {
    try {
      merge(parts, out);
      ADD_FAILURE() << "accepted; expected " << phrase;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
      EXPECT_NE(std::string(error.what()).find(phrase), std::string::npos) << error.what();
    }
    for (const float v : result.o) ASSERT_EQ(v, 7.0f) << phrase;
  };
  refused({}, result.outputs(), "parts is empty");
  refused({{}}, result.outputs(), "parts[0].o is no tensor");
  Outputs no_lse = b.outputs();
  no_lse.lse = {};
  refused({a.outputs(), no_lse}, result.outputs(), "parts[1].lse is not given");
  Outputs wrong_dtype = b.outputs();
  wrong_dtype.o.dtype = DType::i32;
  refused({a.outputs(), wrong_dtype}, result.outputs(), "parts[1].o is i32");
  Outputs wrong_shape = b.outputs();
  wrong_shape.o.shape[1] = 2;
  refused({a.outputs(), wrong_shape}, result.outputs(), "accepted is f32[2, 3, 2, 5]");
  Outputs shifted = a.outputs();
  shifted.o.data = a.o.data() + 1;
  shifted.o.shape[3] = kDim - 1;
  Outputs narrow = a.outputs();
  narrow.o.shape[3] = kDim - 1;
  refused({narrow}, shifted, "result.o");
  Outputs broadcast = result.outputs();
  broadcast.o.strides[0] = 0;
  refused({a.outputs()}, broadcast, "result.o");
}

// As one that saw no key and has a sink of infinity or NaN.
TEST(Merge, APartAloneIsTheResultWhateverItsLse) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity(), kNaN = NAN;
  for (const float alone : {kInfinity, kNaN, 1.5f}) {
    float o[] = {0, 0}, of_nothing[] = {kNaN, kNaN}, lse = alone, nothing = -kInfinity;
    float merged[] = {kNaN, kNaN}, merged_lse = 0;
    const auto outputs = [](float* x, float* l) {
      return Outputs{.o = tensor(x, {1, 1, 1, 2}), .lse = tensor(l, {1, 1, 1})};
    };
    merge({outputs(of_nothing, &nothing), outputs(o, &lse)}, outputs(merged, &merged_lse));
    EXPECT_EQ(merged[0], 0);
    EXPECT_EQ(merged[1], 0);
    EXPECT_TRUE(merged_lse == alone || (std::isnan(merged_lse) && std::isnan(alone)));
  }
}

}  // namespace
}  // namespace attn
