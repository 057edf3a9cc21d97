// The text of an expression as a tree, by recursive descent. The grammar is that of C's operators;
// to_string() is its inverse.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>
#include <span>

#include "attn/error.hpp"
#include "core/expr/build.hpp"
#include "core/expr/grammar.hpp"
#include "core/text/echo.hpp"

namespace attn::expr {
namespace {

// Each level of a tree needs at most two of text: an operator, a prefix or the list of a call, and
// what stands there in parentheses or by itself. The functions that call each other here take up to
// 210 bytes of stack a level, of which threads may have as little as 128 KB: what needs more, they
// leave to others that are not inlined.
constexpr int kMaxNesting = 2 * kMaxDepth;

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_letter(char c) { return c == '_' || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

struct BinaryOperator {
  std::string_view text;
  Op op;
  bool swapped;  // a > b is b < a
};
// Longer texts first: "<=" is not "<" and "=".
constexpr std::array kBinaryOperators = {
    BinaryOperator{"||", Op::logical_or, false}, BinaryOperator{"&&", Op::logical_and, false},
    BinaryOperator{"==", Op::eq, false},         BinaryOperator{"!=", Op::ne, false},
    BinaryOperator{"<=", Op::le, false},         BinaryOperator{">=", Op::le, true},
    BinaryOperator{"<<", Op::shift_left, false}, BinaryOperator{">>", Op::shift_right, false},
    BinaryOperator{"&", Op::bit_and, false},     BinaryOperator{"|", Op::bit_or, false},
    BinaryOperator{"^", Op::bit_xor, false},     BinaryOperator{"<", Op::lt, false},
    BinaryOperator{">", Op::lt, true},           BinaryOperator{"+", Op::add, false},
    BinaryOperator{"-", Op::sub, false},         BinaryOperator{"*", Op::mul, false},
    BinaryOperator{"/", Op::div, false},         BinaryOperator{"%", Op::mod, false}};

constexpr std::array kFunctions = {Op::abs,   Op::exp,    Op::exp2, Op::log,  Op::tanh,
                                   Op::erf,   Op::sin,    Op::cos,  Op::sqrt, Op::to_float,
                                   Op::floor, Op::to_int, Op::min,  Op::max,  Op::select};

class Parser {
 public:
  Parser(std::string_view text, const std::vector<Buffer>& buffers) : text_(text) {
    for (const Buffer& buffer : buffers) buffers_.push_back(std::make_shared<const Buffer>(buffer));
  }

  Expr run() {
    if (text_.size() > kMaxText) {
      fail(0, fmt::format("{} bytes of text, at most {} are accepted", text_.size(), kMaxText));
    }
    Expr e = expression(1);
    skip_space();
    if (at_ != text_.size())
      fail(at_, fmt::format("expected an operator or the end, found {}", found()));
    return e;
  }

 private:
  // Operators that bind at least as `least`; equal ones group to the left.
  Expr expression(int least) {
    Expr left = unary();
    while (true) {
      skip_space();
      const std::size_t column = at_;
      const BinaryOperator* const op = next_operator();
      if (op == nullptr || precedence(op->op) < least) return left;
      at_ += op->text.size();
      enter(column, 1);
      const Expr right = expression(precedence(op->op) + 1);
      nesting_ -= 1;
      left = op->swapped ? built(column, op->op, {&right, 1}, left)
                         : built(column, op->op, {&left, 1}, right);
    }
  }

  Expr unary() {
    skip_space();
    const std::size_t column = at_;
    enter(column, 1);
    Expr e;
    if (peek() == '-' && at_ + 1 < text_.size() && starts_number(at_ + 1)) {
      e = number();  // with its sign: -2147483648 is an int32
    } else if (peek() == '-' || peek() == '!') {
      const Op op = peek() == '-' ? Op::neg : Op::logical_not;
      ++at_;
      e = built(column, op, {}, unary());
    } else {
      e = primary();
    }
    nesting_ -= 1;
    return e;
  }

  void enter(std::size_t column, int levels) {
    nesting_ += levels;
    if (nesting_ > kMaxNesting) too_deep(column);
  }

  Expr primary() {
    if (at_ < text_.size() && starts_number(at_)) return number();
    if (peek() == '(') {
      ++at_;
      Expr e = expression(1);
      expect(')');
      return e;
    }
    if (is_letter(peek())) return word();
    no_value();
  }

  [[gnu::noinline]] Expr word() {
    const std::size_t column = at_;
    while (at_ < text_.size() && (is_letter(text_[at_]) || is_digit(text_[at_]))) ++at_;
    const std::string_view name = text_.substr(column, at_ - column);
    for (const Op op : kFunctions) {
      if (name == spelling(op)) return call(column, op);
    }
    for (const auto& buffer : buffers_) {
      if (name == buffer->name()) return element(column, buffer);
    }
    return symbol(column, name);
  }

  [[gnu::noinline]] static Expr symbol(std::size_t column, std::string_view name) {
    if (name == "true" || name == "false") return boolean(name == "true");
    if (name == "inf") return float32(std::numeric_limits<float>::infinity());
    if (name == "nan") return float32(std::numeric_limits<float>::quiet_NaN());
    const Symbols& s = symbols();
    if (name == kPosition) return s.position;
    for (const Expr* symbol :
         {&s.score, &s.query, &s.key, &s.batch, &s.head, &s.seqlen_q, &s.seqlen_k}) {
      if (name == spelling(symbol->node().op)) return *symbol;
    }
    fail(column,
         fmt::format("expected a symbol, function or buffer, found '{}'", core::echo(name)));
  }

  Expr call(std::size_t column, Op op) {
    const std::vector<Expr> args = list('(', ')');
    const std::size_t arity = is_unary(op) ? 1 : is_binary(op) ? 2 : 3;
    if (args.size() != arity) wrong_arity(column, op, arity, args.size());
    return built(column, op, args);
  }

  Expr element(std::size_t column, const std::shared_ptr<const Buffer>& buffer) {
    const std::vector<Expr> indices = is_scalar(*buffer) ? std::vector<Expr>() : list('[', ']');
    return loaded(column, buffer, indices);
  }

  std::vector<Expr> list(char open, char close) {
    expect(open);
    enter(at_, 1);
    std::vector<Expr> items;
    while (true) {
      items.push_back(expression(1));
      skip_space();
      if (peek() != ',') break;
      ++at_;
    }
    nesting_ -= 1;
    expect(close);
    return items;
  }

  [[gnu::noinline]] Expr number() {
    const std::size_t column = at_;
    std::size_t end = at_ + (text_[at_] == '-' ? 1 : 0);
    bool is_float = false;
    for (; end < text_.size(); ++end) {
      const char c = text_[end];
      const bool exponent = c == 'e' || c == 'E';
      const bool sign = (c == '+' || c == '-') && (text_[end - 1] == 'e' || text_[end - 1] == 'E');
      if (!is_digit(c) && c != '.' && !exponent && !sign) break;
      is_float = is_float || !is_digit(c);
    }
    const std::string_view literal = text_.substr(column, end - column);
    at_ = end;
    return is_float ? literal_as<float>(column, literal, "float32")
                    : literal_as<std::int32_t>(column, literal, "int32");
  }

  template <class T>
  Expr literal_as(std::size_t column, std::string_view literal, std::string_view type) {
    T value{};
    const auto [end, error] =
        std::from_chars(literal.data(), literal.data() + literal.size(), value);
    if (error != std::errc() || end != literal.data() + literal.size()) {
      fail(column,
           fmt::format("expected a number that fits {}, found '{}'", type, core::echo(literal)));
    }
    return Expr(value);
  }

  bool starts_number(std::size_t at) const {
    return is_digit(text_[at]) ||
           (text_[at] == '.' && at + 1 < text_.size() && is_digit(text_[at + 1]));
  }

  // Null where none stands here.
  const BinaryOperator* next_operator() const {
    const auto* found =
        std::find_if(kBinaryOperators.begin(), kBinaryOperators.end(), [&](const auto& candidate) {
          return text_.substr(at_, candidate.text.size()) == candidate.text;
        });
    return found == kBinaryOperators.end() ? nullptr : found;
  }

  void expect(char c) {
    skip_space();
    if (peek() != c) not_found(c);
    ++at_;
  }

  char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }

  void skip_space() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\t' || text_[at_] == '\n')) {
      ++at_;
    }
  }

