// The public operators: each names its operation and leaves the rest to make().
#include "attn/expr.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "attn/error.hpp"
#include "attn/scalar.hpp"
#include "core/expr/build.hpp"
#include "core/first_made.hpp"
#include "core/text/echo.hpp"

namespace attn::expr {
namespace {

// Words that the text form gives a meaning.
bool is_reserved(std::string_view word) {
  for (int op = 0; op <= static_cast<int>(Op::select); ++op) {
    if (word == spelling(static_cast<Op>(op))) return true;
  }
  return word == kPosition || word == "true" || word == "false" || word == "inf" || word == "nan";
}

bool is_identifier(std::string_view text) {
  constexpr std::size_t kMaxLength = 64;
  const auto is_word = [](char c) {
    return c == '_' || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
  };
  return !text.empty() && text.size() <= kMaxLength && !(text[0] >= '0' && text[0] <= '9') &&
         std::all_of(text.begin(), text.end(), is_word);
}

Expr symbol(Op op) {
  Node node;
  node.op = op;
  node.type = op == Op::score ? Type::float32 : Type::int32;
  return Expr(std::make_shared<const Node>(std::move(node)));
}

}  // namespace

Buffer::Buffer(std::string name, Tensor tensor, std::shared_ptr<const void> owner)
    : name_(std::move(name)), tensor_(tensor), owner_(std::move(owner)) {
  if (!is_identifier(name_) || is_reserved(name_)) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("buffer name '{}': accepted are 1 to 64 letters, digits and _, not "
                            "starting with a digit, other than the names of symbols and functions",
                            core::echo(name_)));
  }
  if (tensor_.rank < 0 || tensor_.rank > kMaxRank) {
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("buffer '{}': rank {}; accepted are 0 to {}", name_, tensor_.rank, kMaxRank));
  }
  if (is_scalar(*this) && ((tensor_.dtype != DType::i32 && tensor_.dtype != DType::f32) ||
                           tensor_.device.type != DeviceType::cpu)) {
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("buffer '{}': a scalar of {} on {}; accepted are i32 and f32 on the CPU", name_,
                    attn::name(tensor_.dtype), attn::to_string(tensor_.device)));
  }
  // Messages print a scalar, so it has to be readable before any check of a call.
  if (is_scalar(*this) && reinterpret_cast<std::uintptr_t>(tensor_.data) % 4 != 0) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("buffer '{}': a scalar at address {}; accepted are multiples of 4",
                            name_, tensor_.data));
  }
  if (std::any_of(tensor_.shape.begin(), tensor_.shape.begin() + tensor_.rank,
                  [](std::int64_t size) { return size < 0; })) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("buffer '{}': shape of {}; sizes must not be negative", name_,
                            attn::to_string(tensor_)));
  }
  switch (tensor_.dtype) {
    case DType::f32:
    case DType::bf16:
    case DType::f16:
    case DType::i32:
    case DType::u8:
      return;
    case DType::f64:
    case DType::i64:
      break;
  }
  throw Error(ErrorCode::invalid_argument,
              fmt::format("buffer '{}': dtype {}; accepted are f32, bf16, f16, i32 and u8", name_,
                          attn::name(tensor_.dtype)));
}

Expr Buffer::operator[](const Expr& index) const { return (*this)({index}); }
Expr Buffer::operator()(const std::vector<Expr>& indices) const {
  return load(std::make_shared<const Buffer>(*this), indices);
}

Expr scalar(std::string name, const Expr& value) {
  if (value.empty() || !is_constant(value) || value.type() == Type::boolean) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("scalar '{}' of value '{}'; accepted is a number", core::echo(name),
                            core::echo(to_string(value))));
  }
  const Node& node = value.node();
  const Tensor number =
      node.type == Type::int32 ? tensor(&node.int_value, {}) : tensor(&node.float_value, {});
  return Buffer(std::move(name), number, std::make_shared<const Expr>(value))({});
}

Expr Expr::boolean(bool value) { return expr::boolean(value); }
int Expr::checked(bool fits, const std::string& text, std::int32_t value) {
  if (!fits) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("expression: the integer {}; accepted are those that fit int32", text));
  }
  return value;
}
Expr::Expr(int value) : Expr(expr::int32(value)) {}
Expr::Expr(float value) : Expr(expr::float32(value)) {}
Expr::Expr(double value) : Expr(expr::float32(static_cast<float>(value))) {}

