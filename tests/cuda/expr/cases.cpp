#include "cases.hpp"

#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>

#include "attn/mask.hpp"
#include "attn/scalar.hpp"

namespace attn::test {
namespace {

constexpr std::uint32_t kMasks = 300;
constexpr std::uint32_t kScores = 150;
constexpr std::uint32_t kSpecial = 200;

struct Tensors {
  std::vector<std::int32_t> ids = std::vector<std::int32_t>(600);
  std::vector<std::int32_t> words = std::vector<std::int32_t>(2 * 40 * 2);  // of trees
  std::vector<float> slopes{0.5F, 0.25F, 0.125F, 0.0625F};
  std::vector<float> odd{std::nanf(""), 1.5F, -std::nanf(""), -0.0F};
  std::vector<bfloat16> bias = std::vector<bfloat16>(4 * 24 * 24);
  BlockMask blocks = BlockMask::butterfly(24, 24, 4);

  Tensors() {
    for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int32_t>(i / 5);
    for (std::size_t i = 0; i < bias.size(); ++i) {
      bias[i] = bfloat16(static_cast<float>(i % 37) * 0.1F - 2);
    }
    for (std::size_t i = 0; i < words.size(); ++i) {
      words[i] = static_cast<std::int32_t>(i * 2654435761U) >> (i % 3);
    }
  }
};

// The column of a place in Morton order, of bits 0, 2, 4 and 6 of its index.
expr::Expr morton_column(const expr::Expr& index) {
  expr::Expr x = index & 0x55;
  x = (x | x >> 1) & 0x33;
  return (x | x >> 2) & 0x0f;
}

// One operation on ranges of the values that break interval arithmetic.
DeviceExpressions special_floats(std::uint32_t seed) {
  RandomExpr random(seed);
  struct Values {
    std::vector<float> x = std::vector<float>(26);
    std::vector<float> y = std::vector<float>(26);
  };
  auto values = std::make_shared<Values>();
  for (float& x : values->x) x = random.special_float();
  for (float& y : values->y) y = random.special_float();
  const auto& s = expr::symbols();
  const expr::Expr a = expr::Buffer("x", tensor(values->x.data(), {26}))[s.query];
  const expr::Expr b = expr::Buffer("y", tensor(values->y.data(), {26}))[s.key];
  const expr::Expr results[] = {
      a + b,   a - b,  a * b,    a / b,     min(a, b), max(a, b),
      sqrt(a), log(a), exp(a),   tanh(a),   abs(a),    select(s.query < s.key, a, b),
      exp2(a), erf(a), floor(a), to_int(a), sin(a),    cos(a)};
  const expr::Expr result = results[random.uniform(0, 17)];
  const expr::Expr limit = random.special_float();
  const expr::Expr masks[] = {result < limit,  result <= limit, limit < result,
                              limit <= result, result == limit, result != limit};
  return {"special " + std::to_string(seed), masks[random.uniform(0, 5)], {}, values};
}

}  // namespace

std::vector<DeviceExpressions> device_expressions() {
  const auto& s = expr::symbols();
  auto t = std::make_shared<Tensors>();
  const expr::Buffer slope("slope", tensor(t->slopes.data(), {4}));
  const expr::Buffer odd("odd", tensor(t->odd.data(), {4}));
  const expr::Buffer bias("bias", tensor(t->bias.data(), {4, 24, 24}));
  // One more than classify scans in one dimension.
  const expr::Buffer ids("ids", tensor(t->ids.data(), {600}));
  const expr::Buffer none("none", tensor(static_cast<const std::int32_t*>(nullptr), {0}));
  const expr::Buffer nothing("nothing", tensor(static_cast<const float*>(nullptr), {1, 0}));
  const expr::Expr offset = expr::scalar("offset", 3);
  constexpr std::int32_t kMost = std::numeric_limits<std::int32_t>::max();
  const expr::Expr distance = s.query + s.seqlen_k - s.seqlen_q - s.key;
  std::vector<DeviceExpressions> all = {
      {"none", {}, {}, t},
      {"causal", causal(), {}, t},
      {"top_left", causal(Alignment::top_left), {}, t},
      {"window", window(5, 2), {}, t},
      {"prefix", prefix(7), {}, t},
      {"documents", causal() && documents(tensor(t->ids.data(), {600})), {}, t},
      {"blocks", causal() && t->blocks.mask(), {}, t},
      {"tree", tree_mask(tensor(t->words.data(), {2, 40, 2})), {}, t},
      {"ids", ids[s.query * 25] == ids[s.key * 25], {}, t},
      {"empty", none[s.query] == 0 && nothing({s.key, s.query}) <= 0.0F && s.key < 9,
       s.score + nothing({s.query, s.key}), t},
      {"between", s.key > s.query - 3 && s.key < s.query + 2, {}, t},
      {"beside", s.key == s.query + 1 && s.head < 3, {}, t},
      // Products that wrap, to both ends of int32.
      {"wrapped", s.key < s.query * 715827883 && s.query * -715827883 < s.key, {}, t},
      {"softcap", causal(), 30 * tanh(s.score / 30), t},
      {"softcap_bias", {}, 30 * tanh(s.score / 30) + bias({s.head, s.query, s.key}), t},
      {"gelu", causal(), 0.5F * s.score * (1 + erf(s.score * 0.70710678F)), t},
      {"waves", cos(to_float(s.query - s.key)) > -0.5F && sin(s.key * 1e7F) < 0.5F,
       2 * sin(s.score / 2) + cos(to_float(distance)), t},
      {"alibi_of_powers", causal(),
       s.score - exp2(-0.5F * to_float(s.head + 1)) * to_float(distance), t},
      {"morton",
       abs(morton_column(s.query) - morton_column(s.key)) <= 2 &&
           abs(morton_column(s.query >> 1) - morton_column(s.key >> 1)) <= 2,
       {},
       t},
      {"scalars",
       s.key <= s.query + offset && s.query + offset - s.key < expr::scalar("w", 9) &&
           ((s.query - s.key) % expr::scalar("period", 5) != 2 ||
            s.key / expr::scalar("below", -3) > s.query * 715827883 / expr::scalar("most", kMost)),
       expr::scalar("slope_of_all", 0.25F) * to_float(s.key / expr::scalar("width", 3)) +
           expr::scalar("factor", 2.0F) * s.score,
       t},
      {"alibi", causal(), s.score - slope[s.head] * to_float(abs(distance)), t},
      {"bias", distance >= 0, s.score + bias({s.head, s.query, s.key}), t},
      {"sinks", s.key < 4 || (distance >= 0 && distance < 9), softcap(3), t},
      {"downward", {}, 20 * tanh(-s.score / 20) - 0.5F * to_float(s.key), t},
      {"floors", floor(s.query / -3.7) <= to_int(s.key / -3.7),
       s.score - 0.25F * floor(abs(distance) / 1.7F) +
           (to_float(s.key) / 5 - to_float(to_int(to_float(s.key) / 5))),
       t},
      {"t5", {}, s.score + slope[to_int(2 * log(abs(distance) + 1.0F) / 1.3F)], t},
      {"divided", s.query / 4 == s.key / 4 && s.key % 3 != s.head % 2, s.score * 0.5, t}};
  for (std::uint32_t i = 0; i < kMasks; ++i) {
    auto random = std::make_shared<RandomExpr>(i + 1);
    const expr::Expr mask = random->boolean(random->uniform(1, 5), false);
    all.push_back({"mask " + std::to_string(i), mask, {}, random});
  }
  for (std::uint32_t i = 0; i < kScores; ++i) {
    auto random = std::make_shared<RandomExpr>(i + 1, true);
    const expr::Expr score = random->float32(random->uniform(1, 5), true);
    all.push_back({"score " + std::to_string(i), {}, score, random});
  }
  for (std::uint32_t i = 0; i < kSpecial; ++i) all.push_back(special_floats(i + 1));
  // Comparisons that are true of all numbers, and false on NaN.
  all.push_back({"not_numbers",
                 (-2.0F < abs(odd[s.head]) && s.key < 9) ||
                     (max(-1.0F, odd[s.head] * odd[s.head]) > -0.5F && s.key == s.query),
                 {},
                 t});
  return all;
}

expr::Bindings as_device_tensors(const DeviceExpressions& expressions) {
  expr::Bindings bindings;
  for (const expr::Expr* e : {&expressions.mask, &expressions.score}) {
    for (const auto& buffer : buffers(*e)) {
      Tensor tensor = buffer->tensor();
      if (tensor.given()) tensor.device = {DeviceType::cuda, 0};  // scalars stay on the host
      bindings.emplace_back(buffer->name(), tensor);
    }
  }
  return bindings;
}

}  // namespace attn::test
