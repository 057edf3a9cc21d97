// K and V in types of their own (Problem::type_k, type_v): what their bytes mean, against numbers
// written by hand, and attention over them against the reference.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "attn/error.hpp"
#include "attn/mask.hpp"
#include "attn/run.hpp"
#include "conformance/support.hpp"
#include "core/cached_rows.hpp"
#include "core/float8.hpp"
#include "core/hadamard.hpp"
#include "verify/conformance.hpp"

namespace attn {
namespace {

constexpr CacheType kTypes[] = {CacheType::f32,  CacheType::bf16, CacheType::f16,  CacheType::e4m3,
                                CacheType::e5m2, CacheType::i8,   CacheType::q8_0, CacheType::q4_0};
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

class CacheTypes : public ::testing::TestWithParam<CacheType> {};

// Of every pair with the type of K a problem of one kind, by an algorithm and by the one that is
// chosen: kinds, algorithms, instruction sets and dtypes take turns.
TEST_P(CacheTypes, BesideAnyTypeOfVAgreeWithTheReference) {
  constexpr const char* kSizes[] = {
      "b2_sq1_sk200_hq8_hk2_d64", "b2_sq40_sk139_hq4_hk2_d32_causal_paged16",
      "b2_sq2_sk150_sp130_hq6_hk2_d96", "b2_sq3_sk90_hq6_hk2_d32_list40"};
  constexpr const char* kDTypes[] = {"f32", "bf16", "f16"};
  const std::vector<InstructionSet> sets = verify::available_instruction_sets();
  std::size_t turn = static_cast<std::size_t>(GetParam());
  for (const CacheType of_v : kTypes) {
    for (int kind = 0; kind < 2; ++kind, ++turn) {
      const std::string text = std::string(kSizes[turn % 4]) + "_k(" +
                               std::string(name(GetParam())) + ")_v(" + std::string(name(of_v)) +
                               ")_" + kDTypes[turn % 3];
      const verify::Case c = verify::parse_case(text);
      verify::Conformance conformance(c, turn, false);
      const std::vector<Algorithm> all = verify::algorithms_for(c.problem, Phase::forward);
      for (const Algorithm algorithm : {Algorithm::automatic, all[turn % all.size()]}) {
        for (std::size_t i = 0; i < 2; ++i) {
          const verify::Report report = conformance.check({.backend = Backend::cpu,
                                                           .algorithm = algorithm,
                                                           .isa = sets[(turn + i) % sets.size()]});
          EXPECT_EQ(report.status, verify::Status::passed) << verify::to_string(report);
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Conformance, CacheTypes, ::testing::ValuesIn(kTypes),
                         [](const auto& info) { return std::string(name(info.param)); });

// One key: O is its V.
struct OneKey {
  std::vector<std::uint8_t> k, v;
  std::vector<float> q, o;
  std::int64_t dim;
  Problem problem;

  OneKey(CacheType type, std::vector<std::uint8_t> row, std::int64_t columns)
      : k(row),
        v(std::move(row)),
        q(static_cast<std::size_t>(columns), 0.0f),
        o(static_cast<std::size_t>(columns), kNaN),
        dim(columns),
        problem{.type_k = type, .type_v = type} {}

  Tensor bytes(std::vector<std::uint8_t>& of) const {
    return tensor(of.data(), {1, 1, 1, static_cast<std::int64_t>(of.size())});
  }
  Inputs inputs() { return {.q = tensor(q.data(), {1, 1, 1, dim}), .k = bytes(k), .v = bytes(v)}; }
  std::vector<float> run(Backend backend, const Tensor& scale = {}) {
    Inputs in = inputs();
    in.scale_v = scale;
    std::fill(o.begin(), o.end(), kNaN);
    forward(problem, in, {.o = tensor(o.data(), {1, 1, 1, dim})}, {.backend = backend});
    return o;
  }
};

std::vector<float> first(const std::vector<float>& x, std::size_t count) {
  return {x.begin(), x.begin() + static_cast<std::ptrdiff_t>(count)};
}

TEST(CacheElements, OfBlocksAreThoseThatGgmlLaysOut) {
  std::vector<std::uint8_t> q8(34, 0);
  q8[0] = 0x00;  // 0.5 in f16, low byte first
  q8[1] = 0x38;
  q8[2] = 127;
  q8[3] = 0x80;                            // -128
  q8[4] = 0xff;                            // -1
  q8[33] = 2;                              // the last
  std::vector<std::uint8_t> q4(18, 0x88);  // all 0
  q4[0] = 0x00;                            // -2 in f16
  q4[1] = 0xc0;
  q4[2] = 0xf0;   // element 0: 0 - 8, element 16: 15 - 8
  q4[17] = 0x19;  // element 15: 9 - 8, element 31: 1 - 8
  for (const Backend backend : {Backend::reference, Backend::cpu}) {
    const std::vector<float> eight = OneKey(CacheType::q8_0, q8, 32).run(backend);
    EXPECT_EQ(first(eight, 4), (std::vector<float>{63.5f, -64, -0.5f, 0}));
    EXPECT_EQ(eight[31], 1);
    const std::vector<float> four = OneKey(CacheType::q4_0, q4, 32).run(backend);
    EXPECT_EQ(four[0], 16);
    EXPECT_EQ(four[16], -14);
    EXPECT_EQ(four[15], -2);
    EXPECT_EQ(four[31], 14);
    EXPECT_EQ(four[5], 0);
  }
}

TEST(CacheElements, OfE5M2HaveInfinities) {
  const std::byte row[]{std::byte{0x7c}, std::byte{0xfc}};
  EXPECT_EQ(core::cached_element(row, 0, CacheType::e5m2), std::numeric_limits<double>::infinity());
  EXPECT_EQ(core::cached_element(row, 1, CacheType::e5m2),
            -std::numeric_limits<double>::infinity());
}

TEST(CacheElements, OfBytesAreTimesTheirScale) {
  const std::vector<std::uint8_t> row{0x7e, 0xfe, 0x01, 0x38, 0x80, 0x08};
  float scale = 0.25f;
  const Tensor of_all = tensor(&scale, {1});
  for (const Backend backend : {Backend::reference, Backend::cpu}) {
    // The largest, the least, the smallest above 0 (2^-9), 1, -0 and 2^-6.
    EXPECT_EQ(OneKey(CacheType::e4m3, row, 6).run(backend, of_all),
              (std::vector<float>{112, -112, 0x1p-11f, 0.25f, 0, 0x1p-8f}));
    EXPECT_EQ(OneKey(CacheType::i8, row, 6).run(backend),
              (std::vector<float>{126, -2, 1, 56, -128, 8}));
    EXPECT_TRUE(std::isnan(OneKey(CacheType::e4m3, {0x7f}, 1).run(backend)[0]));
    EXPECT_TRUE(std::isnan(OneKey(CacheType::e4m3, {0xff}, 1).run(backend)[0]));
    // Of e5m2 likewise: 57344, -57344, 2^-16, 0.5, -0 and 2^-13.
    EXPECT_EQ(OneKey(CacheType::e5m2, {0x7b, 0xfb, 0x01, 0x38, 0x80, 0x08}, 6).run(backend, of_all),
              (std::vector<float>{14336, -14336, 0x1p-18f, 0.125f, 0, 0x1p-15f}));
    EXPECT_TRUE(std::isnan(OneKey(CacheType::e5m2, {0x7d}, 1).run(backend)[0]));
  }
}

// Many keys of one dense head, whose rows a test changes after they were drawn.
struct ManyKeys {
  static constexpr std::int64_t kKeys = 300, kDim = 64, kHeads = 2;
  std::int64_t queries;
  CacheType type;
  std::vector<float> q, o, scale;
  std::vector<std::uint8_t> k, v;
  Problem problem;

  ManyKeys(CacheType of, std::int64_t rows)
      : queries(rows),
        type(of),
        q(static_cast<std::size_t>(rows * kHeads * kDim)),
        o(q.size()),
        scale(static_cast<std::size_t>(kKeys * kHeads), 0.03f),
        k(static_cast<std::size_t>(kKeys * kHeads * core::row_bytes(of, kDim))),
        v(k.size()),
        problem{.type_k = of, .type_v = of, .mask = causal()} {
    std::mt19937 random(7);
    std::normal_distribution<double> normal;
    for (float& x : q) x = static_cast<float>(normal(random));
    for (std::vector<std::uint8_t>* to : {&k, &v}) {
      for (std::int64_t row = 0; row < kKeys * kHeads; ++row) {
        double values[kDim];
        for (double& x : values) x = normal(random);
        core::store_cached_row(
            reinterpret_cast<std::byte*>(to->data()) + row * core::row_bytes(of, kDim), values,
            kDim, of, 0.03);
      }
    }
  }
  Tensor cache(std::vector<std::uint8_t>& bytes) const {
    return tensor(static_cast<void*>(bytes.data()), storage_dtype(type),
                  {1, kKeys, kHeads, row_size(type, kDim)});
  }
  std::uint8_t* row_of_v(std::int64_t key) {
    return v.data() + key * kHeads * core::row_bytes(type, kDim);
  }
  std::vector<float> run(const Context& context = {}) {
    Inputs in{.q = tensor(q.data(), {1, queries, kHeads, kDim}), .k = cache(k), .v = cache(v)};
    if (core::is_scaled(type)) {
      in.scale_k = in.scale_v = tensor(scale.data(), {1, kKeys, kHeads});
    }
    std::fill(o.begin(), o.end(), kNaN);
    forward(problem, in, {.o = tensor(o.data(), {1, queries, kHeads, kDim})}, {}, context);
    return o;
  }
};

// What a row does not see changes nothing, be it NaN by its bytes, its block or its scale.
TEST(CacheElements, ThatAreNotFiniteStayWithTheRowsThatSeeThem) {
  for (const CacheType type :
       {CacheType::e4m3, CacheType::e5m2, CacheType::i8, CacheType::q8_0, CacheType::q4_0}) {
    for (const std::int64_t queries : {2, 70}) {
      ManyKeys call(type, queries);
      const std::vector<float> before = call.run();
      const std::int64_t key = ManyKeys::kKeys - 1;  // the last query alone sees it
      if (type == CacheType::i8) {
        call.scale[static_cast<std::size_t>(key * ManyKeys::kHeads)] =
            std::numeric_limits<float>::infinity();
      } else if (core::is_float8(type)) {
        call.row_of_v(key)[0] = 0x7f;
      } else {
        call.row_of_v(key)[1] = 0x7e;  // the scale of the first block: NaN
      }
      const std::vector<float> after = call.run();
      const std::size_t last =
          before.size() - static_cast<std::size_t>(ManyKeys::kHeads * ManyKeys::kDim);
      for (std::size_t i = 0; i < last; ++i) {
        ASSERT_EQ(std::bit_cast<std::uint32_t>(after[i]), std::bit_cast<std::uint32_t>(before[i]))
            << name(type) << ' ' << queries << ' ' << i;
      }
      EXPECT_TRUE(std::isnan(after[last])) << name(type) << ' ' << queries;
    }
  }
}

TEST(CacheElements, GiveTheSameBitsOnAnyNumberOfThreads) {
  for (const CacheType type : kTypes) {
    for (const std::int64_t queries : {1, 40}) {
      ManyKeys call(type, queries);
      Context one, three;
      one.executor = make_thread_pool(1);
      three.executor = make_thread_pool(3);
      const std::vector<float> alone = call.run(one), together = call.run(three);
      EXPECT_EQ(std::memcmp(alone.data(), together.data(), alone.size() * sizeof(float)), 0)
          << name(type);
    }
  }
}

void expect_refusal(const Problem& problem, const Inputs& inputs, ErrorCode code,
                    const std::string& words) {
  std::vector<float> o(64, 3.0f);
  try {
    forward(problem, inputs, {.o = tensor(o.data(), {1, 1, 1, 64})});
    ADD_FAILURE() << "not refused: " << words;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
  }
  for (const float x : o) ASSERT_EQ(x, 3.0f);
}

TEST(CacheTypes, AreRefusedByName) {
  std::vector<float> q(64, 1.0f);
  std::vector<std::uint8_t> bytes(128, 0);
  std::vector<float> scale(8, 1.0f);
  const auto row = [&](std::int64_t size) { return tensor(bytes.data(), {1, 1, 1, size}); };
  const Tensor of_q = tensor(q.data(), {1, 1, 1, 64});
  const Problem q8{.type_k = CacheType::q8_0, .type_v = CacheType::q8_0};
  const Problem i8{.type_k = CacheType::i8, .type_v = CacheType::i8};
  constexpr ErrorCode kInvalid = ErrorCode::invalid_argument;
  expect_refusal(q8, {.q = of_q, .k = row(64), .v = row(68)}, kInvalid, "k is u8[1, 1, 1, 64]");
  expect_refusal(q8, {.q = of_q, .k = row(68), .v = row(69)}, kInvalid, "v is u8[1, 1, 1, 69]");
  expect_refusal(q8, {.q = of_q, .k = of_q, .v = row(68)}, kInvalid, "k is f32[1, 1, 1, 64]");
  expect_refusal(q8, {.q = tensor(q.data(), {1, 1, 1, 63}), .k = row(34), .v = row(68)}, kInvalid,
                 "type_k is q8_0, of blocks of 32 elements, and the head size is 63");
  expect_refusal({}, {.q = of_q, .k = row(64), .v = of_q}, kInvalid, "k is u8[1, 1, 1, 64]");
  expect_refusal(q8, {.q = of_q, .k = row(68), .v = row(68), .scale_k = tensor(scale.data(), {1})},
                 kInvalid, "scale_k is f32[1] strides (1) on cpu and type_k is q8_0");
  expect_refusal(i8, {.q = of_q, .k = row(64), .v = row(64), .scale_v = tensor(scale.data(), {2})},
                 kInvalid, "scale_v is f32[2]");
  expect_refusal(
      i8, {.q = of_q, .k = row(64), .v = row(64), .scale_v = tensor(scale.data(), {1, 1, 2})},
      kInvalid, "scale_v is f32[1, 1, 2]");
  Problem unknown;
  unknown.type_v = static_cast<CacheType>(77);
  expect_refusal(unknown, {.q = of_q, .k = of_q, .v = of_q}, kInvalid, "type_v is 77");
  EXPECT_THROW(parse_problem("b1_n4_h1_d64_kv(q9)"), Error);
  EXPECT_THROW(make_plan(parse_problem("b1_n4_h1_d64_kv(i8)_f64"), Phase::forward), Error);
  try {
    make_plan(parse_problem("b1_n4_h1_d64_kv(i8)"), Phase::backward);
    ADD_FAILURE() << "backward was planned";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::unsupported);
  }
}

// Half a step of the type from what was written, with the scales that the header promises, at any
// strides; what lies between rows stays.
TEST(Quantize, RoundsToTheNearestNumberOfTheType) {
  constexpr std::int64_t kRows = 5, kHeads = 3, kDim = 64;
  std::mt19937 random(11);
  std::normal_distribution<float> normal;
  std::vector<float> x(kRows * kHeads * kDim);
  for (float& value : x) value = normal(random);
  std::fill_n(x.begin() + kDim, kDim, 0.0f);  // row 0 of head 1
  for (const CacheType type : kTypes) {
    const std::int64_t bytes = core::row_bytes(type, kDim), gap = 8;
    std::vector<std::byte> to(static_cast<std::size_t>(kRows * kHeads * (bytes + gap)),
                              std::byte{0x5a});
    Tensor rows = tensor(static_cast<void*>(to.data()), storage_dtype(type),
                         {kRows, kHeads, row_size(type, kDim)});
    const auto element = static_cast<std::int64_t>(size_of(rows.dtype));
    rows.strides = {kHeads * (bytes + gap) / element, (bytes + gap) / element, 1, 0};
    std::vector<float> scales(kRows * kHeads, kNaN);
    Tensor scale = tensor(scales.data(), {kRows, kHeads});
    if (!core::is_scaled(type)) scale = {};
    quantize(tensor(x.data(), {kRows, kHeads, kDim}), type, rows, scale);
    for (std::int64_t row = 0; row < kRows * kHeads; ++row) {
      const float* const from = x.data() + row * kDim;
      const std::byte* const got = to.data() + row * (bytes + gap);
      double largest = 0;
      for (std::int64_t i = 0; i < kDim; ++i)
        largest = std::max(largest, std::abs(double{from[i]}));
      double factor = 1;
      if (core::is_scaled(type)) {
        factor = scales[static_cast<std::size_t>(row)];
        const double most = type == CacheType::e4m3 ? 448 : type == CacheType::e5m2 ? 57344 : 127;
        EXPECT_EQ(factor, largest == 0 ? 1 : static_cast<float>(largest / most)) << name(type);
      }
      for (std::int64_t i = 0; i < kDim; ++i) {
        const double size = std::abs(double{from[i]});
        double step = 0;  // the largest error
        switch (type) {
          case CacheType::as_q:
          case CacheType::f64:
          case CacheType::f32:
            break;
          case CacheType::bf16:
            step = size * 0x1p-8;
            break;
          case CacheType::f16:
            step = size * 0x1p-11 + 0x1p-25;
            break;
          case CacheType::e4m3:
            step = std::max(size * 0x1p-4, factor * 0x1p-10);
            break;
          case CacheType::e5m2:
            step = std::max(size * 0x1p-3, factor * 0x1p-17);
            break;
          case CacheType::i8:
            step = factor / 2;
            break;
          case CacheType::q8_0:
            step = largest / 127 * 0.56;  // the scale itself is rounded to f16: 127 * 2^-11
            break;
          case CacheType::q4_0:
            step = largest / 8 * 1.01;  // 8 steps above 0 where there are 7
            break;
        }
        const double value = core::cached_element(got, i, type) * factor;
        EXPECT_LE(std::abs(value - from[i]), step * (1 + 1e-6)) << name(type) << ' ' << row;
      }
      for (std::int64_t i = 0; i < gap; ++i) ASSERT_EQ(got[bytes + i], std::byte{0x5a});
    }
  }
}

// Rows that share a scale have that of the largest of them: along dimensions of stride 0, in
// blocks.
TEST(Quantize, RowsMayShareAScale) {
  constexpr std::int64_t kRows = 5, kHeads = 2, kDim = 16;
  std::mt19937 random(12);
  std::normal_distribution<float> normal;
  std::vector<float> x(kRows * kHeads * kDim);
  for (float& value : x) value = normal(random);
  const auto largest = [&](std::int64_t row, std::int64_t end, std::int64_t head) {
    float most = 0;
    for (; row < end; ++row) {
      for (std::int64_t i = 0; i < kDim; ++i) {
        const std::int64_t at = (row * kHeads + head) * kDim + i;
        most = std::max(most, std::abs(x[static_cast<std::size_t>(at)]));
      }
    }
    return double{most};
  };
  std::vector<std::uint8_t> to(x.size());
  std::vector<float> scale(kRows * kHeads);
  const auto scales = [&](std::array<std::int64_t, 2> strides, std::int64_t block) {
    Tensor of = tensor(scale.data(), {kRows, kHeads});
    of.strides = {strides[0], strides[1], 0, 0};
    std::fill(scale.begin(), scale.end(), kNaN);
    quantize(tensor(x.data(), {kRows, kHeads, kDim}), CacheType::e4m3,
             tensor(to.data(), {kRows, kHeads, kDim}), of, {.block = block, .rotation = {}});
    for (std::size_t i = 0; i < x.size(); ++i) {
      const auto row = static_cast<std::int64_t>(i) / kDim;
      const double factor =
          scale[static_cast<std::size_t>(row / kHeads * strides[0] + row % kHeads * strides[1])];
      const double value = core::float8_value(to[i], Float8::e4m3) * factor;
      EXPECT_LE(std::abs(value - x[i]),
                std::max(std::abs(x[i]) * 0x1p-4, factor * 0x1p-10) * 1.001);
    }
  };
  scales({0, 1}, 1);  // a head
  for (std::int64_t h = 0; h < kHeads; ++h) {
    EXPECT_EQ(scale[static_cast<std::size_t>(h)], static_cast<float>(largest(0, kRows, h) / 448));
  }
  scales({0, 0}, 1);  // all
  EXPECT_EQ(scale[0],
            static_cast<float>(std::max(largest(0, kRows, 0), largest(0, kRows, 1)) / 448));
  scales({kHeads, 1}, 3);  // rows 0 to 2, 3 and 4
  for (std::int64_t i = 0; i < kRows; ++i) {
    for (std::int64_t h = 0; h < kHeads; ++h) {
      const double most = i < 3 ? largest(0, 3, h) : largest(3, kRows, h);
      EXPECT_EQ(scale[static_cast<std::size_t>(i * kHeads + h)], static_cast<float>(most / 448));
    }
  }
}

// H D x by its definition: the entries of H, and the signs of the generator.
TEST(Quantize, RotationIsTheHadamardMatrixOverRandomSigns) {
  constexpr std::int64_t kDim = 24, kSize = 8;
  constexpr std::uint64_t kSeed = 1234567;
  std::mt19937 random(13);
  std::normal_distribution<double> normal;
  std::vector<double> x(kDim), got(kDim);
  for (double& value : x) value = normal(random);
  quantize(tensor(x.data(), {kDim}), CacheType::f64, tensor(got.data(), {kDim}), {},
           {.block = 1, .rotation = kSeed});
  // The first numbers of SplitMix64 that starts at 1234567, as its authors' code prints them.
  constexpr std::uint64_t kNumbers[] = {6457827717110365317u, 3203168211198807973u,
                                        9817491932198370423u, 4593380528125082431u,
                                        16408922859458223821u};
  for (std::int64_t i = 0; i < 5; ++i) {
    EXPECT_EQ(core::negates_column(kSeed, i), kNumbers[i] >> 63 != 0);
  }
  for (std::int64_t i = 0; i < kDim; ++i) {
    double sum = 0;
    for (std::int64_t j = i / kSize * kSize; j < (i / kSize + 1) * kSize; ++j) {
      const bool minus = std::popcount(static_cast<std::uint64_t>(i & j & (kSize - 1))) % 2 != 0;
      const double d = core::negates_column(kSeed, j) ? -1 : 1;
      sum += (minus ? -1 : 1) * d * x[static_cast<std::size_t>(j)];
    }
    EXPECT_NEAR(got[static_cast<std::size_t>(i)], sum / std::sqrt(double{kSize}), 1e-14);
  }
}

TEST(Quantize, RefusesByName) {
  std::vector<float> x(64, 1.0f), scale(2, 3.0f);
  std::vector<std::uint8_t> to(128, 7);
  const Tensor rows = tensor(x.data(), {2, 32});
  const auto refused = [&](const Tensor& from, CacheType type, const Tensor& into,
                           const Tensor& factors, const std::string& words) {
    try {
      quantize(from, type, into, factors);
      ADD_FAILURE() << "not refused: " << words;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
    }
    for (const std::uint8_t byte : to) ASSERT_EQ(byte, 7);
  };
  const auto bytes = [&](std::int64_t count) { return tensor(to.data(), {2, count}); };
  refused(rows, CacheType::as_q, bytes(32), {}, "type is as_q");
  refused(rows, CacheType::q8_0, bytes(32), {}, "to is u8[2, 32]");
  refused(tensor(x.data(), {4, 16}), CacheType::q8_0, bytes(17), {}, "multiples of 32");
  refused(rows, CacheType::i8, tensor(to.data(), {3, 32}), {}, "to is u8[3, 32]");
  refused(rows, CacheType::q8_0, bytes(34), tensor(scale.data(), {2}), "scale is f32[2]");
  refused(rows, CacheType::i8, bytes(32), tensor(scale.data(), {1}), "scale is f32[1]");
  refused({}, CacheType::i8, bytes(32), {}, "x ");
  const auto refused_block = [&](std::int64_t block, const Tensor& factors) {
    EXPECT_THROW(
        quantize(rows, CacheType::i8, bytes(32), factors, {.block = block, .rotation = {}}), Error);
    for (const std::uint8_t byte : to) ASSERT_EQ(byte, 7);
  };
  refused_block(0, tensor(scale.data(), {2}));
  refused_block(2, tensor(scale.data(), {2}));  // x has no heads
  EXPECT_EQ(scale, (std::vector<float>{3, 3}));
}

TEST(CacheTypes, AreWrittenAndReadInDescriptors) {
  for (const char* text : {"b1_sq1_sk9_h2_d64_kv(q8_0)_bf16", "b1_sq1_sk9_h2_d64_k(f16)_f32",
                           "b1_sq1_sk9_h2_d64_k(e4m3)_v(q4_0)_f16"}) {
    EXPECT_EQ(to_string(parse_problem(text)), text);
  }
}

}  // namespace
}  // namespace attn