Type Expr::type() const {
  if (empty()) {
    throw Error(ErrorCode::invalid_argument, "expression: an empty Expr has no type; give one");
  }
  return node_->type;
}

const Symbols& symbols() {
  static constinit core::FirstMade<const Symbols> symbols;
  return symbols.get([] {
    Symbols s{symbol(Op::score), symbol(Op::query),    symbol(Op::key),      symbol(Op::batch),
              symbol(Op::head),  symbol(Op::seqlen_q), symbol(Op::seqlen_k), {}};
    s.position = s.query + (s.seqlen_k - s.seqlen_q);
    return s;
  });
}

Expr operator-(const Expr& a) { return make(Op::neg, std::array{a}); }
Expr operator!(const Expr& a) { return make(Op::logical_not, std::array{a}); }
Expr operator+(const Expr& a, const Expr& b) { return make(Op::add, std::array{a, b}); }
Expr operator-(const Expr& a, const Expr& b) { return make(Op::sub, std::array{a, b}); }
Expr operator*(const Expr& a, const Expr& b) { return make(Op::mul, std::array{a, b}); }
Expr operator/(const Expr& a, const Expr& b) { return make(Op::div, std::array{a, b}); }
Expr operator%(const Expr& a, const Expr& b) { return make(Op::mod, std::array{a, b}); }
Expr operator&(const Expr& a, const Expr& b) { return make(Op::bit_and, std::array{a, b}); }
Expr operator|(const Expr& a, const Expr& b) { return make(Op::bit_or, std::array{a, b}); }
Expr operator^(const Expr& a, const Expr& b) { return make(Op::bit_xor, std::array{a, b}); }
Expr operator<<(const Expr& a, const Expr& b) { return make(Op::shift_left, std::array{a, b}); }
Expr operator>>(const Expr& a, const Expr& b) { return make(Op::shift_right, std::array{a, b}); }
Expr operator<(const Expr& a, const Expr& b) { return make(Op::lt, std::array{a, b}); }
Expr operator<=(const Expr& a, const Expr& b) { return make(Op::le, std::array{a, b}); }
Expr operator>(const Expr& a, const Expr& b) { return make(Op::lt, std::array{b, a}); }
Expr operator>=(const Expr& a, const Expr& b) { return make(Op::le, std::array{b, a}); }
Expr operator==(const Expr& a, const Expr& b) { return make(Op::eq, std::array{a, b}); }
Expr operator!=(const Expr& a, const Expr& b) { return make(Op::ne, std::array{a, b}); }
Expr operator&&(const Expr& a, const Expr& b) { return make(Op::logical_and, std::array{a, b}); }
Expr operator||(const Expr& a, const Expr& b) { return make(Op::logical_or, std::array{a, b}); }
Expr abs(const Expr& a) { return make(Op::abs, std::array{a}); }
Expr exp(const Expr& a) { return make(Op::exp, std::array{a}); }
Expr exp2(const Expr& a) { return make(Op::exp2, std::array{a}); }
Expr log(const Expr& a) { return make(Op::log, std::array{a}); }
Expr tanh(const Expr& a) { return make(Op::tanh, std::array{a}); }
Expr erf(const Expr& a) { return make(Op::erf, std::array{a}); }
Expr sin(const Expr& a) { return make(Op::sin, std::array{a}); }
Expr cos(const Expr& a) { return make(Op::cos, std::array{a}); }
Expr tan(const Expr& a) { return sin(a) / cos(a); }
Expr sqrt(const Expr& a) { return make(Op::sqrt, std::array{a}); }
Expr to_float(const Expr& a) { return make(Op::to_float, std::array{a}); }
Expr floor(const Expr& a) { return make(Op::floor, std::array{a}); }
Expr ceil(const Expr& a) { return -floor(-to_float(a)); }
Expr trunc(const Expr& a) { return max(0, floor(a)) + min(0, ceil(a)); }  // a NaN stays
Expr to_int(const Expr& a) { return make(Op::to_int, std::array{a}); }
Expr min(const Expr& a, const Expr& b) { return make(Op::min, std::array{a, b}); }
Expr max(const Expr& a, const Expr& b) { return make(Op::max, std::array{a, b}); }
Expr select(const Expr& condition, const Expr& if_true, const Expr& if_false) {
  return make(Op::select, std::array{condition, if_true, if_false});
}

}  // namespace attn::expr
