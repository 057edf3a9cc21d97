// The CPU kernels' evaluation over tiles against evaluate<float>, for every instruction set.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numbers>

#include "attn/context.hpp"
#include "attn/mask.hpp"
#include "core/expr/program.hpp"
#include "cpu/tile_ops.hpp"
#include "random_expr.hpp"

namespace attn {
namespace {

using expr::Expr;
using expr::TileContext;

constexpr float kPoison = std::numeric_limits<float>::quiet_NaN();

std::vector<const cpu::TileOps*> tables() {
  std::vector<const cpu::TileOps*> tables;
  for (const InstructionSetInfo& info : instruction_sets()) {
    if (info.available) tables.push_back(&cpu::tile_ops(info.isa, DType::f32));
  }
  return tables;
}

// A tile with its memory; scores beyond the last key are poisoned and must stay so.
struct TileOfScores {
  TileOfScores(test::RandomExpr& random, const cpu::TileOps& ops, const expr::BoundProgram& program)
      : scratch(program.scratch_floats() + 16, kPoison) {
    context.rows = ops.rows;
    context.keys = random.uniform(1, cpu::kBlockK);
    context.key0 = random.uniform(0, 5) == 0 ? random.any_int() : random.uniform(-3, 20);
    context.batch = random.uniform(0, 3);
    context.seqlen_q = random.uniform(0, 40);
    context.seqlen_k = random.uniform(0, 40);
    const std::int32_t first = random.uniform(0, 5) == 0 ? random.any_int() : random.uniform(-3, 9);
    for (int r = 0; r < context.rows; ++r) {
      query.push_back(static_cast<std::int32_t>(static_cast<std::uint32_t>(first) +
                                                static_cast<std::uint32_t>(r / 3)));
      head.push_back(r % 3);
    }
    context.query = query.data();
    context.head = head.data();
    auto address = reinterpret_cast<std::uintptr_t>(scratch.data());
    context.scratch = scratch.data() + (64 - address % 64) % 64 / sizeof(float);
    s.assign(elements(cpu::kBlockK), kPoison);
    for (std::size_t i = 0; i < elements(context.keys); ++i) {
      s[i] = static_cast<float>(random.real(-6, 6));
    }
  }

  expr::Point at(int key, int row) const {
    expr::Point point;
    point.score = s[index(key, row)];
    point.query = query[static_cast<std::size_t>(row)];
    point.head = head[static_cast<std::size_t>(row)];
    point.key = static_cast<std::int32_t>(static_cast<std::uint32_t>(context.key0) +
                                          static_cast<std::uint32_t>(key));
    point.batch = context.batch;
    point.seqlen_q = context.seqlen_q;
    point.seqlen_k = context.seqlen_k;
    return point;
  }
  std::size_t elements(int keys) const {
    return static_cast<std::size_t>(keys) * static_cast<std::size_t>(context.rows);
  }
  std::size_t index(int key, int row) const {
    return elements(key) + static_cast<std::size_t>(row);
  }

