// append_kv against its fp64 definition, on random calls, and what it promises about what it does
// not write.
#include "attn/append_kv.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "attn/error.hpp"
#include "attn/run.hpp"
#include "conformance/append_judge.hpp"
#include "conformance/support.hpp"

namespace attn {
namespace {

using testing::AppendCase;
using testing::Owned;

void check(std::uint64_t seed, Backend backend, const Context& context) {
  AppendCase c(seed);
  c.problem.backend = backend;
  SCOPED_TRACE("seed " + std::to_string(seed) + ' ' + std::string(name(backend)) + ' ' +
               std::string(name(context.isa)) + ": " + c.text());
  append_kv(c.problem, c.in, c.out, context);
  testing::judge(c, backend == Backend::reference);
}

TEST(AppendKv, AgreesWithTheDefinitionInRandomCalls) {
  const std::vector<InstructionSet> sets = verify::available_instruction_sets();
  const std::uint64_t first = std::random_device()(), count = verify::quick() ? 100 : 600;
  for (std::uint64_t i = 0; i < count && !HasFailure(); ++i) {
    Context context;
    context.isa = sets[i % sets.size()];
    check(first + i, Backend::cpu, context);
    if (i % 4 == 0) check(first + i, Backend::reference, {});
  }
}

TEST(AppendKv, GivesTheSameBitsOnAnyNumberOfThreads) {
  const std::uint64_t first = std::random_device()();
  Context one, three;
  one.executor = make_thread_pool(1);
  three.executor = make_thread_pool(3);
  for (std::uint64_t seed = first; seed < first + 40; ++seed) {
    AppendCase a(seed), b(seed);
    append_kv(a.problem, a.in, a.out, one);
    append_kv(b.problem, b.in, b.out, three);
    EXPECT_TRUE(a.to_q.memory == b.to_q.memory && a.to_k.memory == b.to_k.memory &&
                a.to_v.memory == b.to_v.memory && a.scale_k.memory == b.scale_k.memory &&
                a.scale_v.memory == b.scale_v.memory)
        << "seed " << seed << ": " << a.text();
  }
}

// Keys and queries of a small model, appended to a cache of a type.
struct Model {
  static constexpr std::int64_t kTokens = 60, kHeads = 4, kHeadsK = 2, kDim = 64;
  Owned q{DType::f32, {1, kTokens, kHeads, kDim}}, k{DType::f32, {1, kTokens, kHeadsK, kDim}},
      v{DType::f32, {1, kTokens, kHeadsK, kDim}}, to_q = q, frequencies{DType::f32, {kDim / 2}};

