#include "random_expr.hpp"

#include <cmath>
#include <limits>

namespace attn::test {

using expr::Buffer;
using expr::Expr;

namespace {

constexpr int kElements = 64;

}  // namespace

RandomExpr::RandomExpr(std::uint32_t seed, bool smooth) : random_(seed), smooth_(smooth) {
  for (int i = 0; i < kElements; ++i) {
    floats_.push_back(static_cast<float>(real(-3, 3)));
    bfloats_.emplace_back(static_cast<float>(real(-3, 3)));
    halves_.emplace_back(static_cast<float>(real(-3, 3)));
    ints_.push_back(any_int());
    bytes_.push_back(static_cast<std::uint8_t>(uniform(0, 255)));
  }
  if (!smooth) {
    floats_[3] = std::numeric_limits<float>::infinity();
    floats_[5] = std::numeric_limits<float>::quiet_NaN();
    floats_[7] = -0.0f;
  }
  Tensor strided = tensor(floats_.data(), {4, 5});
  strided.strides = {1, 7};
  Tensor broadcast = tensor(floats_.data(), {3, 9});
  broadcast.strides = {0, 2};
  buffers_ = {Buffer("f", tensor(floats_.data(), {11})),
              Buffer("g", strided),
              Buffer("h", broadcast),
              Buffer("b", tensor(bfloats_.data(), {1, 2, 4, 5})),
              Buffer("c", tensor(halves_.data(), {2, 1, 6})),
              Buffer("i", tensor(ints_.data(), {13})),
              Buffer("j", tensor(ints_.data(), {1, 12})),
              Buffer("u", tensor(bytes_.data(), {6, 7})),
              Buffer("v", tensor(&floats_[9], {})),
              Buffer("n", tensor(&ints_[9], {}))};
}

std::int32_t RandomExpr::any_int() {
  switch (uniform(0, 9)) {
    case 0:
      return std::numeric_limits<std::int32_t>::min() + uniform(0, 2);
    case 1:
      return std::numeric_limits<std::int32_t>::max() - uniform(0, 2);
    case 2:
      return uniform(std::numeric_limits<std::int32_t>::min(),
                     std::numeric_limits<std::int32_t>::max());
    default:
      return uniform(-9, 9);
  }
}

Expr RandomExpr::load(bool is_float, int depth) {
  while (true) {
    const Buffer& buffer =
        buffers_[static_cast<std::size_t>(uniform(0, static_cast<int>(buffers_.size()) - 1))];
    if (is_floating(buffer.tensor().dtype) != is_float) continue;
    std::vector<Expr> indices;
    for (int d = 0; d < buffer.tensor().rank; ++d) indices.push_back(int32(depth - 1));
    return buffer(indices);
  }
}

Expr RandomExpr::int32(int depth) {
  const auto& s = expr::symbols();
  if (depth <= 0) {
    const Expr leaves[] = {s.query,    s.key,      s.query,    s.key,     s.batch,       s.head,
                           s.seqlen_q, s.seqlen_k, s.position, any_int(), uniform(-9, 9)};
    return leaves[uniform(0, 10)];
  }
  const auto sub = [&] { return int32(depth - 1 - uniform(0, 1)); };
  switch (uniform(0, 17)) {
    case 0:
      return -sub();
    case 1:
      return abs(sub());
    case 2:
      return sub() + sub();
    case 3:
      return sub() - sub();
    case 4:
      return sub() * sub();
    case 5:
      return sub() / sub();
    case 6:
      return sub() % sub();
    case 7:
      return min(sub(), sub());
    case 8:
      return max(sub(), sub());
    case 9:
      return select(boolean(depth - 1, false), sub(), sub());
    case 10:
      return load(false, depth);
    case 11:
      return sub() & sub();
    case 12:
      return sub() | sub();
    case 13:
      return sub() ^ sub();
    case 14:
      return sub() << (uniform(0, 1) == 0 ? sub() : Expr(uniform(-1, 33)));
    case 15:
      return sub() >> (uniform(0, 1) == 0 ? sub() : Expr(uniform(-1, 33)));
    case 16:
      return to_int(rounded_float(depth - 1));
    default:
      return sub() + uniform(-9, 9);
  }
}

Expr RandomExpr::float32(int depth, bool with_score) {
  if (smooth_) return smooth_float(depth, with_score);
  const auto& s = expr::symbols();
  if (depth <= 0) {
    switch (uniform(0, 7)) {
      case 0:
      case 1:
        if (with_score) return s.score;
        return to_float(s.query);
      case 2:
        return to_float(int32(0));
      case 3:
        return std::numeric_limits<float>::infinity();
      case 4:
        return std::numeric_limits<float>::quiet_NaN();
      default:
        return real(-4, 4);
    }
  }
  const auto sub = [&] { return float32(depth - 1 - uniform(0, 1), with_score); };
  switch (uniform(0, 20)) {
    case 0:
      return -sub();
    case 1:
      return abs(sub());
    case 2:
      return exp(sub());
    case 3:
      return log(sub());
    case 4:
      return tanh(sub());
    case 5:
      return sqrt(sub());
    case 6:
      return to_float(int32(depth - 1));
    case 7:
      return sub() + sub();
    case 8:
      return sub() - sub();
    case 9:
      return sub() * sub();
    case 10:
      return sub() / sub();
    case 11:
      return min(sub(), sub());
    case 12:
      return max(sub(), sub());
    case 13:
      return select(boolean(depth - 1, with_score), sub(), sub());
    case 14:
      return load(true, depth);
    case 15:
      return exp2(sub());
    case 16:
      return erf(sub());
    case 17:
      return floor(rounded_float(depth - 1));
    case 18:
      return sin(sub());
    case 19:
      return cos(sub());
    default:
      return sub() * int32(depth - 1);
  }
}

Expr RandomExpr::rounded_float(int depth) {
  if (depth <= 0) {
    if (uniform(0, 2) == 0) return real(-4, 4);
    if (smooth_) return to_float(uniform(0, 1) == 0 ? expr::symbols().query : expr::symbols().key);
    return uniform(0, 1) == 0 ? load(true, 0) : to_float(int32(0));
  }
  const auto sub = [&] { return rounded_float(depth - 1 - uniform(0, 1)); };
  switch (uniform(0, 8)) {
    case 0:
      return -sub();
    case 1:
      return abs(sub());
    case 2:
      return sqrt(abs(sub()));
    case 3:
      return sub() + sub();
    case 4:
      return sub() - sub();
    case 5:
      return sub() * sub();
    case 6:
      return sub() / sub();
    case 7:
      return floor(sub());
    default:
      return uniform(0, 1) == 0 ? min(sub(), sub()) : select(sub() < sub(), sub(), sub());
  }
}

Expr RandomExpr::smooth_float(int depth, bool with_score) {
  const auto& s = expr::symbols();
  if (depth <= 0) {
    if (with_score && uniform(0, 1) == 0) return s.score;
    return uniform(0, 2) == 0 ? to_float(min(abs(s.query - s.key), 3)) : Expr(real(-2, 2));
  }
  const auto sub = [&] { return smooth_float(depth - 1 - uniform(0, 1), with_score); };
  switch (uniform(0, 16)) {
    case 0:
      return -sub();
    case 1:
      return abs(sub());
    case 2:
      return exp(2 * tanh(sub()));
    case 3:
      return log(1 + abs(sub()));
    case 4:
      return tanh(sub());
    case 5:
      return sqrt(0.5 + abs(sub()));
    case 6:
      return sub() + sub();
    case 7:
      return sub() - sub();
    case 8:
      return sub() * tanh(sub());
    case 9:
      return sub() / (1.5 + abs(sub()));
    case 10:
      return exp2(3 * tanh(sub()));
    case 11:
      return erf(sub());
    case 12:
      return uniform(0, 1) == 0 ? min(sub(), sub()) : max(sub(), sub());
    case 13: {
      const Expr whole = uniform(0, 1) == 0 ? floor(rounded_float(depth - 1))
                                            : to_float(to_int(rounded_float(depth - 1)));
      return min(max(whole, -8), 8);
    }
    case 14:
      return sin(sub());
    case 15:
      return cos(sub());
    default:
      return uniform(0, 1) == 0 ? select(boolean(depth - 1, false), sub(), sub()) : load(true, 1);
  }
}

Expr RandomExpr::boolean(int depth, bool with_score) {
  if (depth <= 0) return uniform(0, 1) == 0;
  const auto sub = [&] { return boolean(depth - 1 - uniform(0, 1), with_score); };
  const bool is_float = !smooth_ && uniform(0, 2) == 0;
  const auto number = [&] { return is_float ? float32(depth - 1, with_score) : int32(depth - 1); };
  switch (uniform(0, 9)) {
    case 0:
      return !sub();
    case 1:
      return number() < number();
    case 2:
      return number() <= number();
    case 3:
      return number() == number();
    case 4:
      return number() != number();
    case 5:
      return sub() && sub();
    case 6:
      return sub() || sub();
    case 7:
      return sub() == sub();
    case 8:
      return select(sub(), sub(), sub());
    default:
      return number() >= number();
  }
}

}  // namespace attn::test
