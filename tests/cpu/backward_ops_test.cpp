// The verbs of the backward pass of every table against their definitions, in double from the
// operands as the table holds them.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>
#include <vector>

#include "core/cache_type.hpp"
#include "tile_ops.hpp"

namespace attn::cpu::testing {
namespace {

class Backward : public TileTest {};
INSTANTIATE_TEST_SUITE_P(Tables, Backward, ::testing::ValuesIn(f32_tables()), table_name);

class BackwardProducts : public TileTest {};
INSTANTIATE_TEST_SUITE_P(Tables, BackwardProducts, ::testing::ValuesIn(backward_tables()),
                         table_name);

// dV = P^T dO and dK = dS^T Q over two Q blocks, the last of them a single row.
TEST_P(BackwardProducts, RowsAccumulateAsDefined) {
  const auto rows = static_cast<std::size_t>(ops().rows);
  for (const int dim : {1, 16, 40, 64, 96, 111}) {
    if (dim % ops().dim_multiple != 0) continue;
    for (const int keys : {1, 7, 33, 64}) {
      const auto ld = static_cast<std::size_t>(leading_dim(dim));
      const auto n = static_cast<std::size_t>(keys);
      Floats g(kBlockK * ld), unused(kBlockK * kMaxRows);
      fill(g);
      const std::vector<float> before(g.data(), g.data() + g.size());
      std::vector<double> sum(before.begin(), before.end());
      std::vector<Floats> kept;  // weights, as the operand type holds them, and rows
      kept.reserve(6);
      WeightedRows blocks[2];
      for (int i = 0; i < 2; ++i) {
        const int count = i == 0 ? ops().rows - 1 : 1;
        std::vector<float> x;
        for (int e = 0; e < count * dim; ++e) x.push_back(rounded(normal()));
        const SourceRows source(count, dim, bf16(), x);
        Floats& packed = kept.emplace_back(kMaxRows * ld);
        ops().pack_rows(source.rows.data(), count, dim, source.dtype, packed.data());
        Floats& t = kept.emplace_back(kBlockK * kMaxRows);
        fill(t);
        for (std::size_t j = 0; j < n; ++j) {
          // Lanes past count have no weight, whatever they hold.
          for (auto r = static_cast<std::size_t>(count); r < rows; ++r) {
            t[j * rows + r] = std::numeric_limits<float>::quiet_NaN();
          }
          for (std::size_t r = 0; r < static_cast<std::size_t>(count); ++r) {
            for (std::size_t d = 0; d < static_cast<std::size_t>(dim); ++d) {
              sum[j * ld + d] += double{rounded(t[j * rows + r])} *
                                 double{x[r * static_cast<std::size_t>(dim) + d]};
            }
          }
        }
        blocks[i] = {t.data(), packed.data(), count};
        if (bf16()) {
          Floats& t_rows = kept.emplace_back(kBlockK * kMaxRows);
          ops().round_gradients(t.data(), t.data(), keys, count, t_rows.data(), unused.data(),
                                unused.data());
          blocks[i].t = t_rows.data();
        }
      }
      ops().accumulate_rows(blocks, 2, keys, dim, g.data());
      for (std::size_t j = 0; j < n; ++j) {
        for (std::size_t d = 0; d < static_cast<std::size_t>(dim); ++d) {
          ASSERT_NEAR(g[j * ld + d], sum[j * ld + d], 1e-4) << "dim " << dim << " keys " << keys;
        }
      }
    }
  }
}

// P and dS of a tile as the products with bf16 operands take them.
struct RoundedTile {
  Floats p{kBlockK * kMaxRows / 2}, ds{kBlockK * kMaxRows / 2}, ds_pairs{kBlockK * kMaxRows / 2};

