// Every verb of every table against its definition, computed in double from the operands as the
// table holds them.
#include "tile_ops.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "core/cache_type.hpp"
#include "core/philox.hpp"
#include "core/tensor/element.hpp"
#include "cpu/attention.hpp"

namespace attn::cpu::testing {
namespace {

class Products : public TileTest {};
INSTANTIATE_TEST_SUITE_P(Tables, Products, ::testing::ValuesIn(tables()), table_name);

// Odd dims and key counts reach every register tail; 1 is the smallest, 64 keys a whole block.
constexpr int kDims[] = {1, 3, 16, 40, 59, 64, 96, 111, 128};
constexpr int kKeyCounts[] = {1, 2, 5, 7, 13, 33, 63, 64};

TEST_P(Products, ForwardTileMatchesItsDefinition) {
  const int rows = ops().rows;
  for (const int dim : kDims) {
    if (dim % ops().dim_multiple != 0) continue;
    for (const int keys : kKeyCounts) {
      SCOPED_TRACE("dim " + std::to_string(dim) + " keys " + std::to_string(keys));
      std::vector<float> q, k, v;
      for (int i = 0; i < rows * dim; ++i) q.push_back(rounded(normal()));
      for (int i = 0; i < keys * dim; ++i) k.push_back(rounded(normal()));
      for (int i = 0; i < keys * dim; ++i) v.push_back(rounded(normal()));
      const SourceRows q_rows(rows, dim, bf16(), q), k_rows(keys, dim, bf16(), k),
          v_rows(keys, dim, bf16(), v);
      const auto packed = static_cast<std::size_t>(kBlockK * leading_dim(dim));
      Floats q_t(static_cast<std::size_t>((dim + 1) * kMaxRows)), k_tile(packed), v_tile(packed);
      Floats s(kBlockK * kMaxRows), p(kBlockK * kMaxRows), row_max(kMaxRows), m(kMaxRows),
          l(kMaxRows), alpha(kMaxRows);
      Floats o_t(static_cast<std::size_t>(dim * kMaxRows));
      ops().pack_q(q_rows.rows.data(), rows, dim, core::cache_type(q_rows.dtype), nullptr, 1.0f,
                   q_t.data());
      ops().pack_k(k_rows.rows.data(), keys, dim, core::cache_type(k_rows.dtype), nullptr,
                   k_tile.data());
      ops().pack_v(v_rows.rows.data(), keys, dim, core::cache_type(v_rows.dtype), nullptr,
                   v_tile.data());
      const ScoreTile score_tile{q_t.data(), s.data(), row_max.data()};
      ops().scores(&score_tile, 1, k_tile.data(), keys, dim);

      std::vector<double> scores(static_cast<std::size_t>(keys * rows));
      for (int j = 0; j < keys; ++j) {
        for (int r = 0; r < rows; ++r) {
          double sum = 0;
          double magnitude = 0;
          for (int d = 0; d < dim; ++d) {
            const double product = double{q[static_cast<std::size_t>(r * dim + d)]} *
                                   double{k[static_cast<std::size_t>(j * dim + d)]};
            sum += product;
            magnitude += std::fabs(product);
          }
          // A sum of dim products in f32: at most dim roundings of 2^-24 of the partial sums.
          ASSERT_NEAR(s[static_cast<std::size_t>(j * rows + r)], sum,
                      (dim + 1) * 0x1p-24 * magnitude);
          // The softmax is checked from the scores as they are.
          scores[static_cast<std::size_t>(j * rows + r)] =
              s[static_cast<std::size_t>(j * rows + r)];
        }
      }
      const float c = 0.7f;
      fill(o_t);
      std::vector<double> o_before(o_t.data(), o_t.data() + o_t.size());
      for (int r = 0; r < rows; ++r) {
        float expected = -std::numeric_limits<float>::infinity();
        for (int j = 0; j < keys; ++j)
          expected = std::max(expected, s[static_cast<std::size_t>(j * rows + r)]);
        ASSERT_EQ(row_max[static_cast<std::size_t>(r)], expected);
        m[static_cast<std::size_t>(r)] = normal();
        l[static_cast<std::size_t>(r)] = 1.5f;
      }
      std::vector<float> m_before(m.data(), m.data() + rows);
      void* weights = bf16() ? p.data() : s.data();
      ops().softmax(s.data(), keys, c, row_max.data(), nullptr, m.data(), l.data(), alpha.data(),
                    weights);
      const OutputTile output_tile{weights, alpha.data(), o_t.data()};
      ops().accumulate(&output_tile, 1, v_tile.data(), keys, dim);
      // P is within 2^-22 of its value (exp2: 1.01 ulp, argument: 2^-24 |y| 2^y < 2^-24), bf16 P
      // within 2^-8.
      const double p_error = bf16() ? 0x1p-8 : 0x1p-21;
      for (int r = 0; r < rows; ++r) {
        const auto lane = static_cast<std::size_t>(r);
        double maximum = m_before[lane];
        for (int j = 0; j < keys; ++j)
          maximum = std::max(maximum, scores[static_cast<std::size_t>(j * rows + r)]);
        ASSERT_EQ(m[lane], maximum);
        const double rescale = std::exp2(c * (m_before[lane] - maximum));
        ASSERT_NEAR(alpha[lane], rescale, 1e-5);
        double sum = 1.5 * rescale;
        for (int j = 0; j < keys; ++j)
          sum += std::exp2(c * (scores[static_cast<std::size_t>(j * rows + r)] - maximum));
        ASSERT_NEAR(l[lane], sum, (bf16() ? 5e-4 : 1e-5) * sum);
        for (int d = 0; d < dim; ++d) {
          double o = rescale * o_before[static_cast<std::size_t>(d * rows + r)];
          double magnitude = std::fabs(o);
          for (int j = 0; j < keys; ++j) {
            const double term =
                std::exp2(c * (scores[static_cast<std::size_t>(j * rows + r)] - maximum)) *
                double{v[static_cast<std::size_t>(j * dim + d)]};
            o += term;
            magnitude += std::fabs(term);
          }
          ASSERT_NEAR(o_t[static_cast<std::size_t>(d * rows + r)], o,
                      (p_error + keys * 0x1p-22 + 1e-5) * magnitude + 1e-30);
        }
      }
    }
  }
}

// Whatever is computed beside it, a Q block's numbers are the same to the bit.
TEST_P(Products, BlocksTogetherAreThoseOfEachAlone) {
  constexpr int kTiles = 3;
  for (const int dim : kDims) {
    if (dim % ops().dim_multiple != 0) continue;
    const auto rows = static_cast<std::size_t>(ops().rows);
    for (const int keys : kKeyCounts) {
      SCOPED_TRACE("dim " + std::to_string(dim) + " keys " + std::to_string(keys));
      const auto tile = static_cast<std::size_t>(kBlockK * kMaxRows);
      const auto q_floats = static_cast<std::size_t>((dim + 1) * kMaxRows);
      const auto packed = static_cast<std::size_t>(kBlockK * leading_dim(dim));
      std::vector<float> values;
      for (int i = 0; i < std::max(keys, ops().rows) * dim; ++i)
        values.push_back(rounded(normal()));
      const SourceRows key_rows(keys, dim, bf16(), values);
      Floats k_tile(packed), v_tile(packed);
      ops().pack_k(key_rows.rows.data(), keys, dim, core::cache_type(key_rows.dtype), nullptr,
                   k_tile.data());
      ops().pack_v(key_rows.rows.data(), keys, dim, core::cache_type(key_rows.dtype), nullptr,
                   v_tile.data());

      Floats q_t(kTiles * q_floats), s(2 * kTiles * tile), row_max(2 * kTiles * kMaxRows);
      Floats p(kTiles * tile), alpha(kTiles * kMaxRows), o_t(2 * kTiles * q_floats);
      fill(alpha);
      for (std::size_t i = 0; i < kTiles * q_floats; ++i) {
        o_t[i] = o_t[kTiles * q_floats + i] = normal();
      }
      ScoreTile scores[2 * kTiles];
      OutputTile outputs[2 * kTiles];
      for (std::size_t i = 0; i < kTiles; ++i) {
        for (float& x : values) x = rounded(normal());
        const SourceRows q_rows(ops().rows, dim, bf16(), values);
        ops().pack_q(q_rows.rows.data(), ops().rows, dim, core::cache_type(q_rows.dtype), nullptr,
                     1.0f, q_t.data() + i * q_floats);
        for (std::size_t copy = 0; copy < 2; ++copy) {
          const std::size_t at = copy * kTiles + i;
          scores[at] = {q_t.data() + i * q_floats, s.data() + at * tile,
                        row_max.data() + at * kMaxRows};
          // The middle block starts without a factor.
          outputs[at] = {p.data() + i * tile, i == 1 ? nullptr : alpha.data() + i * kMaxRows,
                         o_t.data() + at * q_floats};
        }
      }
      ops().scores(scores, kTiles, k_tile.data(), keys, dim);
      for (std::size_t i = kTiles; i < 2 * kTiles; ++i) {
        ops().scores(scores + i, 1, k_tile.data(), keys, dim);
      }
      for (std::size_t i = 0; i < kTiles; ++i) {
        for (std::size_t e = 0; e < static_cast<std::size_t>(keys) * rows; ++e) {
          ASSERT_EQ(scores[i].s[e], scores[kTiles + i].s[e]) << "block " << i << " element " << e;
        }
        for (std::size_t r = 0; r < rows; ++r) {
          ASSERT_EQ(scores[i].row_max[r], scores[kTiles + i].row_max[r]) << "block " << i;
        }
        Floats m(kMaxRows), l(kMaxRows), unused(kMaxRows);
        for (std::size_t r = 0; r < rows; ++r) m[r] = l[r] = 0;
        ops().softmax(scores[i].s, keys, 0.7f, scores[i].row_max, nullptr, m.data(), l.data(),
                      unused.data(), p.data() + i * tile);
      }
      ops().accumulate(outputs, kTiles, v_tile.data(), keys, dim);
      for (std::size_t i = kTiles; i < 2 * kTiles; ++i) {
        ops().accumulate(outputs + i, 1, v_tile.data(), keys, dim);
      }
      for (std::size_t i = 0; i < kTiles; ++i) {
        for (std::size_t e = 0; e < static_cast<std::size_t>(dim) * rows; ++e) {
          ASSERT_EQ(outputs[i].o_t[e], outputs[kTiles + i].o_t[e])
              << "block " << i << " element " << e;
        }
      }
    }
  }
}

TEST_P(Products, MaskedScoresGiveZeroAndNeverNaN) {
  const auto rows = static_cast<std::size_t>(ops().rows);
  Floats s(kBlockK * kMaxRows), p(kBlockK * kMaxRows), row_max(kMaxRows), m(kMaxRows), l(kMaxRows),
      alpha(kMaxRows);
  constexpr int kKeys = 8;
  for (std::size_t i = 0; i < kKeys * rows; ++i) s[i] = -std::numeric_limits<float>::infinity();
  s[0] = -1e30f;  // row 0 has one key, extremely low
  for (std::size_t r = 0; r < rows; ++r) {
    m[r] = kMaximumStart;
    l[r] = 0;
  }
  ops().row_max(s.data(), kKeys, row_max.data());
  void* weights = bf16() ? p.data() : s.data();
  ops().softmax(s.data(), kKeys, 1.0f, row_max.data(), nullptr, m.data(), l.data(), alpha.data(),
                weights);
  EXPECT_EQ(l[0], 1.0f);
  EXPECT_EQ(m[0], -1e30f);
  for (std::size_t r = 1; r < rows; ++r) {
    EXPECT_EQ(l[r], 0.0f);
    EXPECT_EQ(alpha[r], 1.0f);
    EXPECT_EQ(m[r], kMaximumStart);
  }
}

TEST_P(Products, DropoutBitsAreThoseOfTheDefinition) {
  const int rows = ops().rows;
  std::vector<std::int32_t> query(kMaxRows);
  std::vector<std::uint32_t> batch_head(kMaxRows);
  for (int r = 0; r < kMaxRows; ++r) {
    query[static_cast<std::size_t>(r)] = static_cast<std::int32_t>(random_() >> 1);
    batch_head[static_cast<std::size_t>(r)] = static_cast<std::uint32_t>(random_());
  }
  const std::uint64_t seed = (std::uint64_t{random_()} << 32) | random_();
  const std::uint64_t offset = (std::uint64_t{random_()} << 32) | random_();
  for (const double probability : {1.0 / 32768, 0.3, 31.0 / 32, 0.97, 0.999}) {
    const std::uint32_t threshold = core::dropout_threshold(probability);
    for (const int key0 : {0, 32, 1 << 20}) {
      for (const int keys : {1, 31, 40, 64}) {
        std::vector<std::uint32_t> keep(kBlockK, 0xdeadbeefu);
        ops().dropout_keep({seed, offset, threshold, query.data(), batch_head.data()}, key0, keys,
                           keep.data());
        for (int j = 0; j < keys; ++j) {
          for (int r = 0; r < rows; ++r) {
            const auto lane = static_cast<std::size_t>(r);
            const bool expected = core::dropout_keep(seed, offset, threshold, batch_head[lane],
                                                     static_cast<std::uint32_t>(query[lane]),
                                                     static_cast<std::uint32_t>(key0 + j));
            ASSERT_EQ((keep[static_cast<std::size_t>(j)] >> r & 1u) != 0, expected)
                << "key " << key0 + j << " row " << r << " probability " << probability;
          }
        }
      }
    }
  }
}

TEST_P(Products, PackedValuesThatAreNotFiniteAreFound) {
  constexpr int kKeys = 32, kDim = 64;

  const int floats = kKeys * kDim / (bf16() ? 2 : 1);
  std::vector<bfloat16> values(kKeys * kDim, bfloat16(-3e38f));
  const std::byte* row[kKeys];
  for (std::size_t j = 0; j < kKeys; ++j) {
    row[j] = reinterpret_cast<const std::byte*>(values.data() + j * kDim);
  }
  Floats v(static_cast<std::size_t>(kBlockK) * kDim);
  for (const std::size_t at : {0, 1, 63, 64, 1000, 2047}) {
    ops().pack_v(row, kKeys, kDim, CacheType::bf16, nullptr, v.data());
    EXPECT_TRUE(ops().all_finite(v.data(), floats));
    for (const float value :
         {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
      values[at] = bfloat16(value);
      ops().pack_v(row, kKeys, kDim, CacheType::bf16, nullptr, v.data());
      EXPECT_FALSE(ops().all_finite(v.data(), floats)) << at << ", " << value;
    }
    values[at] = bfloat16(1.0f);
  }
}

class Decode : public TileTest {};
INSTANTIATE_TEST_SUITE_P(Tables, Decode, ::testing::ValuesIn(f32_tables()), table_name);

TEST_P(Decode, ScoresAndSumsMatchTheirDefinitions) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    for (const int dim : {1, 16, 40, 111, 128}) {
      for (int count = 1; count <= std::min(kMaxDecodeRows, ops().rows); ++count) {
        constexpr std::size_t kKeys = 21;
        const auto d_count = static_cast<std::size_t>(dim);
        const auto ld = static_cast<std::size_t>(leading_dim(dim));
        const auto n = static_cast<std::size_t>(count);
        const auto stride = static_cast<std::size_t>(decode_row_stride(count));
        Floats q(n * ld), s(kBlockK * kMaxDecodeRows), o(n * ld), alpha(kMaxRows);
        fill(q);
        fill(o);
        fill(alpha);
        for (std::size_t r = 0; r < n; ++r) {
          for (std::size_t d = d_count; d < ld; ++d) q[r * ld + d] = 0;
        }
        std::vector<float> values;
        std::vector<std::byte> bytes(kKeys * d_count * size_of(dtype));
        for (std::size_t i = 0; i < kKeys * d_count; ++i) {
          const float x = normal();
          if (dtype == DType::f32) {
            reinterpret_cast<float*>(bytes.data())[i] = x;
            values.push_back(x);
          } else if (dtype == DType::bf16) {
            reinterpret_cast<bfloat16*>(bytes.data())[i] = bfloat16(x);
            values.push_back(static_cast<float>(bfloat16(x)));
          } else {
            reinterpret_cast<float16*>(bytes.data())[i] = float16(x);
            values.push_back(static_cast<float>(float16(x)));
          }
        }
        std::vector<const std::byte*> row;
        for (std::size_t j = 0; j < kKeys; ++j)
          row.push_back(bytes.data() + j * d_count * size_of(dtype));
        const std::vector<float> before(o.data(), o.data() + o.size());
        const std::vector<float> ones(kMaxRows, 1.0f);
        for (std::size_t j = 0; j < kKeys; j += kDecodeKeys) {
          const auto keys = static_cast<int>(std::min<std::size_t>(kDecodeKeys, kKeys - j));
          const std::byte* const* at = row.data() + j;
          float* scores = s.data() + j * stride;
          ops().decode_scores(q.data(), count, at, at, keys, dim, core::cache_type(dtype), scores);
          ops().decode_accumulate(scores, count, at, at, keys, dim, core::cache_type(dtype),
                                  j == 0 ? alpha.data() : ones.data(), o.data());
        }
        for (std::size_t r = 0; r < n; ++r) {
          for (std::size_t j = 0; j < kKeys; ++j) {
            double sum = 0;
            for (std::size_t d = 0; d < d_count; ++d)
              sum += double{q[r * ld + d]} * double{values[j * d_count + d]};
            ASSERT_NEAR(s[j * stride + r], sum, 1e-4);
          }
          for (std::size_t d = 0; d < d_count; ++d) {
            double sum = double{alpha[r]} * double{before[r * ld + d]};
            for (std::size_t j = 0; j < kKeys; ++j)
              sum += double{s[j * stride + r]} * double{values[j * d_count + d]};
            ASSERT_NEAR(o[r * ld + d], sum, 2e-3);
          }
        }
      }
    }
  }
}

// Two blocks of keys, the second with scores of -inf and dropout.
// Halfway between two numbers of the type, as tensor_test.cpp holds the conversions of elements to.
TEST_P(Decode, StoresRoundTiesToEven) {
  constexpr int kWidth = 64;
  for (const DType dtype : {DType::bf16, DType::f16}) {
    std::vector<float> x(kWidth), o_t(static_cast<std::size_t>(kWidth * ops().rows));
    std::vector<std::uint16_t> want(kWidth), row(kWidth), block_row(kWidth);
    for (std::size_t i = 0; i < kWidth; ++i) {
      const auto code = static_cast<std::uint16_t>(0x3800 + 97 * i);  // even and odd, in turn
      const auto next = static_cast<std::uint16_t>(code + 1);
      const auto value = [&](const std::uint16_t& of) {
        return static_cast<float>(
            core::load_element(reinterpret_cast<const std::byte*>(&of), dtype));
      };
      x[i] = (value(code) + value(next)) / 2;
      want[i] = code % 2 == 0 ? code : next;
      o_t[i * static_cast<std::size_t>(ops().rows)] = x[i];
    }
    ops().store_row(x.data(), kWidth, 1, dtype, reinterpret_cast<std::byte*>(row.data()));
    EXPECT_EQ(row, want) << name(dtype);
    const std::vector<float> ones(kMaxRows, 1);
    std::byte* rows[kMaxRows] = {reinterpret_cast<std::byte*>(block_row.data())};
    ops().unpack_o(o_t.data(), kWidth, ones.data(), dtype, rows, 1);
    EXPECT_EQ(block_row, want) << name(dtype);
  }
}

TEST_P(Decode, SoftmaxMatchesItsDefinition) {
  const double infinity = std::numeric_limits<double>::infinity();
  for (int count = 1; count <= kMaxDecodeRows; ++count) {
    const int stride = decode_row_stride(count);
    for (const int keys : {1, 7, 21, kBlockK}) {
      Floats m(kMaxRows), l(kMaxRows), alpha(kMaxRows);
      std::fill_n(m.data(), kMaxRows, kMaximumStart);
      std::fill_n(l.data(), kMaxRows, 0.0f);
      std::vector<double> top(static_cast<std::size_t>(count), -infinity), total(top.size(), 0.0);
      for (const bool second : {false, true}) {
        Floats s(kBlockK * kMaxDecodeRows);
        fill(s);
        std::vector<std::uint32_t> keep(kBlockK);
        for (std::uint32_t& bits : keep) bits = static_cast<std::uint32_t>(normal() * 1000.0f);
        if (second && keys > 1) {
          for (int r = 0; r < count; ++r) s[static_cast<std::size_t>(stride + r)] = -INFINITY;
        }
        const std::vector<float> scores(s.data(), s.data() + s.size());
        ops().decode_softmax(s.data(), count, keys, 0.5f, second ? keep.data() : nullptr, m.data(),
                             l.data(), alpha.data());
        for (int r = 0; r < count; ++r) {
          const auto at = static_cast<std::size_t>(r);
          const auto score = [&](int j) {
            return double{scores[static_cast<std::size_t>(j * stride + r)]};
          };
          const double before = top[at];
          for (int j = 0; j < keys; ++j) top[at] = std::max(top[at], score(j));
          const double factor = std::exp2(0.5 * (before - top[at]));
          total[at] *= factor;
          for (int j = 0; j < keys; ++j) {
            const double p = std::exp2(0.5 * (score(j) - top[at]));
            total[at] += p;
            const bool kept = !second || (keep[static_cast<std::size_t>(j)] >> r & 1u) != 0;
            ASSERT_NEAR(s[static_cast<std::size_t>(j * stride + r)], kept ? p : 0.0, 1e-6);
          }
          ASSERT_EQ(m[at], top[at]);
          ASSERT_NEAR(alpha[at], factor, 1e-6);
          ASSERT_NEAR(l[at], total[at], 1e-5 * total[at]);
        }
      }
    }
  }
}

}  // namespace
}  // namespace attn::cpu::testing