  std::string found() const {
    if (at_ >= text_.size()) return "the end";
    const char c = text_[at_];
    return c > ' ' && c <= '~' ? fmt::format("'{}'", c)
                               : fmt::format("byte {}", static_cast<unsigned char>(c));
  }

  // Build, and add the column to what a type error says.
  [[gnu::noinline]] static Expr built(std::size_t at, Op op, std::span<const Expr> args) {
    return checked(at, [&] { return make(op, args); });
  }
  // Of some operands and a last one.
  [[gnu::noinline]] static Expr built(std::size_t at, Op op, std::span<const Expr> first,
                                      const Expr& last) {
    std::vector<Expr> args(first.begin(), first.end());
    args.push_back(last);
    return built(at, op, args);
  }
  [[gnu::noinline]] static Expr loaded(std::size_t at, const std::shared_ptr<const Buffer>& buffer,
                                       const std::vector<Expr>& indices) {
    return checked(at, [&] { return load(buffer, indices); });
  }
  template <class Build>
  static Expr checked(std::size_t at, Build build) {
    try {
      return build();
    } catch (const Error& error) {
      fail(at, error.what());
    }
  }

  [[noreturn, gnu::noinline]] static void too_deep(std::size_t column) {
    fail(column, fmt::format("nested more than {} levels deep", kMaxNesting));
  }
  [[noreturn, gnu::noinline]] void no_value() const {
    fail(at_, fmt::format("expected a value, found {}", found()));
  }
  [[noreturn, gnu::noinline]] void not_found(char c) const {
    fail(at_, fmt::format("expected '{}', found {}", c, found()));
  }
  [[noreturn, gnu::noinline]] static void wrong_arity(std::size_t column, Op op, std::size_t arity,
                                                      std::size_t found) {
    fail(column, fmt::format("expected {} operands of {}, found {}", arity, spelling(op), found));
  }
  [[noreturn]] static void fail(std::size_t at, const std::string& message) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("expression text, column {}: {}", at + 1, message));
  }

  std::string_view text_;
  std::vector<std::shared_ptr<const Buffer>> buffers_;
  std::size_t at_ = 0;
  int nesting_ = 0;
};

}  // namespace
Expr parse(std::string_view text, const std::vector<Buffer>& buffers) {
  return Parser(text, buffers).run();
}

}  // namespace attn::expr
