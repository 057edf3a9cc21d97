// Decoding with products of bf16, of every table that has it, against sums in double over every
// type of caches: keys that end within eight and within thirty-two, memory of NaN where nothing was
// staged.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/cached_rows.hpp"
#include "tile_ops.hpp"

namespace attn::cpu::testing {
namespace {

// A number of bf16; halves, which q8_0 has, away from zero.
float away_from_zero(float x) {
  return std::bit_cast<float>((std::bit_cast<std::uint32_t>(x) + 0x8000u) & 0xffff0000u);
}

// Rows as a cache of the type holds them, and their numbers rounded to bf16: as of K, and as of V,
// where those of q8_0 that lie halfway go away from zero.
struct CachedRows {
  template <class Normal>
  CachedRows(CacheType type, std::size_t keys, int dim, const Normal& normal)
      : bytes(keys * static_cast<std::size_t>(core::row_bytes(type, dim))) {
    const auto row_bytes = static_cast<std::size_t>(core::row_bytes(type, dim));
    for (std::size_t j = 0; j < keys; ++j) {
      std::vector<double> x(static_cast<std::size_t>(dim));
      for (double& value : x) value = double{normal()} * (type == CacheType::i8 ? 40 : 1);
      row.push_back(bytes.data() + j * row_bytes);
      core::store_cached_row(bytes.data() + j * row_bytes, x.data(), dim, type);
      for (int d = 0; d < dim; ++d) {
        const auto number = static_cast<float>(core::cached_element(row[j], d, type));
        value.push_back(static_cast<float>(bfloat16(number)));
        value_of_v.push_back(type == CacheType::q8_0 ? away_from_zero(number) : value.back());
      }
    }
  }
  std::vector<std::byte> bytes;
  std::vector<const std::byte*> row;
  std::vector<float> value, value_of_v;  // [key][dim]
};

class DecodeBf16 : public TileTest {};
INSTANTIATE_TEST_SUITE_P(Tables, DecodeBf16, ::testing::ValuesIn(decode_bf16_tables()), table_name);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(DecodeBf16);

TEST(DecodeBf16Tables, AreThere) {
  if (decode_bf16_tables().empty()) GTEST_SKIP() << "no table decodes in bf16 on this CPU";
}

TEST_P(DecodeBf16, ScoresAndSumsMatchTheirDefinitions) {
  const DecodeBf16Verbs& verbs = ops().decode;
  for (const CacheType type :
       {CacheType::bf16, CacheType::f32, CacheType::f16, CacheType::i8, CacheType::e4m3,
        CacheType::e5m2, CacheType::q8_0, CacheType::q4_0}) {
    for (const int dim : {32, 96, 128}) {
      for (int count = 1; count <= kMaxDecodeRows; ++count) {
        constexpr std::size_t kKeys = 53;
        const auto d_count = static_cast<std::size_t>(dim);
        const auto ld = static_cast<std::size_t>(leading_dim(dim));
        const auto n = static_cast<std::size_t>(count);
        const auto stride = static_cast<std::size_t>(decode_row_stride(count));
        const auto next = [&] { return normal(); };
        const CachedRows q(CacheType::bf16, n, dim, next), k(type, kKeys, dim, next);
        Floats packed(kMaxDecodeRows * ld), s(kBlockK * kMaxDecodeRows), o(n * ld);
        Floats alpha(kMaxRows), pairs(kStagedKeys / 2 * d_count);
        fill(o);
        fill(alpha);
        const std::vector<float> before(o.data(), o.data() + o.size());
        const std::vector<float> ones(kMaxRows, 1.0f);
        if (verbs.enter != nullptr) verbs.enter(count);
        verbs.pack_q(q.row.data(), count, dim, packed.data());
        for (std::size_t j = 0; j < kKeys; j += kDecodeKeys) {
          const auto keys = static_cast<int>(std::min<std::size_t>(kDecodeKeys, kKeys - j));
          verbs.scores(packed.data(), count, k.row.data() + j, k.row.data() + j, keys, dim, type,
                       s.data() + j * stride);
        }
        for (std::size_t first = 0; first < kKeys; first += kStagedKeys) {
          for (std::size_t j = first; j < first + kStagedKeys; j += kDecodeKeys) {
            const std::size_t keys = j < kKeys ? std::min<std::size_t>(kDecodeKeys, kKeys - j) : 0;
            const std::byte* const* at = k.row.data() + std::min(j, kKeys - 1);
            verbs.stage_values(at, at, static_cast<int>(keys), dim, type,
                               pairs.data() + (j - first) / 2 * d_count);
          }
          const auto keys = static_cast<int>(std::min<std::size_t>(kStagedKeys, kKeys - first));
          verbs.accumulate(s.data() + first * stride, count, pairs.data(), keys, dim,
                           first == 0 ? alpha.data() : ones.data(), o.data());
        }
        if (verbs.leave != nullptr) verbs.leave();
        for (std::size_t r = 0; r < n; ++r) {
          for (std::size_t j = 0; j < kKeys; ++j) {
            double sum = 0, size = 0;
            for (std::size_t d = 0; d < d_count; ++d) {
              const double term =
                  double{q.value[r * d_count + d]} * double{k.value[j * d_count + d]};
              sum += term;
              size += std::abs(term);
            }
            ASSERT_NEAR(s[j * stride + r], sum, 1e-6 * size) << name(type) << " " << dim;
          }
          for (std::size_t d = 0; d < d_count; ++d) {
            double sum = double{alpha[r]} * double{before[r * ld + d]}, size = std::abs(sum);
            for (std::size_t j = 0; j < kKeys; ++j) {
              const double term = double{static_cast<float>(bfloat16(s[j * stride + r]))} *
                                  double{k.value_of_v[j * d_count + d]};
              sum += term;
              size += std::abs(term);
            }
            ASSERT_NEAR(o[r * ld + d], sum, 1e-5 * size) << name(type) << " " << dim;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace attn::cpu::testing