  Model() {
    std::mt19937 random(3);
    std::normal_distribution<float> normal;
    for (Owned* t : {&q, &k, &v}) {
      for (std::int64_t i = 0; i < t->view.size(); ++i) {
        static_cast<float*>(t->view.data)[i] = normal(random);
      }
    }
    for (std::int64_t i = 0; i < kDim / 2; ++i) {
      static_cast<float*>(frequencies.view.data)[i] =
          std::pow(10000.0f, -static_cast<float>(2 * i) / kDim);
    }
  }
  static Tensor tokens(const Tensor& t, std::int64_t first, std::int64_t count) {
    Tensor part = t;
    part.shape[1] = count;
    part.data = static_cast<float*>(t.data) + first * t.strides[1];
    return part;
  }
  // Rows [first, first + count) into caches that hold `first` keys.
  void append(AppendProblem problem, const Owned& cache_k, const Owned& cache_v, std::int64_t first,
              std::int64_t count) {
    auto length = static_cast<std::int32_t>(first);
    append_kv(problem,
              {.q = tokens(q.view, first, count),
               .k = tokens(k.view, first, count),
               .v = tokens(v.view, first, count),
               .cache_seqlens = tensor(&length, {1}),
               .inv_freq = frequencies.view},
              {.q = tokens(to_q.view, first, count), .k = cache_k.view, .v = cache_v.view});
  }
};

Owned cache_of(CacheType type, std::int64_t rows) {
  return {storage_dtype(type), {1, rows, Model::kHeadsK, row_size(type, Model::kDim)}};
}

TEST(AppendKv, ARowHasTheSameBitsInEveryCall) {
  for (const CacheType type : {CacheType::f32, CacheType::bf16, CacheType::q8_0}) {
    Model model;
    const AppendProblem problem{
        .type_k = type, .type_v = type, .norm = true, .hadamard = true, .hadamard_v = true};
    Owned k = cache_of(type, Model::kTokens), v = k, k2 = k, v2 = k;
    model.append(problem, k, v, 0, Model::kTokens);
    const Owned q = model.to_q;
    for (std::int64_t first = 0, count = 1; first < Model::kTokens; first += count, count += 3) {
      model.append(problem, k2, v2, first, std::min(count, Model::kTokens - first));
    }
    EXPECT_TRUE(k.memory == k2.memory && v.memory == v2.memory);
    EXPECT_TRUE(q.memory == model.to_q.memory);
  }
}

// Attention sees a cache that was appended to, rotated or not, as the keys and values themselves:
// H leaves scores alone, and O of a rotated V is turned back by the same call.
TEST(AppendKv, FeedsAttention) {
  Model model;
  Owned k = cache_of(CacheType::f32, Model::kTokens), v = k, k2 = k, v2 = k;
  model.append({}, k, v, 0, Model::kTokens);
  Owned o = model.q, o2 = model.q;
  const Problem causal = parse_problem("causal");
  forward(causal, {.q = model.to_q.view, .k = k.view, .v = v.view}, {.o = o.view});
  model.append({.hadamard = true, .hadamard_v = true}, k2, v2, 0, Model::kTokens);
  forward(causal, {.q = model.to_q.view, .k = k2.view, .v = v2.view}, {.o = o2.view});
  append_kv({.hadamard = true}, {.q = o2.view}, {.q = o2.view});
  for (std::int64_t i = 0; i < o.view.size(); ++i) {
    ASSERT_NEAR(static_cast<float*>(o.view.data)[i], static_cast<float*>(o2.view.data)[i], 2e-5);
  }
  EXPECT_FALSE(k.memory == k2.memory);
}

TEST(AppendKv, OfAPromptLongerThanTheRingTheLastRowsStay) {
  Model model;
  constexpr std::int64_t kRing = 16;
  Owned k = cache_of(CacheType::f32, kRing), v = cache_of(CacheType::f32, kRing),
        all_k = cache_of(CacheType::f32, Model::kTokens),
        all_v = cache_of(CacheType::f32, Model::kTokens);
  model.append({.ring = true}, k, v, 0, Model::kTokens);
  model.append({}, all_k, all_v, 0, Model::kTokens);
  for (std::int64_t p = Model::kTokens - kRing; p < Model::kTokens; ++p) {
    const std::size_t bytes = sizeof(float) * Model::kHeadsK * Model::kDim;
    EXPECT_EQ(std::memcmp(k.at({0, p % kRing, 0, 0}), all_k.at({0, p, 0, 0}), bytes), 0) << p;
    EXPECT_EQ(std::memcmp(v.at({0, p % kRing, 0, 0}), all_v.at({0, p, 0, 0}), bytes), 0) << p;
  }
}

// Angles of any size: of pairs (1, 0) the results are cosine and sine, rounded once.
TEST(AppendKv, RotatesByAnyAngle) {
  std::mt19937_64 random(std::random_device{}());
  std::uniform_real_distribution<float> exponent(-20, 3);
  constexpr std::int64_t kDim = 128, kPairs = kDim / 2;
  for (int turn = 0; turn < 200; ++turn) {
    const std::int64_t position =
        static_cast<std::int64_t>(random() >> (2 + random() % 62)) * (turn % 2 == 0 ? 1 : -1);
    const std::int64_t none = 0;
    std::vector<float> frequencies(kPairs), q(kDim, 0.0f), to(kDim, NAN);
    for (float& x : frequencies) x = std::exp2(exponent(random));
    frequencies[1] = static_cast<float>(std::acos(-1.0)) / 2;  // multiples of right angles
    std::fill_n(q.begin(), kPairs, 1.0f);
    append_kv({},
              {.q = tensor(q.data(), {1, 1, 1, kDim}),
               .positions = tensor(&none, {1, 1}),
               .rope_positions = tensor(&position, {1, 1}),
               .inv_freq = tensor(frequencies.data(), {kPairs})},
              {.q = tensor(to.data(), {1, 1, 1, kDim})});
    for (std::int64_t i = 0; i < kPairs; ++i) {
      const auto at = static_cast<std::size_t>(i);
      const double angle = static_cast<double>(position) * double{frequencies[at]};
      ASSERT_NEAR(to[at], std::cos(angle), 0x1.01p-25) << position << " * " << frequencies[at];
      ASSERT_NEAR(to[at + kPairs], std::sin(angle), 0x1.01p-25)
          << position << " * " << frequencies[at];
    }
  }
}

// One layer of an engine's cache [layers, K or V, pages, page_size, heads, dim] is a view of it,
// and a slot mapping is positions in one sequence of all rows.
TEST(AppendKv, WritesOneLayerOfACacheOfAllByItsSlots) {
  constexpr std::int64_t kSlots = 12, kHeads = 2, kDim = 8, kLayers = 3, kLayer = 1;
  std::vector<bfloat16> cache(kLayers * 2 * kSlots * kHeads * kDim, bfloat16(-1));
  std::vector<bfloat16> k(3 * kHeads * kDim), v(k.size());
  for (std::size_t i = 0; i < k.size(); ++i) {
    k[i] = bfloat16(static_cast<float>(i));
    v[i] = bfloat16(static_cast<float>(i) + 100);
  }
  const auto side = [&](std::int64_t of) {
    return tensor(cache.data() + (kLayer * 2 + of) * kSlots * kHeads * kDim,
                  {1, kSlots, kHeads, kDim});
  };
  std::vector<std::int32_t> slots{7, -1, 2};
  append_kv({},
            {.k = tensor(k.data(), {1, 3, kHeads, kDim}),
             .v = tensor(v.data(), {1, 3, kHeads, kDim}),
             .positions = tensor(slots.data(), {1, 3})},
            {.k = side(0), .v = side(1)});
  for (std::int64_t layer = 0; layer < kLayers; ++layer) {
    for (std::int64_t slot = 0; slot < kSlots; ++slot) {
      const std::int64_t token = layer != kLayer ? -1 : slot == 7 ? 0 : slot == 2 ? 2 : -1;
      for (std::int64_t i = 0; i < kHeads * kDim; ++i) {
        const auto at = [&](std::int64_t of) {
          return static_cast<float>(cache[static_cast<std::size_t>(
              ((layer * 2 + of) * kSlots + slot) * kHeads * kDim + i)]);
        };
        const auto expected = static_cast<float>(token * kHeads * kDim + i);
        ASSERT_EQ(at(0), token < 0 ? -1 : expected);
        ASSERT_EQ(at(1), token < 0 ? -1 : expected + 100);
      }
    }
  }
}

}  // namespace
}  // namespace attn