  std::vector<float> scratch, s;
  std::vector<std::int32_t> query, head;
  TileContext context;
};

bool same_float(float a, float b) { return a == b || (std::isnan(a) && std::isnan(b)); }

TEST(TileEvaluation, BooleansAndIntegersAreExact) {
  for (const cpu::TileOps* ops : tables()) {
    for (std::uint32_t seed = 1; seed <= 1500; ++seed) {
      test::RandomExpr random(seed);
      const bool boolean = seed % 2 == 0;
      // exp and the like may differ in the last place and flip a comparison: integers only.
      const Expr e = boolean
                         ? random.int32(4) <= random.int32(4) || random.int32(3) == random.int32(2)
                         : random.int32(5);
      const expr::BoundProgram program = expr::bind(expr::compile(e), {});
      TileOfScores tile(random, *ops, program);
      std::vector<float> out(tile.s.size(), kPoison);
      ops->evaluate(program, tile.context, tile.s.data(), out.data());
      std::vector<float> masked = tile.s;
      if (boolean) ops->apply_mask(program, tile.context, masked.data());
      for (int key = 0; key < cpu::kBlockK; ++key) {
        for (int row = 0; row < tile.context.rows; ++row) {
          const std::size_t i = tile.index(key, row);
          if (key >= tile.context.keys) {
            ASSERT_TRUE(std::isnan(out[i]) && std::isnan(masked[i])) << "written past the keys";
            continue;
          }
          const auto expected = evaluate<double>(e, tile.at(key, row));
          const auto value = std::bit_cast<std::int32_t>(out[i]);
          ASSERT_EQ(value, static_cast<std::int32_t>(boolean ? -expected : expected))
              << name(ops->isa) << " seed " << seed << " key " << key << " row " << row << ": "
              << to_string(e);
          if (boolean) {
            ASSERT_EQ(masked[i],
                      expected != 0 ? tile.s[i] : -std::numeric_limits<float>::infinity());
          }
        }
      }
    }
  }
}

// One rounding differs by at most 2 ulp; an expression that amplifies it is not comparable, so
// random expressions here use correctly rounded operations only, and every value must be equal.
bool has_approximate(const Expr& e) {
  constexpr expr::Op kApproximate[] = {expr::Op::exp, expr::Op::exp2, expr::Op::log, expr::Op::tanh,
                                       expr::Op::erf, expr::Op::sin,  expr::Op::cos};
  return std::any_of(std::begin(kApproximate), std::end(kApproximate),
                     [&](expr::Op op) { return depends_on(e, op); });
}

TEST(TileEvaluation, CorrectlyRoundedFloatsAreExact) {
  for (const cpu::TileOps* ops : tables()) {
    int compared = 0;
    for (std::uint32_t seed = 1; seed <= 5000; ++seed) {
      test::RandomExpr random(seed);
      const Expr e = random.float32(random.uniform(0, 5), true);
      if (has_approximate(e)) continue;
      ++compared;
      const expr::BoundProgram program = expr::bind(expr::compile(e), {});
      TileOfScores tile(random, *ops, program);
      std::vector<float> out(tile.s.size(), kPoison);
      ops->evaluate(program, tile.context, tile.s.data(), out.data());
      std::vector<float> in_place = tile.s;
      ops->evaluate_score(program, tile.context, in_place.data());
      for (int key = 0; key < cpu::kBlockK; ++key) {
        for (int row = 0; row < tile.context.rows; ++row) {
          const std::size_t i = tile.index(key, row);
          const float expected =
              key < tile.context.keys ? evaluate<float>(e, tile.at(key, row)) : kPoison;
          ASSERT_TRUE(same_float(out[i], expected) && same_float(in_place[i], expected))
              << name(ops->isa) << " seed " << seed << " key " << key << " row " << row << ": "
              << to_string(e) << " gives " << out[i] << " and " << in_place[i] << ", not "
              << expected;
        }
      }
    }
    EXPECT_GT(compared, 2000);
  }
}

// Error in units in the last place of the exact result.
double ulps(float value, double exact) {
  if (std::isnan(exact) || std::isinf(exact) || std::isnan(value)) {
    return std::isnan(exact) == std::isnan(value) && (std::isnan(exact) || value == exact) ? 0
                                                                                           : 1e9;
  }
  const auto rounded = static_cast<float>(exact);
  if (std::isinf(rounded)) return std::isinf(value) ? 0 : std::abs(value - exact) / 0x1p104;
  const float size = std::max(std::abs(rounded), std::numeric_limits<float>::min());
  const double ulp =
      static_cast<double>(std::nextafter(size, std::numeric_limits<float>::infinity())) - size;
  return std::abs(value - exact) / ulp;
}

TEST(TileEvaluation, FunctionsAreAccurate) {
  const auto& s = expr::symbols();
  struct Function {
    const char* name;
    Expr e;
    double (*exact)(double);
  };
  const Function functions[] = {{"exp", exp(s.score), [](double x) { return std::exp(x); }},
                                {"exp2", exp2(s.score), [](double x) { return std::exp2(x); }},
                                {"erf", erf(s.score), [](double x) { return std::erf(x); }},
                                {"sin", sin(s.score), [](double x) { return std::sin(x); }},
                                {"cos", cos(s.score), [](double x) { return std::cos(x); }},
                                {"log", log(s.score), [](double x) { return std::log(x); }},
                                {"tanh", tanh(s.score), [](double x) { return std::tanh(x); }},
                                {"sqrt", sqrt(s.score), [](double x) { return std::sqrt(x); }}};
  for (const cpu::TileOps* ops : tables()) {
    for (const Function& f : functions) {
      const expr::BoundProgram program = expr::bind(expr::compile(f.e), {});
      test::RandomExpr random(5);
      TileOfScores tile(random, *ops, program);
      tile.context.keys = cpu::kBlockK;
      double worst = 0;
      float worst_at = 0;
      std::uint32_t bits = 0;
      // Every float whose bits are a multiple of 4999, both signs, NaN and infinities included.
      while (bits < 0xffffffffu - 4999 * 2048u * 2) {
        for (float& x : tile.s) {
          x = std::bit_cast<float>(bits);
          bits += 4999;
        }
        std::vector<float> out(tile.s.size(), kPoison);
        ops->evaluate(program, tile.context, tile.s.data(), out.data());
        for (std::size_t i = 0; i < out.size(); ++i) {
          const double error = ulps(out[i], f.exact(static_cast<double>(tile.s[i])));
          if (error > worst) {
            worst = error;
            worst_at = tile.s[i];
          }
        }
      }
      RecordProperty(std::string(f.name) + "_" + std::string(name(ops->isa)),
                     std::to_string(worst));
      EXPECT_LE(worst, std::string_view(f.name) == "sqrt" ? 0.5 : 2.0)
          << f.name << " " << name(ops->isa) << " at " << worst_at;
      // Special values and the dense region around them.
      for (const float x : {0.0f,
                            -0.0f,
                            1.0f,
                            -1.0f,
                            0x1p-149f,
                            std::numeric_limits<float>::min(),
                            std::numeric_limits<float>::max(),
                            kPoison,
                            std::numeric_limits<float>::infinity(),
                            -std::numeric_limits<float>::infinity(),
                            88.72284f,
                            88.72283f,
                            -103.97f,
                            -103.98f,
                            127.99999f,
                            128.0f,
                            -126.0f,
                            -149.5f,
                            -150.5f,
                            0.5f,
                            0.9f,
                            0.89999998f,
                            3.9f,
                            -4.1f,
                            0.625f,
                            0x1.921fb6p0f,  // pi / 2, pi and the float nearest to a multiple
                            -0x1.921fb6p1f,
                            0x1.f9cbe2p+95f,
                            0x1p22f,
                            -0x1.000002p22f,
                            0.99999994f,
                            1.0000001f}) {
        std::fill(tile.s.begin(), tile.s.end(), x);
        std::vector<float> out(tile.s.size(), kPoison);
        ops->evaluate(program, tile.context, tile.s.data(), out.data());
        EXPECT_LE(ulps(out[0], f.exact(static_cast<double>(x))), 2.0)
            << f.name << " " << name(ops->isa) << "(" << x << ") = " << out[0];
      }
    }
  }
}

// What T5's buckets of relative positions change at.
TEST(TileEvaluation, LogarithmsOfPowersOfTwoAreRounded) {
  for (const cpu::TileOps* ops : tables()) {
    const expr::BoundProgram program = expr::bind(expr::compile(log(expr::symbols().score)), {});
    test::RandomExpr random(5);
    TileOfScores tile(random, *ops, program);
    tile.context.keys = cpu::kBlockK;
    std::vector<float> out(tile.s.size(), kPoison);
    for (int power = -126; power <= 127; ++power) {
      std::fill(tile.s.begin(), tile.s.end(), std::ldexp(1.0F, power));
      ops->evaluate(program, tile.context, tile.s.data(), out.data());
      ASSERT_EQ(out[0], static_cast<float>(power * std::numbers::ln2)) << name(ops->isa) << power;
    }
  }
}

// Of every float whose bits are a multiple of 4999, and of those around the ends.
TEST(TileEvaluation, FloorAndToIntAreExact) {
  std::vector<float> values;
  for (std::uint64_t bits = 0; bits <= 0xffffffffU; bits += 4999) {
    values.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(bits)));
  }
  for (const float end : {0.0F, 0x1p-149F, 1.0F, 2.0F, 0x1p+22F, 0x1p+23F, 0x1p+31F, 0x1p+32F,
                          std::numeric_limits<float>::infinity(), kPoison}) {
    for (const float x : {end, std::nextafter(end, 0.0F), std::nextafter(end, 1e38F)}) {
      values.insert(values.end(), {x, -x, x + 0.5F, -x - 0.5F});
    }
  }
  values.resize((values.size() + cpu::kBlockK - 1) / cpu::kBlockK * cpu::kBlockK);
  std::vector<float> block(cpu::kBlockK);
  const Expr x = expr::Buffer("x", tensor(block.data(), {cpu::kBlockK}))[expr::symbols().key];
  for (const cpu::TileOps* ops : tables()) {
    const expr::BoundProgram floors = expr::bind(expr::compile(floor(x)), {});
    const expr::BoundProgram integers = expr::bind(expr::compile(to_int(x)), {});
    test::RandomExpr random(5);
    TileOfScores tile(random, *ops, floors);
    tile.scratch.resize(tile.scratch.size() + integers.scratch_floats());
    auto address = reinterpret_cast<std::uintptr_t>(tile.scratch.data());
    tile.context.scratch = tile.scratch.data() + (64 - address % 64) % 64 / sizeof(float);
    tile.context.key0 = 0;
    tile.context.keys = cpu::kBlockK;
    for (std::size_t first = 0; first < values.size(); first += cpu::kBlockK) {
      std::copy_n(values.begin() + static_cast<std::ptrdiff_t>(first), cpu::kBlockK, block.begin());
      std::vector<float> floored(tile.s.size(), kPoison), truncated(tile.s.size(), kPoison);
      ops->evaluate(floors, tile.context, tile.s.data(), floored.data());
      ops->evaluate(integers, tile.context, tile.s.data(), truncated.data());
      for (int key = 0; key < cpu::kBlockK; ++key) {
        const std::size_t i = tile.index(key, 0);
        const float at = block[static_cast<std::size_t>(key)];
        const float lower = std::floor(at);
        ASSERT_TRUE(std::isnan(at) ? std::isnan(floored[i])
                                   : std::bit_cast<std::uint32_t>(floored[i]) ==
                                         std::bit_cast<std::uint32_t>(lower))
            << name(ops->isa) << " floor(" << at << ") = " << floored[i];
        const double whole = std::isnan(at) ? 0 : std::trunc(static_cast<double>(at));
        ASSERT_EQ(std::bit_cast<std::int32_t>(truncated[i]),
                  std::clamp(whole, -2147483648.0, 2147483647.0))
            << name(ops->isa) << " to_int(" << at << ")";
      }
    }
  }
}

