// What each operation means, against values worked out by hand.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "attn/error.hpp"
#include "attn/expr.hpp"

namespace attn {
namespace {

using expr::Expr;
using expr::Point;

constexpr std::int32_t kLeast = std::numeric_limits<std::int32_t>::min();
constexpr std::int32_t kMost = std::numeric_limits<std::int32_t>::max();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

// Operands come in as symbols, so that nothing folds.
double on_ints(const Expr& e, std::int32_t a, std::int32_t b) {
  Point at;
  at.query = a;
  at.key = b;
  return evaluate<double>(e, at);
}

TEST(Evaluate, Integers) {
  const auto& s = expr::symbols();
  const Expr a = s.query;
  const Expr b = s.key;
  EXPECT_EQ(on_ints(a + b, kMost, 1), kLeast);
  EXPECT_EQ(on_ints(a - b, kLeast, 1), kMost);
  EXPECT_EQ(on_ints(a * b, 65536, 65536), 0);
  EXPECT_EQ(on_ints(a * b, kMost, kMost), 1);
  EXPECT_EQ(on_ints(-a, kLeast, 0), kLeast);
  EXPECT_EQ(on_ints(abs(a), kLeast, 0), kLeast);
  EXPECT_EQ(on_ints(abs(a), -3, 0), 3);
  EXPECT_EQ(on_ints(min(a, b), -3, 4), -3);
  EXPECT_EQ(on_ints(max(a, b), -3, 4), 4);
  const struct {
    std::int32_t a, b, quotient, remainder;
  } divisions[] = {{7, 2, 3, 1},           {-7, 2, -4, 1},
                   {7, -2, -4, -1},        {-7, -2, 3, -1},
                   {6, 3, 2, 0},           {-6, 3, -2, 0},
                   {0, 5, 0, 0},           {5, 0, 0, 0},
                   {-5, 0, 0, 0},          {1, 3, 0, 1},
                   {-1, 3, -1, 2},         {kLeast, -1, kLeast, 0},
                   {kMost, 1, kMost, 0},   {kLeast, kMost, -2, kMost - 1},
                   {kMost, kLeast, -1, -1}};
  for (const auto& d : divisions) {
    EXPECT_EQ(on_ints(a / b, d.a, d.b), d.quotient) << d.a << " / " << d.b;
    EXPECT_EQ(on_ints(a % b, d.a, d.b), d.remainder) << d.a << " % " << d.b;
  }
}

TEST(Evaluate, Bits) {
  const auto& s = expr::symbols();
  const Expr a = s.query;
  const Expr b = s.key;
  EXPECT_EQ(on_ints(a & b, 12, 10), 8);
  EXPECT_EQ(on_ints(a | b, 12, 10), 14);
  EXPECT_EQ(on_ints(a ^ b, 12, 10), 6);
  EXPECT_EQ(on_ints(a & b, -1, kMost), kMost);
  EXPECT_EQ(on_ints(a | b, kLeast, 1), kLeast + 1);
  EXPECT_EQ(on_ints(a ^ b, -1, 5), -6);
  const struct {
    std::int32_t a, by, left, right;
  } shifts[] = {{5, 0, 5, 5},
                {5, 1, 10, 2},
                {-5, 1, -10, -3},
                {1, 31, kLeast, 0},
                {-1, 31, kLeast, -1},
                {3, 31, kLeast, 0},
                {kMost, 1, -2, kMost / 2},
                {kLeast, 31, 0, -1},
                // Every bit leaves.
                {5, 32, 0, 0},
                {-5, 32, 0, -1},
                {5, 64, 0, 0},
                {-5, kMost, 0, -1},
                {5, -1, 0, 0},
                {-5, -1, 0, -1},
                {5, kLeast, 0, 0},
                {-5, -32, 0, -1}};
  for (const auto& shift : shifts) {
    EXPECT_EQ(on_ints(a << b, shift.a, shift.by), shift.left) << shift.a << " << " << shift.by;
    EXPECT_EQ(on_ints(a >> b, shift.a, shift.by), shift.right) << shift.a << " >> " << shift.by;
  }
}

// The places of a grid of 8 x 8, of which bits 0, 2, 4 of the index are the column and 1, 3, 5 the
// row, as Morton order has them.
TEST(Evaluate, MortonOrder) {
  const auto coordinate = [](const Expr& index) {
    Expr x = index & 0x15;
    x = (x | x >> 1) & 0x33;
    return (x | x >> 2) & 0x0f;
  };
  const Expr column = coordinate(expr::symbols().query);
  const Expr row = coordinate(expr::symbols().query >> 1);
  for (int y = 0; y < 8; ++y) {
    for (int x = 0; x < 8; ++x) {
      int index = 0;
      for (int bit = 0; bit < 3; ++bit) {
        index += ((x >> bit) % 2 << 2 * bit) + ((y >> bit) % 2 << (2 * bit + 1));
      }
      EXPECT_EQ(on_ints(column, index, 0), x) << index;
      EXPECT_EQ(on_ints(row, index, 0), y) << index;
    }
  }
}

TEST(Evaluate, ComparisonsAndLogic) {
  const auto& s = expr::symbols();
  const Expr a = s.query;
  const Expr b = s.key;
  for (const auto& [x, y] : {std::pair{1, 2}, {2, 2}, {3, 2}, {kLeast, kMost}}) {
    EXPECT_EQ(on_ints(a < b, x, y), x < y);
    EXPECT_EQ(on_ints(a <= b, x, y), x <= y);
    EXPECT_EQ(on_ints(a > b, x, y), x > y);
    EXPECT_EQ(on_ints(a >= b, x, y), x >= y);
    EXPECT_EQ(on_ints(a == b, x, y), x == y);
    EXPECT_EQ(on_ints(a != b, x, y), x != y);
    EXPECT_EQ(on_ints(a < b && a < 3, x, y), x < y && x < 3);
    EXPECT_EQ(on_ints(a < b || a < 3, x, y), x < y || x < 3);
    EXPECT_EQ(on_ints((a < b) == (a < 3), x, y), (x < y) == (x < 3));
    EXPECT_EQ(on_ints((a < b) != (a < 3), x, y), (x < y) != (x < 3));
    EXPECT_EQ(on_ints(!(a < b || a == 3), x, y), !(x < y || x == 3));
    EXPECT_EQ(on_ints(select(a < b, a, b), x, y), x < y ? x : y);
  }
}

TEST(Evaluate, Floats) {
  const auto& s = expr::symbols();
  const auto at = [](const Expr& e, float score) {
    Point point;
    point.score = static_cast<double>(score);
    point.query = 3;
    return evaluate<float>(e, point);
  };
  const Expr x = s.score;
  EXPECT_EQ(at(x + 0.1F, 0.2F), 0.2F + 0.1F);
  EXPECT_EQ(at(x * 0.1F, 0.2F), 0.2F * 0.1F);
  EXPECT_EQ(at(x / 3, 0.2F), 0.2F / 3.0F);
  EXPECT_EQ(at(x - s.query, 0.2F), 0.2F - 3.0F);
  EXPECT_EQ(at(exp(x), 1.5F), std::exp(1.5F));
  EXPECT_EQ(at(exp2(x), 1.5F), std::exp2(1.5F));
  EXPECT_EQ(at(erf(x), 1.5F), std::erf(1.5F));
  EXPECT_EQ(at(log(x), 1.5F), std::log(1.5F));
  EXPECT_EQ(at(sin(x), 1.5F), std::sin(1.5F));
  EXPECT_EQ(at(cos(x), 1.5F), std::cos(1.5F));
  EXPECT_EQ(at(tan(x), 1.5F), std::sin(1.5F) / std::cos(1.5F));
  EXPECT_EQ(at(tanh(x), 1.5F), std::tanh(1.5F));
  EXPECT_EQ(at(sqrt(x), 1.5F), std::sqrt(1.5F));
  EXPECT_EQ(at(abs(x), -1.5F), 1.5F);
  EXPECT_EQ(at(-x, 1.5F), -1.5F);
  EXPECT_EQ(at(sqrt(s.query), 0), std::sqrt(3.0F));
  EXPECT_EQ(at(1 / x, 0), kInf);
  // min and max give the second operand when either is NaN; comparisons with NaN are false.
  EXPECT_EQ(at(min(x, 2), kNan), 2.0F);
  EXPECT_TRUE(std::isnan(at(min(2, x), kNan)));
  EXPECT_EQ(at(max(x, 2), kNan), 2.0F);
  EXPECT_TRUE(std::isnan(at(max(2, x), kNan)));
  EXPECT_EQ(at(x < 1, kNan), 0.0F);
  EXPECT_EQ(at(x >= 1, kNan), 0.0F);
  EXPECT_EQ(at(x == x, kNan), 0.0F);
  EXPECT_EQ(at(x != x, kNan), 1.0F);
  EXPECT_EQ(at(select(x < 1, 5, 6), kNan), 6.0F);
}

// The element x that is given, in an operation that does not fold.
double on_float(const std::function<Expr(const Expr&)>& operation, float x) {
  return evaluate<double>(operation(expr::Buffer("x", tensor(&x, {1}))[0]), {});
}

TEST(Evaluate, FloorsOfEveryKind) {
  const struct {
    float x, floor, ceil, trunc;
    std::int32_t to_int;
  } cases[] = {{0, 0, 0, 0, 0},
               {0.99999994F, 0, 1, 0, 0},
               {1, 1, 1, 1, 1},
               {2.5F, 2, 3, 2, 2},
               {-0.25F, -1, 0, 0, 0},
               {-1, -1, -1, -1, -1},
               {-2.5F, -3, -2, -2, -2},
               {0x1p-149F, 0, 1, 0, 0},
               {-0x1p-149F, -1, 0, 0, 0},
               {8388607.5F, 8388607, 8388608, 8388607, 8388607},
               {-8388607.5F, -8388608, -8388607, -8388607, -8388607},
               {0x1.fffffep+30F, 0x1.fffffep+30F, 0x1.fffffep+30F, 0x1.fffffep+30F, 2147483520},
               {0x1p+31F, 0x1p+31F, 0x1p+31F, 0x1p+31F, kMost},
               {-0x1p+31F, -0x1p+31F, -0x1p+31F, -0x1p+31F, kLeast},
               {-0x1.000002p+31F, -0x1.000002p+31F, -0x1.000002p+31F, -0x1.000002p+31F, kLeast},
               {1e30F, 1e30F, 1e30F, 1e30F, kMost},
               {kInf, kInf, kInf, kInf, kMost},
               {-kInf, -kInf, -kInf, -kInf, kLeast}};
  for (const auto& c : cases) {
    EXPECT_EQ(on_float([](const Expr& x) { return floor(x); }, c.x), c.floor) << c.x;
    EXPECT_EQ(on_float([](const Expr& x) { return ceil(x); }, c.x), c.ceil) << c.x;
    EXPECT_EQ(on_float([](const Expr& x) { return trunc(x); }, c.x), c.trunc) << c.x;
    EXPECT_EQ(on_float([](const Expr& x) { return to_int(x); }, c.x), c.to_int) << c.x;
  }
  EXPECT_TRUE(std::isnan(on_float([](const Expr& x) { return floor(x); }, kNan)));
  EXPECT_TRUE(std::isnan(on_float([](const Expr& x) { return ceil(x); }, kNan)));
  EXPECT_TRUE(std::isnan(on_float([](const Expr& x) { return trunc(x); }, kNan)));
  EXPECT_EQ(on_float([](const Expr& x) { return to_int(x); }, kNan), 0);
  // Integers become floats, as they do in ceil and trunc.
  EXPECT_EQ(on_ints(floor(expr::symbols().query), -7, 0), -7);
  EXPECT_EQ(on_ints(ceil(expr::symbols().query), -7, 0), -7);
  EXPECT_EQ(on_ints(trunc(expr::symbols().query), -7, 0), -7);
  EXPECT_EQ(on_ints(to_int(expr::symbols().query), kMost, 0), kMost);
}

// 0.7F * 10 is 7 in float32, and less in double.
TEST(Evaluate, OperandsOfFloorAreFloat32InDoubleToo) {
  const auto& s = expr::symbols();
  EXPECT_EQ(on_ints(floor(0.7F * to_float(s.query)), 10, 0), 7);
  EXPECT_EQ(on_ints(to_int(0.7F * to_float(s.query)), 10, 0), 7);
  EXPECT_EQ(on_ints(ceil(-0.7F * to_float(s.query)), 10, 0), -7);
  EXPECT_EQ(on_ints(trunc(-0.7F * to_float(s.query)), 10, 0), -7);
  EXPECT_EQ(on_ints(floor(to_float(s.query) + 0.3F), 16777216, 0), 16777216);
  int differ = 0;
  for (std::int32_t i = 0; i < 2000; ++i) {
    const float product = 0.7F * static_cast<float>(i);
    EXPECT_EQ(on_ints(floor(0.7F * to_float(s.query) - 3), i, 0), std::floor(product - 3)) << i;
    const double exact = static_cast<double>(0.7F) * i;
    differ += std::floor(exact) != std::floor(product) ? 1 : 0;
    // Around it everything is in double.
    EXPECT_EQ(on_ints(0.7F * to_float(s.query) - floor(0.7F * to_float(s.query)), i, 0),
              exact - std::floor(product));
  }
  EXPECT_GT(differ, 100);
}

// Each operation once: 2^60 of them would not end.
TEST(Evaluate, ChainsOfFunctions) {
  Expr e = expr::symbols().score;
  for (int i = 0; i < 60; ++i) e = tanh(e);
  EXPECT_EQ(evaluate<double>(e, {.score = 0}), 0);
  EXPECT_GT(evaluate<double>(e, {.score = 1}), 0.1);
}

TEST(Evaluate, DoubleKeepsDoublePrecision) {
  const auto& s = expr::symbols();
  Point at;
  at.score = 0.1;
  at.query = kMost;
  EXPECT_EQ(evaluate<double>(s.score / 3, at), 0.1 / 3);
  EXPECT_EQ(evaluate<double>(tanh(s.score), at), std::tanh(0.1));
  EXPECT_EQ(evaluate<double>(s.score + s.query, at), 0.1 + kMost);
  EXPECT_EQ(evaluate<double>(s.score * 0.1, at),
            0.1 * static_cast<double>(0.1F));  // the literal is float32
  EXPECT_EQ(evaluate<float>(to_float(s.query), at), 2147483648.0F);
}

TEST(Evaluate, Symbols) {
  const auto& s = expr::symbols();
  Point at{.score = 1, .query = 2, .key = 3, .batch = 4, .head = 5, .seqlen_q = 6, .seqlen_k = 7};
  const Expr all[] = {s.score, s.query, s.key, s.batch, s.head, s.seqlen_q, s.seqlen_k};
  for (int i = 0; i < 7; ++i) EXPECT_EQ(evaluate<double>(all[i], at), i + 1);
}

TEST(Evaluate, LoadsReadZeroOutside) {
  const auto& s = expr::symbols();
  const float data[6] = {1, 2, 3, 4, 5, 6};
  const auto load = [&](const expr::Buffer& buffer, std::int32_t i, std::int32_t j) {
    return on_ints(buffer({s.query, s.key}), i, j);
  };
  const expr::Buffer x("x", tensor(data, {2, 3}));
  EXPECT_EQ(load(x, 1, 2), 6);
  for (const auto& [i, j] :
       {std::pair{-1, 0}, {2, 0}, {0, -1}, {0, 3}, {kLeast, kMost}, {kMost, 0}}) {
    EXPECT_EQ(load(x, i, j), 0) << i << " " << j;
  }
  Tensor transposed = tensor(data, {3, 2});
  transposed.strides = {1, 3};
  EXPECT_EQ(load({"x", transposed}, 2, 1), 6);
  // A dimension of size 1 accepts any index.
  const expr::Buffer row("x", tensor(data, {1, 6}));
  EXPECT_EQ(load(row, -77, 5), 6);
  EXPECT_EQ(load(row, kMost, 6), 0);
  const expr::Buffer nothing("x", tensor(data, {0, 6}));
  EXPECT_EQ(load(nothing, 0, 0), 0);
}

TEST(Evaluate, LoadsConvert) {
  const auto& s = expr::symbols();
  const bfloat16 narrow[1] = {bfloat16(1.5F)};
  const float16 half[1] = {float16(-0.25F)};
  const std::uint8_t byte[1] = {200};
  const std::int32_t number[1] = {-5};
  EXPECT_EQ(on_ints(expr::Buffer("x", tensor(narrow, {1}))[s.key], 0, 0), 1.5);
  EXPECT_EQ(on_ints(expr::Buffer("x", tensor(half, {1}))[s.key], 0, 0), -0.25);
  EXPECT_EQ(on_ints(expr::Buffer("x", tensor(byte, {1}))[s.key], 0, 0), 200);
  EXPECT_EQ(on_ints(expr::Buffer("x", tensor(number, {1}))[s.key], 0, 0), -5);
}

}  // namespace
}  // namespace attn
