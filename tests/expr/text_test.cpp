// to_string, parse and to_cuda.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>

#include "attn/error.hpp"
#include "attn/mask.hpp"
#include "random_expr.hpp"

namespace attn {
namespace {

using expr::Buffer;
using expr::Expr;
using expr::parse;

std::string message_of(const std::string& text, const std::vector<Buffer>& buffers = {}) {
  try {
    parse(text, buffers);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    return error.what();
  }
  return "(parsed)";
}

TEST(Text, RandomExpressionsComeBack) {
  for (std::uint32_t seed = 1; seed <= 6000; ++seed) {
    test::RandomExpr random(seed);
    Expr e;
    switch (seed % 3) {
      case 0:
        e = random.boolean(random.uniform(1, 6), true);
        break;
      case 1:
        e = random.int32(random.uniform(1, 6));
        break;
      default:
        e = random.float32(random.uniform(1, 6), true);
    }
    const std::string text = to_string(e);
    const Expr again = parse(text, random.buffers());
    ASSERT_TRUE(same(e, again)) << "seed " << seed << ": " << text << "\nbecame "
                                << to_string(again);
  }
}

TEST(Text, DerivativesComeBack) {
  for (std::uint32_t seed = 1; seed <= 500; ++seed) {
    test::RandomExpr random(seed, true);
    const Expr e = derivative(random.float32(4, true));
    ASSERT_TRUE(same(e, parse(to_string(e), random.buffers())))
        << "seed " << seed << ": " << to_string(e);
  }
}

TEST(Text, ReadsAsWritten) {
  const auto& s = expr::symbols();
  const float slopes[4] = {};
  const Buffer slope("slope", tensor(slopes, {4}));
  EXPECT_EQ(to_string(s.query >= s.key && s.query - s.key < 1024),
            "key <= query && query - key < 1024");
  EXPECT_EQ(to_string(30 * tanh(s.score / 30) - slope[s.head] * (s.query - s.key)),
            "30.0 * tanh(score / 30.0) - slope[head] * (query - key)");
  EXPECT_EQ(to_string(to_float(s.query) * to_float(s.key)), "to_float(query) * key");
  EXPECT_EQ(to_string(s.query - (s.key - s.head) - s.batch), "query - (key - head) - batch");
  EXPECT_EQ(to_string(-(s.query + s.key) % 3), "-(query + key) % 3");
  EXPECT_EQ(to_string(!(s.score < 1) || s.query == -5), "!(score < 1.0) || query == -5");
  EXPECT_EQ(to_string(s.score + 0.1f), "score + 0.1");
  EXPECT_EQ(to_string(s.score * 1e30f), "score * 1e+30");
  EXPECT_EQ(to_string(select(s.key < 3, s.score, 0)), "select(key < 3, score, 0.0)");
  EXPECT_EQ(to_string(causal()), "key <= position");
  EXPECT_EQ(to_string(causal(Alignment::top_left)), "key <= query");
  EXPECT_EQ(to_string((s.position - 1) * 2), "(position - 1) * 2");
  EXPECT_EQ(to_string(-s.position), "-position");
  EXPECT_EQ(to_string(s.query + (s.seqlen_q - s.seqlen_k)), "query + (seqlen_q - seqlen_k)");
  EXPECT_EQ(to_string((s.query & 7) == (s.key >> 3) - 1), "(query & 7) == (key >> 3) - 1");
  EXPECT_EQ(to_string((s.query | (s.key ^ s.head)) << 2), "(query | key ^ head) << 2");
  EXPECT_EQ(to_string(erf(exp2(s.score))), "erf(exp2(score))");
  EXPECT_EQ(to_string(tan(s.key) * cos(s.score)), "sin(key) / cos(key) * cos(score)");
  EXPECT_EQ(to_string(floor(s.query / 2.5) * s.score), "floor(query / 2.5) * score");
  EXPECT_EQ(to_string(slope[to_int(8 * log(s.key + 1.0))]), "slope[to_int(8.0 * log(key + 1.0))]");
  EXPECT_EQ(to_string(to_int(to_float(s.key))), "to_int(to_float(key))");  // above 2^24 not the key
  EXPECT_EQ(to_string(Expr()), "");
}

TEST(Text, ParseAcceptsWhatPeopleWrite) {
  const auto& s = expr::symbols();
  EXPECT_TRUE(
      same(parse("query>=key&&query-key<1024"), s.query >= s.key && s.query - s.key < 1024));
  EXPECT_TRUE(same(parse("  ( (query) )\n"), s.query));
  EXPECT_TRUE(same(parse("score * .5 + 1e-3 - 2."), s.score * 0.5 + 1e-3 - 2.0));
  EXPECT_TRUE(same(parse("- 3 + query"), -3 + s.query));
  EXPECT_TRUE(same(parse("key <= position"), causal()));
  EXPECT_TRUE(same(parse("query + (seqlen_k - seqlen_q)"), s.position));
  EXPECT_THROW(Buffer("position", tensor(static_cast<float*>(nullptr), {1})), Error);
  EXPECT_TRUE(same(parse("query-1"), s.query - 1));
  EXPECT_TRUE(same(parse("query|key^head&batch"), s.query | (s.key ^ (s.head & s.batch))));
  EXPECT_TRUE(same(parse("query<<key+1>>2<3"), ((s.query << (s.key + 1)) >> 2) < 3));
  EXPECT_TRUE(
      same(parse("(query&1)==0&&key>>1<=head"), (s.query & 1) == 0 && s.key >> 1 <= s.head));
  EXPECT_TRUE(same(parse("!!(key<3)"), s.key < 3));
  EXPECT_TRUE(
      same(parse("floor(key/2.5)+to_int(key/2.5)"), floor(s.key / 2.5) + to_int(s.key / 2.5)));
  EXPECT_TRUE(same(parse("to_int(query)"), s.query));
  EXPECT_TRUE(same(parse("floor(query)"), to_float(s.query)));
  EXPECT_TRUE(same(parse("-2147483648"), std::numeric_limits<std::int32_t>::min()));
  EXPECT_TRUE(same(parse("1 - 2 - 3 * 4 % 5 < 6"), Expr(true)));
  EXPECT_TRUE(same(parse("true || false && false"), Expr(true)));
}

TEST(Text, ParseNamesTheColumnAndWhatWasExpected) {
  const std::string at = "expression text, column ";
  EXPECT_EQ(message_of(""), at + "1: expected a value, found the end");
  EXPECT_EQ(message_of("query <"), at + "8: expected a value, found the end");
  EXPECT_EQ(message_of("query < foo"),
            at + "9: expected a symbol, function or buffer, found 'foo'");
  EXPECT_EQ(message_of("(query"), at + "7: expected ')', found the end");
  EXPECT_EQ(message_of("query key"), at + "7: expected an operator or the end, found 'k'");
  EXPECT_EQ(message_of("query ~ key"), at + "7: expected an operator or the end, found '~'");
  // As in C++, == binds more than &.
  EXPECT_EQ(message_of("query & 1 == 0"),
            at + "7: expression '&' of 'query' (int32) and 'false' (boolean): accepts int32");
  EXPECT_EQ(message_of("min(query)"), at + "1: expected 2 operands of min, found 1");
  EXPECT_EQ(message_of("tanh score"), at + "6: expected '(', found 's'");
  EXPECT_EQ(message_of("2147483648"),
            at + "1: expected a number that fits int32, found '2147483648'");
  EXPECT_EQ(message_of("1e999 * score"),
            at + "1: expected a number that fits float32, found '1e999'");
  EXPECT_EQ(message_of("1.2.3"), at + "1: expected a number that fits float32, found '1.2.3'");
  EXPECT_EQ(message_of("query && true"),
            at + "7: expression '&&' of 'query' (int32) and 'true' (boolean): accepts boolean");
  EXPECT_EQ(message_of("\x01"), at + "1: expected a value, found byte 1");
  EXPECT_EQ(message_of(std::string("query\0", 6)),
            at + "6: expected an operator or the end, found byte 0");
  const float data[4] = {};
  const Buffer buffer("x", tensor(data, {2, 2}));
  EXPECT_EQ(message_of("x[query]", {buffer}),
            at + "1: expression buffer 'x': 1 indices given, its rank is 2");
  EXPECT_EQ(message_of("x(query, key)", {buffer}), at + "2: expected '[', found '('");
  EXPECT_EQ(message_of("x[query, 1.5]", {buffer}),
            at + "1: expression buffer 'x': index '1.5' (float32) given, indices must be int32");
}

TEST(Text, ParseSurvivesHostileText) {
  const std::size_t kMany = 1 << 19;
  for (const std::string& text :
       {std::string(kMany, '('), std::string(kMany, '-'), std::string(kMany, '!'),
        std::string(9 << 20, ' '), std::string(kMany, '9'), std::string(kMany, 'a'),
        std::string(kMany, '\xff')}) {
    EXPECT_NE(message_of(text), "(parsed)");
    EXPECT_LT(message_of(text).size(), 300U);
  }
  std::string chain = "query";
  std::string calls;
  for (int i = 0; i < 100000; ++i) {
    chain += "+query";
    calls += "tanh(";
  }
  EXPECT_NE(message_of(chain), "(parsed)");  // more levels than a tree may have
  EXPECT_NE(message_of(calls), "(parsed)");
  // Any bytes: an Error or an expression, nothing else.
  std::mt19937 random(1);
  const std::string alphabet = "query key score()[],+-*/%<>=!&|^0123456789.e tanh min select\t\x80";
  for (int i = 0; i < 20000; ++i) {
    std::string text;
    const int length = static_cast<int>(random() % 24);
    for (int c = 0; c < length; ++c) text += alphabet[random() % alphabet.size()];
    message_of(text);
  }
  // Truncated and changed valid texts.
  for (std::uint32_t seed = 1; seed <= 2000; ++seed) {
    test::RandomExpr make(seed);
    std::string text = to_string(make.boolean(4, true));
    text.resize(random() % (text.size() + 1));
    if (!text.empty()) text[random() % text.size()] = static_cast<char>(random() % 256);
    message_of(text, make.buffers());
  }
}

TEST(Text, Cuda) {
  const auto& s = expr::symbols();
  const float data[4] = {};
  const Buffer bias("bias", tensor(data, {2, 2}));
  EXPECT_EQ(to_cuda(causal()), "(key <= attn_add(query, attn_sub(seqlen_k, seqlen_q)))");
  EXPECT_EQ(to_cuda(softcap(30)), "attn_mul(0x1.ep+4f, attn_tanh(attn_div(score, 0x1.ep+4f)))");
  EXPECT_EQ(to_cuda(s.score + bias({s.query, s.key})),
            "attn_add(score, attn_load_bias(query, key))");
  EXPECT_EQ(to_cuda(s.query / 64 == s.key % 8), "((query >> 6) == (key & 7))");
  EXPECT_EQ(to_cuda(s.query / s.head == s.key % -8),
            "(attn_floor_div(query, head) == attn_floor_mod(key, -8))");
  EXPECT_EQ(to_cuda(select(s.head < 2 || !(s.score <= 0.1), -s.score, -s.query)),
            "(((head < 2) | (!attn_le(score, 0x1.99999ap-4f))) ? attn_neg(score) : "
            "attn_to_float(attn_neg(query)))");
  EXPECT_EQ(to_cuda(min(abs(s.query) * 3, max(s.key, s.batch)) != -5),
            "(attn_min(attn_mul(attn_abs(query), 3), attn_max(key, batch)) != -5)");
  EXPECT_EQ(to_cuda(log(exp(s.score) / sqrt(abs(s.score)))),
            "attn_log(attn_div(attn_exp(score), attn_sqrt(attn_abs(score))))");
  EXPECT_EQ(to_cuda(((s.query & s.key) ^ (s.head | 1)) == (s.query << 3) + (s.key >> s.head)),
            "(((query & key) ^ (head | 1)) == attn_add(attn_shift_left(query, 3), "
            "attn_shift_right(key, head)))");
  EXPECT_EQ(to_cuda(erf(exp2(s.score))), "attn_erf(attn_exp2(score))");
  EXPECT_EQ(to_cuda(sin(cos(s.score))), "attn_sin(attn_cos(score))");
  EXPECT_EQ(to_cuda(floor(s.key / 3.0) + to_int(s.key * 0.5)),
            "attn_add(attn_floor(attn_div(attn_to_float(key), 0x1.8p+1f)), "
            "attn_to_float(attn_to_int(attn_mul(attn_to_float(key), 0x1p-1f))))");
  EXPECT_EQ(to_cuda(s.key == std::numeric_limits<std::int32_t>::min() && true),
            "(key == (-2147483647 - 1))");
  const float inf = std::numeric_limits<float>::infinity();
  EXPECT_EQ(to_cuda(select(s.key < 1, inf, select(s.key < 2, -inf, std::nanf("")))),
            "((key < 1) ? attn_bits(0x7f800000) : ((key < 2) ? attn_bits(0xff800000) : "
            "attn_bits(0x7fc00000)))");
}

}  // namespace
}  // namespace attn