TEST(TileEvaluation, Shorthands) {
  const auto& s = expr::symbols();
  std::mt19937 seeds(3);
  test::RandomExpr values(1);
  std::vector<float> slopes = alibi_slopes(3);
  std::vector<float> bias_values(2 * 3 * 48 * 80);
  for (float& x : bias_values) x = static_cast<float>(values.real(-2, 2));
  std::vector<bfloat16> narrow(bias_values.begin(), bias_values.end());
  std::vector<float16> half(bias_values.begin(), bias_values.end());
  Tensor transposed = tensor(bias_values.data(), {48, 80});
  transposed.strides = {1, 48};
  const std::vector<Expr> scores = {softcap(5),
                                    alibi(tensor(slopes.data(), {3})),
                                    bias(tensor(bias_values.data(), {48, 80})),
                                    bias(tensor(bias_values.data(), {2, 3, 48, 80})),
                                    bias(tensor(narrow.data(), {2, 3, 48, 80})),
                                    bias(tensor(half.data(), {1, 3, 1, 80})),
                                    bias(transposed),
                                    compose(softcap(3), alibi(tensor(slopes.data(), {3}))),
                                    0.5 * s.score * (1 + erf(s.score * std::sqrt(0.5))),
                                    s.score - exp2(-0.5 * (s.head + 1)) * abs(s.position - s.key),
                                    expr::derivative(softcap(5))};
  for (const cpu::TileOps* ops : tables()) {
    for (const Expr& e : scores) {
      const expr::BoundProgram program = expr::bind(expr::compile(e), {});
      for (int i = 0; i < 20; ++i) {
        test::RandomExpr random(static_cast<std::uint32_t>(seeds()));
        TileOfScores tile(random, *ops, program);
        tile.context.key0 = random.uniform(0, 60);  // past the end of the bias at times
        std::vector<float> out(tile.s.size(), kPoison);
        ops->evaluate(program, tile.context, tile.s.data(), out.data());
        for (int key = 0; key < tile.context.keys; ++key) {
          for (int row = 0; row < tile.context.rows; ++row) {
            const auto exact = evaluate<double>(e, tile.at(key, row));
            // A handful of roundings of values up to a few times the result and the score.
            const double size = std::abs(exact) + std::abs(tile.s[tile.index(key, row)]) + 1;
            ASSERT_NEAR(out[tile.index(key, row)], exact, 8 * 0x1p-24 * size)
                << name(ops->isa) << ": " << to_string(e) << " key " << key << " row " << row;
          }
        }
      }
    }
  }
}