  static float half(Floats& x, std::size_t i) {
    bfloat16 value;
    std::memcpy(&value, reinterpret_cast<const std::byte*>(x.data()) + 2 * i, sizeof(value));
    return static_cast<float>(value);
  }
};

// Where row r stands among those of a key: AMX pairs rows r and 16 + r, others neighbours.
std::size_t place_of_row(const TileOps& ops, std::size_t r) {
  if (ops.isa != InstructionSet::amx_bf16) return r;
  return r < 16 ? 2 * r : 2 * (r - 16) + 1;
}

// Keys that a pass over pairs of them (AMX: over 32) fills with zeros.
std::size_t keys_written(const TileOps& ops, std::size_t keys) {
  const std::size_t multiple = ops.isa == InstructionSet::amx_bf16 ? 32 : 2;
  return (keys + multiple - 1) / multiple * multiple;
}

TEST_P(BackwardProducts, GradientsAreRoundedToTheOperandType) {
  if (!bf16()) return;
  const auto rows = static_cast<std::size_t>(ops().rows);
  for (const int keys : {1, 2, 7, 33, 64}) {
    for (const int count : {1, 16, 19, ops().rows}) {
      Floats p(kBlockK * kMaxRows), ds(kBlockK * kMaxRows);
      RoundedTile out;
      fill(p);
      fill(ds);
      // Rows past count hold anything; a NaN stays one, whatever its payload.
      for (std::size_t j = 0; j < kBlockK; ++j) {
        for (auto r = static_cast<std::size_t>(count); r < rows; ++r) {
          p[j * rows + r] = ds[j * rows + r] = std::numeric_limits<float>::quiet_NaN();
        }
      }
      std::memset(&p[0], 0xff, sizeof(float));
      std::memset(&ds[0], 0xff, sizeof(float));
      ops().round_gradients(p.data(), ds.data(), keys, count, out.p.data(), out.ds.data(),
                            out.ds_pairs.data());
      const auto n = static_cast<std::size_t>(keys);
      for (std::size_t j = 0; j < keys_written(ops(), n); ++j) {
        for (std::size_t r = 0; r < rows; ++r) {
          const std::size_t paired = (j / 2 * rows + r) * 2 + j % 2;
          const std::size_t place = j * rows + place_of_row(ops(), r);
          const bool real = j < n && r < static_cast<std::size_t>(count);
          if (j == 0 && r == 0) {
            ASSERT_TRUE(std::isnan(RoundedTile::half(out.p, place)));
            ASSERT_TRUE(std::isnan(RoundedTile::half(out.ds, place)));
            ASSERT_TRUE(std::isnan(RoundedTile::half(out.ds_pairs, paired)));
            continue;
          }
          // One of the nearest: halves may be rounded to even, or up.
          const auto nearest = [&](float got, float x) {
            if (!real) return got == 0;
            return std::fabs(got - x) <= std::fabs(rounded(x) - x);
          };
          const float of_p = p[j * rows + r], of_ds = ds[j * rows + r];
          ASSERT_TRUE(nearest(RoundedTile::half(out.ds_pairs, paired), of_ds)) << "key " << j;
          if (j >= n && ops().isa != InstructionSet::amx_bf16) continue;
          ASSERT_TRUE(nearest(RoundedTile::half(out.p, place), of_p)) << "key " << j;
          ASSERT_TRUE(nearest(RoundedTile::half(out.ds, place), of_ds)) << "key " << j;
        }
      }
    }
  }
}

// Against the three verbs that it stands for, to the bit, and against f64; rows past count and what
// is hidden are zero.
TEST_P(BackwardProducts, SoftmaxGradientMatchesItsDefinition) {
  if (ops().softmax_gradient == nullptr) return;
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const auto rows = static_cast<std::size_t>(ops().rows);
  const float scale = 0.3f;
  for (const int keys : {1, 7, 33, 64}) {
    for (const int count : {1, 19, ops().rows}) {
      Floats s(kBlockK * kMaxRows), dp(kBlockK * kMaxRows), lse(kMaxRows), delta(kMaxRows);
      fill(s);
      fill(dp);
      for (std::size_t r = 0; r < rows; ++r) {
        lse[r] = r < static_cast<std::size_t>(count) ? 1 + normal() : kInfinity;
        delta[r] = r < static_cast<std::size_t>(count) ? normal() : 0;
      }
      // Row 0 of the first key is hidden, and nothing that is not finite reaches it.
      s[0] = -kInfinity;
      dp[0] = kInfinity;
      // Scores of rows past count hold anything.
      if (count < ops().rows) s[rows - 1] = dp[rows - 1] = std::numeric_limits<float>::quiet_NaN();
      // Row 16 has neither LSE nor D, and memory filled with ones for a NaN.
      if (count > 16 && keys > 7) {
        std::memset(&lse[16], 0xff, sizeof(float));
        std::memset(&delta[16], 0xff, sizeof(float));
        s[16] = -kInfinity;
      }
      const std::vector<float> scores(s.data(), s.data() + s.size());
      const std::vector<float> of_dp(dp.data(), dp.data() + dp.size());
      RoundedTile out;
      ops().softmax_gradient(s.data(), dp.data(), keys, count, scale, lse.data(), delta.data(),
                             out.p.data(), out.ds.data(), out.ds_pairs.data());
      Floats p_f32(kBlockK * kMaxRows), ds_f32(kBlockK * kMaxRows);
      ops().probabilities(scores.data(), keys, scale, lse.data(), p_f32.data());
      ops().score_gradient(p_f32.data(), of_dp.data(), keys, nullptr, 1, delta.data(),
                           ds_f32.data());
      RoundedTile by_verbs;
      ops().round_gradients(p_f32.data(), ds_f32.data(), keys, count, by_verbs.p.data(),
                            by_verbs.ds.data(), by_verbs.ds_pairs.data());
      const auto n = static_cast<std::size_t>(keys);
      const std::size_t bytes = keys_written(ops(), n) * rows * 2;
      ASSERT_EQ(std::memcmp(out.p.data(), by_verbs.p.data(), bytes), 0);
      ASSERT_EQ(std::memcmp(out.ds.data(), by_verbs.ds.data(), bytes), 0);
      ASSERT_EQ(std::memcmp(out.ds_pairs.data(), by_verbs.ds_pairs.data(), bytes), 0);
      for (std::size_t j = 0; j < keys_written(ops(), n); ++j) {
        for (std::size_t r = 0; r < rows; ++r) {
          const std::size_t at = j * rows + r;
          const float p = RoundedTile::half(out.p, j * rows + place_of_row(ops(), r));
          const float ds = RoundedTile::half(out.ds, j * rows + place_of_row(ops(), r));
          const float pair = RoundedTile::half(out.ds_pairs, (j / 2 * rows + r) * 2 + j % 2);
          if (j >= n || r >= static_cast<std::size_t>(count) || scores[at] == -kInfinity) {
            ASSERT_TRUE(p == 0 && ds == 0 && pair == 0) << "key " << j << " row " << r;
            continue;
          }
          if (std::isnan(lse[r])) {
            ASSERT_TRUE(std::isnan(p) && std::isnan(ds) && std::isnan(pair));
            continue;
          }
          const double want =
              std::exp(std::min(0.0, double{scores[at]} * double{scale} - double{lse[r]}));
          const double of_ds = want * (double{of_dp[at]} - double{delta[r]});
          ASSERT_NEAR(p, want, 0.00392 * want) << "key " << j << " row " << r;
          ASSERT_NEAR(ds, of_ds, 0.00392 * std::fabs(of_ds) + 1e-6) << "key " << j << " row " << r;
          ASSERT_EQ(pair, ds) << "key " << j << " row " << r;
        }
      }
    }
  }
}

TEST_P(Backward, ScoreGradientMatchesItsDefinition) {
  const auto rows = static_cast<std::size_t>(ops().rows);
  constexpr int kKeys = 9;
  Floats s(kBlockK * kMaxRows), dp(kBlockK * kMaxRows), ds(kBlockK * kMaxRows), lse(kMaxRows),
      delta(kMaxRows);
  fill(s);
  fill(dp);
  fill(lse);
  fill(delta);
  std::vector<std::uint32_t> keep(kBlockK);
  for (auto& bits : keep) bits = static_cast<std::uint32_t>(random_());
  const std::vector<float> scores(s.data(), s.data() + s.size());
  ops().probabilities(s.data(), kKeys, 1.0f, lse.data(), s.data());
  const float scale = 1.5f;
  ops().score_gradient(s.data(), dp.data(), kKeys, keep.data(), scale, delta.data(), ds.data());
  for (std::size_t j = 0; j < kKeys; ++j) {
    for (std::size_t r = 0; r < rows; ++r) {
      // A probability: 1 where the score is above LSE.
      const double p = std::exp(std::min(0.0, double{scores[j * rows + r]} - double{lse[r]}));
      const double z = (keep[j] >> r & 1u) != 0 ? scale : 0.0;
      ASSERT_NEAR(s[j * rows + r], z == 0 ? 0 : p, 1e-5 * (1 + p));
      ASSERT_NEAR(ds[j * rows + r], p * (z * double{dp[j * rows + r]} - double{delta[r]}),
                  1e-4 * (1 + p));
    }
  }
}

// Of small P as well: 2^(c (s - lse)) with the product rounded is off by 4e-7 at s - lse = -10.
TEST_P(Backward, ProbabilitiesAreAsExactWhereTheyAreSmall) {
  const auto rows = static_cast<std::size_t>(ops().rows);
  Floats s(kBlockK * kMaxRows), p(kBlockK * kMaxRows), lse(kMaxRows);
  for (std::size_t r = 0; r < rows; ++r) lse[r] = 0;
  for (std::size_t i = 0; i < kBlockK * rows; ++i) {
    s[i] = -80.0f * static_cast<float>(random_() % 1000003) / 1000003.0f;
  }
  ops().probabilities(s.data(), kBlockK, 1.0f, lse.data(), p.data());
  for (std::size_t i = 0; i < kBlockK * rows; ++i) {
    const double expected = std::exp(double{s[i]});
    // 1.5 units in the last place; without fused products the reduction rounds twice more.
    ASSERT_NEAR(p[i], expected,
                (ops().isa == InstructionSet::portable ? 2.5e-7 : 1.8e-7) * expected)
        << s[i];
  }
}

// -inf is a key that is not seen: nothing that is not finite reaches it.
TEST_P(Backward, HiddenKeysHaveNoProbabilityAndNoGradient) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
  const auto rows = static_cast<std::size_t>(ops().rows);
  for (const float lse_value : {0.5f, kInfinity, kNaN}) {
    for (const float gradient : {1.0f, kInfinity, kNaN}) {
      Floats s(kMaxRows), dp(kMaxRows), ds(kMaxRows), lse(kMaxRows), delta(kMaxRows);
      for (std::size_t r = 0; r < rows; ++r) {
        s[r] = -kInfinity;
        lse[r] = lse_value;
        dp[r] = delta[r] = gradient;
      }
      ops().probabilities(s.data(), 1, 1.0f, lse.data(), s.data());
      ops().score_gradient(s.data(), dp.data(), 1, nullptr, 1.0f, delta.data(), ds.data());
      for (std::size_t r = 0; r < rows; ++r) {
        EXPECT_EQ(s[r], 0) << lse_value;
        EXPECT_EQ(ds[r], 0) << lse_value << ", " << gradient;
      }
    }
  }
}

// D before dLSE: more rows than lanes, and head sizes that end within a vector.
TEST_P(Backward, RowsAreMultipliedWhereTheyLie) {
  for (const bool bf16_rows : {false, true}) {
    for (const int dim : {1, 7, 16, 40, 64, 111}) {
      const int count = ops().rows - 1;
      std::vector<float> x, y;
      for (int e = 0; e < count * dim; ++e) {
        x.push_back(bf16_rows ? static_cast<float>(bfloat16(normal())) : normal());
        y.push_back(bf16_rows ? static_cast<float>(bfloat16(normal())) : normal());
      }
      const SourceRows x_rows(count, dim, bf16_rows, x), y_rows(count, dim, bf16_rows, y);
      Floats dot(kMaxRows);
      ops().dot_rows(x_rows.rows.data(), y_rows.rows.data(), count, dim, x_rows.dtype, dot.data());
      for (int r = 0; r < count; ++r) {
        double want = 0;
        for (int d = 0; d < dim; ++d) {
          const auto e = static_cast<std::size_t>(r * dim + d);
          want += double{x[e]} * double{y[e]};
        }
        EXPECT_NEAR(dot[static_cast<std::size_t>(r)], want, 1e-4) << "row " << r << " dim " << dim;
      }
      EXPECT_TRUE(std::isnan(dot[static_cast<std::size_t>(count)])) << "past the rows";
    }
  }
}

// Where dS is 0 the factor is not finite, and lanes past the rows hold NaN; neither takes part.
TEST_P(Backward, GradientsAreAddedUpWhereAnIndexDoesNotVary) {
  const auto rows = static_cast<std::size_t>(ops().rows);
  using expr::Dependence;
  for (const Dependence by :
       {Dependence::uniform, Dependence::row, Dependence::key, Dependence::full}) {
    const bool by_row = by == Dependence::row || by == Dependence::full;
    const bool by_key = by == Dependence::key || by == Dependence::full;
    for (const int keys : {1, 7, 64}) {
      for (const int count : {1, ops().rows / 2 + 1, ops().rows}) {
        for (const bool has_factor : {false, true}) {
          Floats ds(kBlockK * kMaxRows), factor(kBlockK * kMaxRows);
          const auto places = [&](std::size_t j, std::size_t r) {
            return (by_key ? j * (by_row ? rows : 1) : 0) + (by_row ? r : 0);
          };
          std::vector<double> want(kBlockK * kMaxRows, 0.0);
          for (std::size_t j = 0; j < static_cast<std::size_t>(keys); ++j) {
            for (std::size_t r = 0; r < static_cast<std::size_t>(count); ++r) {
              const std::size_t at = j * rows + r;
              const bool hidden = (j + r) % 3 == 1;
              ds[at] = hidden ? 0.0f : normal();
              factor[at] = hidden ? std::numeric_limits<float>::infinity() : normal();
              if (hidden) continue;
              want[places(j, r)] += double{ds[at]} * (has_factor ? double{factor[at]} : 1.0);
            }
          }
          std::vector<double> got(kBlockK * kMaxRows + 1, -7.0);
          ops().sum_gradient(ds.data(), has_factor ? factor.data() : nullptr, keys, count, by,
                             got.data());
          for (std::size_t j = 0; j < static_cast<std::size_t>(by_key ? keys : 1); ++j) {
            for (std::size_t r = 0; r < static_cast<std::size_t>(by_row ? count : 1); ++r) {
              ASSERT_NEAR(got[places(j, r)], want[places(j, r)], 1e-12)
                  << "key " << j << " row " << r << " of " << keys << " keys, " << count << " rows";
            }
          }
          const std::size_t end = static_cast<std::size_t>(by_key ? keys : 1) * (by_row ? rows : 1);
          ASSERT_EQ(got[end], -7.0) << "past the sums";
          // A gradient that is not finite reaches the sum that it is part of.
          ds[0] = std::numeric_limits<float>::quiet_NaN();
          factor[0] = 1;
          ops().sum_gradient(ds.data(), has_factor ? factor.data() : nullptr, keys, count, by,
                             got.data());
          ASSERT_TRUE(std::isnan(got[0]));
        }
      }
    }
  }
}

TEST_P(Backward, FindsTheRowsThatAreNotFinite) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    const std::size_t size = size_of(dtype);
    for (const int dim : {1, 7, 16, 33, 128}) {
      std::vector<std::byte> memory(kBlockK * static_cast<std::size_t>(dim) * size);
      const std::byte* row[kBlockK];
      for (std::size_t j = 0; j < kBlockK; ++j) {
        row[j] = memory.data() + j * static_cast<std::size_t>(dim) * size;
      }
      const auto put = [&](std::size_t j, int d, float value) {
        std::byte* at = memory.data() +
                        (j * static_cast<std::size_t>(dim) + static_cast<std::size_t>(d)) * size;
        if (dtype == DType::f32) std::memcpy(at, &value, size);
        const bfloat16 b(value);
        const float16 h(value);
        if (dtype == DType::bf16) std::memcpy(at, &b, size);
        if (dtype == DType::f16) std::memcpy(at, &h, size);
      };
      for (std::size_t j = 0; j < kBlockK; ++j) {
        for (int d = 0; d < dim; ++d) put(j, d, dtype == DType::f16 ? -65504.0f : -3e38f);
      }
      EXPECT_EQ(ops().nonfinite_rows(row, kBlockK, dim, core::cache_type(dtype)), 0u);
      put(3, dim - 1, std::numeric_limits<float>::quiet_NaN());
      put(63, 0, -std::numeric_limits<float>::infinity());
      EXPECT_EQ(ops().nonfinite_rows(row, kBlockK, dim, core::cache_type(dtype)),
                (std::uint64_t{1} << 63) | 8u);
      EXPECT_EQ(ops().nonfinite_rows(row, 4, dim, core::cache_type(dtype)), 8u);
      EXPECT_EQ(ops().nonfinite_rows(row, 3, dim, core::cache_type(dtype)), 0u);
    }
  }
}

}  // namespace
}  // namespace attn::cpu::testing
