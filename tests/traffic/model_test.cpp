// Models of bytes against runs that count element by element.
#include "traffic/model.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <random>

#include "attn/error.hpp"
#include "brute_force.hpp"
#include "traffic/cache.hpp"

namespace attn::traffic {
namespace {

constexpr Algorithm kModelled[] = {Algorithm::standard, Algorithm::flash_attention,
                                   Algorithm::flash_attention_2, Algorithm::block_sparse};
constexpr Phase kPhases[] = {Phase::forward, Phase::backward};

Counts brute(const Shape& shape, Phase phase, Algorithm algorithm) {
  const bool backward = phase == Phase::backward;
  if (algorithm == Algorithm::standard) {
    return backward ? brute_standard_backward(shape) : brute_standard_forward(shape);
  }
  if (algorithm == Algorithm::flash_attention_2) return brute_flash_2(shape, backward);
  return brute_flash(shape, backward, algorithm == Algorithm::block_sparse);
}

struct Drawn {
  Problem problem;
  Blocks blocks;
};

// Masks whose bounds are exact on every tile, so that "proven empty" is "empty".
Drawn draw(std::mt19937& random) {
  const auto below = [&](std::uint32_t limit) {
    return static_cast<std::int64_t>(random() % limit);
  };
  const std::int64_t n_q = 1 + below(40);
  const std::int64_t n_k = 1 + below(40);
  const std::string masks[] = {"", "_causal", "_causaltl", "_window5x2", "_prefix3"};
  const std::string dtypes[] = {"f32", "bf16"};
  const std::int64_t heads_k = 1 + below(2);
  const std::string text = fmt::format("b{}_sq{}_sk{}_hq{}_hk{}_d{}_dv{}{}_{}", 1 + below(2), n_q,
                                       n_k, heads_k * (1 + below(2)), heads_k, 1 + below(9),
                                       1 + below(9), masks[below(5)], dtypes[below(2)]);
  return {parse_problem(text), {1 + below(n_q < 40 ? 12 : 50), 1 + below(12)}};
}

Shape shape_of(const Drawn& drawn) {
  const Problem& p = drawn.problem;
  const auto sees = [p](std::int64_t i, std::int64_t j) {
    if (p.mask.empty()) return true;
    return expr::evaluate<float>(p.mask, {.query = static_cast<std::int32_t>(i),
                                          .key = static_cast<std::int32_t>(j),
                                          .seqlen_q = static_cast<std::int32_t>(p.seqlen_q),
                                          .seqlen_k = static_cast<std::int32_t>(p.seqlen_k)}) != 0;
  };
  return {p.seqlen_q, p.seqlen_k, p.head_dim, p.head_dim_v, drawn.blocks.q, drawn.blocks.k, sees};
}

// Elements of one head, times the heads, as bytes.
Traffic bytes_of(const Problem& p, const Counts& counts) {
  Traffic traffic;
  for (std::size_t i = 0; i < kOperands; ++i) {
    const auto operand = static_cast<Operand>(i);
    const auto each = static_cast<double>(element_bytes(p, operand) * p.batch * p.heads_q);
    const std::string name(traffic::name(operand));
    if (counts.loaded.count(name) != 0) traffic[operand].read = each * counts.loaded.at(name);
    if (counts.stored.count(name) != 0) traffic[operand].written = each * counts.stored.at(name);
  }
  return traffic;
}

void expect_same(const Traffic& got, const Traffic& expected) {
  for (std::size_t i = 0; i < kOperands; ++i) {
    const auto operand = static_cast<Operand>(i);
    EXPECT_EQ(got[operand].read, expected[operand].read) << name(operand);
    EXPECT_EQ(got[operand].written, expected[operand].written) << name(operand);
  }
}

TEST(Model, EqualsARunThatCounts) {
  std::mt19937 random(1);
  for (int i = 0; i < 500; ++i) {
    const Drawn drawn = draw(random);
    for (const Phase phase : kPhases) {
      for (const Algorithm algorithm : kModelled) {
        SCOPED_TRACE(fmt::format("{} {} {} blocks {} x {}", to_string(drawn.problem), name(phase),
                                 name(algorithm), drawn.blocks.q, drawn.blocks.k));
        const Traffic expected = bytes_of(drawn.problem, brute(shape_of(drawn), phase, algorithm));
        EXPECT_GT(expected.bytes(), 0);
        expect_same(model(drawn.problem, phase, algorithm, drawn.blocks), expected);
        if (::testing::Test::HasFailure()) return;
      }
    }
  }
}

// The walk without a cache moves what the model says; that of standard attention with a cache that
// holds everything during a step.
TEST(Model, EqualsItsWalk) {
  std::mt19937 random(2);
  for (int i = 0; i < 300; ++i) {
    Drawn drawn = draw(random);
    drawn.problem.dtype = DType::f32;  // a line is an element
    for (const Phase phase : kPhases) {
      for (const Algorithm algorithm : kModelled) {
        SCOPED_TRACE(fmt::format("{} {} {} blocks {} x {}", to_string(drawn.problem), name(phase),
                                 name(algorithm), drawn.blocks.q, drawn.blocks.k));
        const bool standard = algorithm == Algorithm::standard;
        Traffic sum;
        for_each_head(drawn.problem, [&](std::int64_t b, std::int64_t h, double weight) {
          Cache cache(drawn.problem, drawn.blocks,
                      {.bytes = standard ? std::int64_t{1} << 30 : 0, .line_bytes = 4}, standard);
          walk(drawn.problem, phase, algorithm, drawn.blocks, b, h, cache);
          Traffic of_head = cache.finish();
          of_head[Operand::scratch] = {};
          of_head *= weight;
          sum += of_head;
        });
        expect_same(sum, model(drawn.problem, phase, algorithm, drawn.blocks));
        if (::testing::Test::HasFailure()) return;
      }
    }
  }
}

// Elements of a head as docs/io.md and model.hpp print them.
TEST(Model, HasThePapersConstants) {
  const Problem p = parse_problem("b1_n1024_h1_d64_f32");
  const double n = 1024, d = 64, t = 8;  // blocks of 128
  const auto elements = [&](Phase phase, Algorithm algorithm) {
    return model(p, phase, algorithm, {128, 128}).bytes() / 4;
  };
  EXPECT_EQ(elements(Phase::forward, Algorithm::standard), 4 * n * d + 4 * n * n);
  EXPECT_EQ(elements(Phase::backward, Algorithm::standard), 8 * n * d + 7 * n * n);
  EXPECT_EQ(elements(Phase::forward, Algorithm::flash_attention),
            3 * n * d + 2 * n + t * (3 * n * d + 4 * n));
  EXPECT_EQ(elements(Phase::backward, Algorithm::flash_attention),
            7 * n * d + t * (5 * n * d + 2 * n));
  EXPECT_EQ(elements(Phase::forward, Algorithm::flash_attention_2), 2 * n * d + n + t * 2 * n * d);
  EXPECT_EQ(elements(Phase::backward, Algorithm::flash_attention_2),
            7 * n * d + n + t * (4 * n * d + 2 * n));
  EXPECT_EQ(model_flops(p, Phase::forward, Algorithm::standard, {128, 128}), 4 * n * n * d);
  EXPECT_EQ(model_flops(p, Phase::backward, Algorithm::standard, {128, 128}), 8 * n * n * d);
  EXPECT_EQ(model_flops(p, Phase::backward, Algorithm::flash_attention, {128, 128}),
            10 * n * n * d);
}

// Figure 2's size: batch 64, 16 heads, n 1024, d 64 in f16. 25.2 GB in standard attention and 3.70
// in FlashAttention with B_c 128 (computed by hand from the formulas above).
TEST(Model, OfTheSizeOfFigure2) {
  const Problem p = parse_problem("b64_n1024_h16_d64_f16");
  const double standard = model(p, Phase::forward, Algorithm::standard, {64, 128}).bytes() +
                          model(p, Phase::backward, Algorithm::standard, {64, 128}).bytes();
  EXPECT_NEAR(standard * 1e-9, 25.2, 0.05);
  const double flash = model(p, Phase::forward, Algorithm::flash_attention, {64, 128}).bytes();
  EXPECT_NEAR(flash * 1e-9, 3.70, 0.1);  // by hand with l and m as f16
}

TEST(Model, CompulsoryIsBelow) {
  std::mt19937 random(3);
  for (int i = 0; i < 100; ++i) {
    const Drawn drawn = draw(random);
    if (!drawn.problem.mask.empty()) continue;  // skipped tiles may skip inputs
    for (const Phase phase : kPhases) {
      for (const Algorithm algorithm : kModelled) {
        // Standard attention's backward pass reads P in the place of K, Q and LSE.
        if (algorithm == Algorithm::standard && phase == Phase::backward) continue;
        EXPECT_LE(compulsory(drawn.problem, phase).bytes(),
                  model(drawn.problem, phase, algorithm, drawn.blocks).bytes() +
                      4.0 * static_cast<double>(drawn.problem.batch * drawn.problem.heads_q *
                                                drawn.problem.seqlen_q))
            << to_string(drawn.problem) << name(algorithm);
      }
    }
  }
}

TEST(Model, RefusesOthers) {
  const Problem p = parse_problem("b1_n64_h1_d8_f32");
  for (const Algorithm algorithm :
       {Algorithm::automatic, Algorithm::flash_decoding, Algorithm::memory_efficient}) {
    EXPECT_FALSE(is_modelled(algorithm));
    EXPECT_THROW(model(p, Phase::forward, algorithm, {8, 8}), Error);
  }
}

TEST(PaperBlocks, FollowLine1) {
  const Problem p = parse_problem("b1_n4096_h1_d64_f32");
  EXPECT_EQ(paper_blocks(p, Phase::forward, Algorithm::flash_attention, 102400), (Blocks{64, 100}));
  EXPECT_EQ(paper_blocks(p, Phase::forward, Algorithm::flash_attention_2, 102400),
            (Blocks{100, 64}));
  EXPECT_EQ(paper_blocks(p, Phase::backward, Algorithm::flash_attention_2, 102400),
            (Blocks{64, 100}));
  EXPECT_EQ(paper_blocks(p, Phase::forward, Algorithm::flash_attention, 1), (Blocks{1, 1}));
  EXPECT_EQ(paper_blocks(p, Phase::forward, Algorithm::flash_attention, 1 << 30),
            (Blocks{64, 4096}));
}

}  // namespace
}  // namespace attn::traffic