TEST(Program, SharesCommonSubexpressions) {
  const auto& s = expr::symbols();
  const Expr t = tanh(s.score / 8);
  const expr::Program program = expr::compile(t * t + tanh(s.score / 8.0));
  EXPECT_EQ(program.instructions.size(), 6U);  // 8, score, /, tanh, *, +
  // A tree of 2^12 leaves in which all is shared.
  Expr doubled = s.score;
  for (int i = 0; i < 12; ++i) doubled = doubled * doubled;
  EXPECT_EQ(expr::compile(doubled).instructions.size(), 13U);
  // Chains reuse the memory of what is no longer needed.
  Expr chain = s.score;
  for (int i = 0; i < 100; ++i) chain = tanh(chain);
  EXPECT_LE(expr::compile(chain).scratch_floats, std::size_t{2048});
}

TEST(Program, KnowsWhatValuesDependOn) {
  const auto& s = expr::symbols();
  using expr::Dependence;
  const auto dependence = [](const Expr& e) {
    return expr::compile(e).instructions.back().dependence;
  };
  EXPECT_EQ(dependence(s.seqlen_k - s.batch * 3), Dependence::uniform);
  EXPECT_EQ(dependence(s.query + s.head * s.seqlen_k), Dependence::row);
  EXPECT_EQ(dependence(s.key / 64), Dependence::key);
  EXPECT_EQ(dependence(s.key <= s.query), Dependence::full);
  EXPECT_EQ(dependence(s.score), Dependence::full);
}

}  // namespace
}  // namespace attn
