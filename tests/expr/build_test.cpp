// Building trees: types, errors, folding, simplification, substitution.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <type_traits>

#include "attn/error.hpp"
#include "attn/mask.hpp"
#include "attn/scalar.hpp"
#include "random_expr.hpp"

namespace attn {
namespace {

using expr::Buffer;
using expr::Expr;
using expr::Type;

constexpr const void* kNothing = nullptr;

template <class Build>
std::string refusal_of(Build build) {
  try {
    build();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    return error.what();
  }
  return "(no error)";
}

TEST(Build, LiteralsKeepTheirType) {
  EXPECT_EQ(Expr(true).type(), Type::boolean);
  EXPECT_EQ(Expr(1).type(), Type::int32);
  EXPECT_EQ(Expr(1.0F).type(), Type::float32);
  EXPECT_EQ(Expr(1.0).type(), Type::float32);
  EXPECT_FALSE((std::is_convertible_v<const char*, Expr>));
  EXPECT_FALSE((std::is_convertible_v<int*, Expr>));
  EXPECT_FALSE((std::is_convertible_v<Expr, bool>));
  EXPECT_FALSE((std::is_constructible_v<bool, Expr>));
}

TEST(Build, Types) {
  const auto& s = expr::symbols();
  EXPECT_EQ(s.score.type(), Type::float32);
  EXPECT_EQ(s.query.type(), Type::int32);
  EXPECT_EQ((s.query + s.key).type(), Type::int32);
  EXPECT_EQ((s.query + s.score).type(), Type::float32);
  EXPECT_EQ((s.query < s.score).type(), Type::boolean);
  EXPECT_EQ((s.query == s.key).type(), Type::boolean);
  EXPECT_EQ(((s.query < 1) == (s.key < 1)).type(), Type::boolean);
  EXPECT_EQ(tanh(s.query).type(), Type::float32);
  EXPECT_EQ(abs(s.query).type(), Type::int32);
  EXPECT_EQ(to_float(s.query).type(), Type::float32);
  EXPECT_EQ(floor(0.5F * to_float(s.query)).type(), Type::float32);
  EXPECT_EQ(floor(s.query).type(), Type::float32);
  EXPECT_EQ(to_int(0.5F * to_float(s.query)).type(), Type::int32);
  EXPECT_EQ(to_int(s.query).type(), Type::int32);
  // An int32 stays as it is, whatever it depends on.
  EXPECT_EQ(to_int(select(s.score < 1, 1, 2)).type(), Type::int32);
  EXPECT_EQ(select(s.key < 1, 1, 2.5).type(), Type::float32);
  EXPECT_EQ(select(s.key < 1, s.query < 2, true).type(), Type::boolean);
}

TEST(Build, ErrorsPrintTheOperands) {
  const auto& s = expr::symbols();
  const Expr flag = s.query < s.key;
  EXPECT_EQ(refusal_of([&] { flag + 3; }),
            "expression '+' of 'query < key' (boolean) and '3' (int32): accepts int32 and float32");
  EXPECT_EQ(refusal_of([&] { s.score % 3; }),
            "expression '%' of 'score' (float32) and '3' (int32): accepts int32");
  EXPECT_EQ(refusal_of([&] { flag& flag; }),
            "expression '&' of 'query < key' (boolean) and 'query < key' (boolean): accepts int32");
  EXPECT_EQ(refusal_of([&] { s.query << s.score; }),
            "expression '<<' of 'query' (int32) and 'score' (float32): accepts int32");
  EXPECT_EQ(refusal_of([&] { s.query&& flag; }),
            "expression '&&' of 'query' (int32) and 'query < key' (boolean): accepts boolean");
  EXPECT_EQ(refusal_of([&] { !s.score; }), "expression '!' of 'score' (float32): accepts boolean");
  EXPECT_EQ(refusal_of([&] { tanh(flag); }),
            "expression 'tanh' of 'query < key' (boolean): accepts int32 and float32");
  EXPECT_EQ(refusal_of([&] { to_float(flag); }),
            "expression 'to_float' of 'query < key' (boolean): accepts int32 and float32");
  EXPECT_EQ(refusal_of([&] { to_int(flag); }),
            "expression 'to_int' of 'query < key' (boolean): accepts int32 and float32");
  const std::string of_score =
      "accepts what does not depend on score, which each kernel rounds in its own way: one next to "
      "an integer would become either of its neighbours";
  EXPECT_EQ(refusal_of([&] { floor(2 * s.score); }),
            "expression 'floor' of '2.0 * score' (float32): " + of_score);
  EXPECT_EQ(refusal_of([&] { to_int(select(s.score < 1, 1.5F, 2)); }),
            "expression 'to_int' of 'select(score < 1.0, 1.5, 2.0)' (float32): " + of_score);
  EXPECT_NE(refusal_of([&] { trunc(s.score); }).find(of_score), std::string::npos);
  EXPECT_NE(refusal_of([&] { ceil(s.score); }).find(of_score), std::string::npos);
  EXPECT_EQ(
      refusal_of([&] { static_cast<void>(flag == 1); }),
      "expression '==' of 'query < key' (boolean) and '1' (int32): accepts two numbers or two "
      "booleans");
  EXPECT_EQ(
      refusal_of([&] { select(s.query, 1, 2); }),
      "expression 'select' of 'query' (int32), '1' (int32) and '2' (int32): accepts a boolean "
      "condition, then two numbers or two booleans");
  EXPECT_EQ(refusal_of([&] { select(flag, 1, flag); }),
            "expression 'select' of 'query < key' (boolean), '1' (int32) and 'query < key' "
            "(boolean): accepts a boolean condition, then two numbers or two booleans");
  EXPECT_EQ(refusal_of([&] { static_cast<void>(flag < flag); }),
            "expression '<' of 'query < key' (boolean) and 'query < key' (boolean): accepts int32 "
            "and float32");
  EXPECT_EQ(refusal_of([&] { s.query + Expr(); }),
            "expression '+': an operand is an empty Expr; every operand must be given");
  EXPECT_EQ(refusal_of([] { Expr().type(); }), "expression: an empty Expr has no type; give one");
}

TEST(Build, BuffersAreChecked) {
  const auto& s = expr::symbols();
  const float data[4] = {};
  const Tensor vector = tensor(data, {4});
  for (const char* name : {"", "1x", "a b", "score", "tanh", "true", "nan", "a-b", "\xc3\xa9"}) {
    EXPECT_NE(refusal_of([&] { Buffer(name, vector); }), "(no error)") << name;
  }
  EXPECT_NE(refusal_of([&] { Buffer(std::string(65, 'a'), vector); }), "(no error)");
  EXPECT_EQ(refusal_of([&] { Buffer(std::string(64, 'a'), vector); }), "(no error)");
  EXPECT_EQ(refusal_of([&] {
              Tensor five = vector;
              five.rank = 5;
              Buffer("x", five);
            }),
            "buffer 'x': rank 5; accepted are 0 to 4");
  EXPECT_EQ(refusal_of([&] { Buffer("x", tensor(kNothing, DType::f64, {4})); }),
            "buffer 'x': dtype f64; accepted are f32, bf16, f16, i32 and u8");
  const Buffer x("x", vector);
  EXPECT_EQ(refusal_of([&] {
              x({s.query, s.key});
            }),
            "expression buffer 'x': 2 indices given, its rank is 1");
  EXPECT_EQ(refusal_of([&] { x[s.score]; }),
            "expression buffer 'x': index 'score' (float32) given, indices must be int32");
  EXPECT_NE(refusal_of([&] { x[Expr()]; }), "(no error)");
  EXPECT_EQ(x[s.key].type(), Type::float32);
  EXPECT_EQ(Buffer("u", tensor(kNothing, DType::u8, {4}))[s.key].type(), Type::int32);
  // Neither described nor bound: an error when it is read, not a crash.
  const Expr unbound = Buffer("x", tensor(kNothing, DType::f32, {4}))[s.key];
  EXPECT_EQ(refusal_of([&] { evaluate<float>(unbound, {}); }),
            "buffer 'x': no data; bind a tensor to this name when the problem runs");
  EXPECT_EQ(evaluate<float>(unbound, {}, {{"x", vector}}), 0.0F);
  EXPECT_NE(refusal_of([&] {
              evaluate<float>(unbound, {}, {{"x", tensor(data, {2, 2})}});
            }),
            "(no error)");
  const std::int32_t numbers[4] = {};
  EXPECT_NE(refusal_of([&] {
              evaluate<float>(unbound, {}, {{"x", tensor(numbers, {4})}});
            }),
            "(no error)");
  // One name, two tensors.
  const float other[4] = {};
  EXPECT_NE(refusal_of([&] { buffers(x[s.key] + Buffer("x", tensor(other, {4}))[s.key]); }),
            "(no error)");
  EXPECT_EQ(buffers(x[s.key] + x[s.query]).size(), 1U);
}

TEST(Build, Scalars) {
  const auto& s = expr::symbols();
  const Expr window = expr::scalar("w", 5);
  EXPECT_EQ(window.type(), Type::int32);
  EXPECT_EQ(expr::scalar("x", 0.5).type(), Type::float32);
  EXPECT_EQ(expr::scalar("x", 5L).type(), Type::int32);
  const Expr mask = s.query - s.key < window;
  const expr::Point at{.query = 6, .key = 1};
  EXPECT_EQ(evaluate<float>(mask, at), 0);
  // Another value at a call.
  std::int32_t six = 6;
  const expr::Bindings bound = {{"w", tensor(&six, {})}};
  EXPECT_EQ(evaluate<float>(mask, at, bound), 1);
  const expr::Tile tile{.query_max = 5, .key_max = 0};
  EXPECT_EQ(classify(mask, tile), expr::Coverage::mixed);
  EXPECT_EQ(classify(mask, tile, bound), expr::Coverage::full);
  six = 0;
  EXPECT_EQ(classify(mask, tile, bound), expr::Coverage::empty);
  // One value under a name; trees are the same whatever it is.
  EXPECT_EQ(buffers(window + expr::scalar("w", 5)).size(), 1U);
  EXPECT_NE(refusal_of([&] { buffers(window + expr::scalar("w", 6)); }), "(no error)");
  EXPECT_TRUE(same(window, expr::scalar("w", 6)));
  EXPECT_FALSE(same(window, expr::scalar("w", 5.0)));
  EXPECT_EQ(to_string(mask), "query - key < w");
  EXPECT_TRUE(same(expr::parse("query-key<w", {*window.node().buffer}), mask));
  EXPECT_EQ(to_cuda(mask), "(attn_sub(query, key) < scalar_w.value)");
  EXPECT_EQ(to_string(derivative(s.score * expr::scalar("x", 0.5))), "x");

  EXPECT_EQ(refusal_of([&] { expr::scalar("w", s.key); }),
            "scalar 'w' of value 'key'; accepted is a number");
  EXPECT_EQ(refusal_of([&] { expr::scalar("w", true); }),
            "scalar 'w' of value 'true'; accepted is a number");
  EXPECT_NE(refusal_of([&] { expr::scalar("key", 1); }), "(no error)");
  const std::uint8_t byte = 1;
  EXPECT_EQ(refusal_of([&] { Buffer("w", tensor(&byte, {})); }),
            "buffer 'w': a scalar of u8 on cpu; accepted are i32 and f32 on the CPU");
  alignas(4) const std::uint8_t bytes[8] = {};
  Tensor odd = tensor(bytes + 1, {});
  odd.dtype = DType::i32;
  const std::string refused = refusal_of([&] { Buffer("w", odd); });
  EXPECT_TRUE(refused.starts_with("buffer 'w': a scalar at address 0x")) << refused;
  EXPECT_TRUE(refused.ends_with("; accepted are multiples of 4")) << refused;
  EXPECT_EQ(refusal_of([&] { window.node().buffer->operator[](s.key); }),
            "expression buffer 'w': 1 indices given, its rank is 0");
}

TEST(Build, ConstantsFold) {
  const std::int32_t least = std::numeric_limits<std::int32_t>::min();
  EXPECT_TRUE(same(Expr(2) * 3 + 1, 7));
  EXPECT_TRUE(same(Expr(2) * 3.5, 7.0));
  EXPECT_TRUE(same(Expr(-7) / 2, -4));
  EXPECT_TRUE(same(Expr(-7) % 2, 1));
  EXPECT_TRUE(same(Expr(least) / -1, least));
  EXPECT_TRUE(same(abs(Expr(least)), least));
  EXPECT_TRUE(same(Expr(1) < 2, true));
  EXPECT_TRUE(same(select(Expr(1) < 2, 5, 6), 5));
  EXPECT_TRUE(same(exp(Expr(0)), 1.0));
  EXPECT_TRUE(same(exp2(Expr(-3)), 0.125));
  EXPECT_TRUE(same((Expr(12) & 10) + (Expr(12) | 3) + (Expr(12) ^ 10), 8 + 15 + 6));
  EXPECT_TRUE(same((Expr(1) << 31) >> 31, -1));
}

TEST(Build, Simplifies) {
  const auto& s = expr::symbols();
  const Expr flag = s.query < s.key;
  EXPECT_TRUE(same(s.score + 0, s.score));
  EXPECT_TRUE(same(0 + s.query, s.query));
  EXPECT_TRUE(same(s.query - 0, s.query));
  EXPECT_TRUE(same(0 - s.query, -s.query));
  EXPECT_TRUE(same(1 * s.score, s.score));
  EXPECT_TRUE(same(s.query / 1, s.query));
  EXPECT_TRUE(same(s.query % 1, 0));
  EXPECT_TRUE(same(s.query * 0, 0));
  EXPECT_EQ(to_string(s.score * 0), "score * 0.0");  // not 0 for inf and NaN
  EXPECT_EQ(to_string(s.score - s.score), "score - score");
  EXPECT_TRUE(same(s.query & 0, 0));
  EXPECT_TRUE(same(-1 & s.query, s.query));
  EXPECT_TRUE(same(s.query | 0, s.query));
  EXPECT_TRUE(same(0 ^ s.query, s.query));
  EXPECT_TRUE(same(s.query << 0, s.query));
  EXPECT_TRUE(same(s.query >> 0, s.query));
  EXPECT_TRUE(same(-(-s.score), s.score));
  EXPECT_TRUE(same(abs(-s.score), abs(s.score)));
  EXPECT_TRUE(same(!!flag, flag));
  EXPECT_TRUE(same(!flag, s.key <= s.query));
  EXPECT_EQ(to_string(!(s.score < 1)), "!(score < 1.0)");  // NaN
  EXPECT_TRUE(same(!(s.score == 1), s.score != 1));
  EXPECT_TRUE(same(flag && Expr(true), flag));
  EXPECT_TRUE(same(flag && Expr(false), false));
  EXPECT_TRUE(same(Expr(true) || flag, true));
  EXPECT_TRUE(same(Expr(false) || flag, flag));
  EXPECT_TRUE(same(flag && flag, flag));
  EXPECT_TRUE(same(select(s.score != s.score, flag, flag), flag));
  EXPECT_TRUE(same(select(!(s.score < 1), 1, 2), select(s.score < 1, 2, 1)));
}

// What a text names is in its tree, so that who binds it is not told that nothing has its name.
TEST(Build, KeepsOperandsThatReadABuffer) {
  const auto& s = expr::symbols();
  const float data[4] = {};
  const std::int32_t numbers[4] = {};
  const expr::Buffer f("f", tensor(data, {4})), n("n", tensor(numbers, {4}));
  const Expr flag = f[s.key] >= 0;
  for (const Expr& e :
       {flag || Expr(true), Expr(false) && flag, n[s.key] * 0, n[s.key] % 1, n[s.key] & 0,
        select(Expr(true), s.score, f[s.key]), select(flag, s.score, s.score)}) {
    EXPECT_EQ(expr::buffers(e).size(), 1U) << to_string(e);
    const std::vector<expr::Buffer> known{f, n};
    EXPECT_TRUE(same(expr::parse(to_string(e), known), e)) << to_string(e);
  }
  EXPECT_TRUE(same(flag && Expr(true), flag));
  EXPECT_TRUE(same(flag && flag, flag));
  EXPECT_EQ(evaluate<float>(flag || Expr(true), {}), 1);
  EXPECT_EQ(classify(flag || Expr(true), {.query_max = 3, .key_max = 3}), expr::Coverage::full);
  EXPECT_EQ(classify(Expr(false) && flag, {.query_max = 3, .key_max = 3}), expr::Coverage::empty);
}

TEST(Build, RefusesTreesTooLargeToRecurseOver) {
  Expr deep = expr::symbols().score;
  EXPECT_NE(refusal_of([&] {
              for (int i = 0; i < 1000; ++i) deep = tanh(deep);
            }),
            "(no error)");
  EXPECT_EQ(deep.node().depth, 256);
  Expr wide = expr::symbols().score;
  EXPECT_NE(refusal_of([&] {
              for (int i = 0; i < 1000; ++i) wide = wide * wide;
            }),
            "(no error)");
  EXPECT_LE(wide.node().size, 65536);
}

TEST(Build, SubstituteReplacesEverySymbol) {
  const auto& s = expr::symbols();
  const Expr e = s.score * s.score + select(s.key < 3, s.score, 1);
  EXPECT_TRUE(same(substitute(e, expr::Op::score, s.score), e));
  EXPECT_EQ(to_string(substitute(e, expr::Op::score, s.score + 2)),
            "(score + 2.0) * (score + 2.0) + select(key < 3, score + 2.0, 1.0)");
  EXPECT_TRUE(same(substitute(s.key <= s.query, expr::Op::key, 3), s.query >= 3));
  EXPECT_FALSE(depends_on(substitute(e, expr::Op::key, 5), expr::Op::key));
  EXPECT_NE(refusal_of([&] { substitute(e, expr::Op::score, s.key); }), "(no error)");
  EXPECT_NE(refusal_of([&] { substitute(e, expr::Op::tanh, s.score); }), "(no error)");
  // Semantics: evaluating the result is evaluating with the replaced value.
  for (std::uint32_t seed = 1; seed <= 300; ++seed) {
    test::RandomExpr random(seed, true);
    const Expr outer = random.float32(4, true);
    const Expr inner = s.score * 0.5 + random.float32(3, true);  // a constant would fold in float32
    expr::Point at;
    at.score = random.real(-2, 2);
    at.query = random.uniform(0, 9);
    expr::Point replaced = at;
    replaced.score = evaluate<double>(inner, at);
    const auto expected = evaluate<double>(outer, replaced);
    ASSERT_NEAR(evaluate<double>(compose(outer, inner), at), expected,
                1e-12 * (1 + std::abs(expected)))
        << "seed " << seed;
  }
}

TEST(Build, AnyIntegerThatFits) {
  const auto& key = expr::symbols().key;
  EXPECT_EQ(to_string(key < 5L), "key < 5");
  EXPECT_EQ(to_string(key < std::size_t{5}), "key < 5");
  EXPECT_EQ(to_string(key < 5U), "key < 5");
  EXPECT_EQ(to_string(key < std::int16_t{-5}), "key < -5");
  EXPECT_EQ(to_string(key < std::int64_t{-2147483648}), "key < -2147483648");
  EXPECT_THROW(static_cast<void>(key < std::int64_t{2147483648}), Error);
  EXPECT_THROW(static_cast<void>(key < 4294967295U), Error);
}

}  // namespace
}  // namespace attn
