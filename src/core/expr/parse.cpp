// The text of an expression as a tree, by precedence climbing. The grammar is that of C's
// operators; to_string() is its inverse.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>
#include <utility>

#include "attn/error.hpp"
#include "core/expr/build.hpp"
#include "core/expr/grammar.hpp"
#include "core/text/echo.hpp"

namespace attn::expr {
namespace {

// Each level of a tree needs at most two of text: an operator, a prefix or the list of a call, and
// what stands there in parentheses or by itself.
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

// An operation whose text has begun and is not complete.
struct OpenOperation {
  std::size_t column;
  Op op = Op::constant;                       // of parentheses alone
  char close = 0;                             // what ends it; 0 of an operator
  int precedence = 0;                         // of an operator
  bool swapped = false;                       // of a binary one
  std::shared_ptr<const Buffer> buffer = {};  // of a load
  std::vector<Expr> operands = {};            // what is read of them

  bool is_list() const { return close != 0 && op != Op::constant; }
  int levels() const { return is_list() ? 2 : 1; }  // a name and what is in its brackets
};

// Open operations are in a vector, not on the stack, of which threads may have little.
class Parser {
 public:
  Parser(std::string_view text, const std::vector<Buffer>& buffers) : text_(text) {
    for (const Buffer& buffer : buffers) buffers_.push_back(std::make_shared<const Buffer>(buffer));
  }

  Expr run() {
    if (text_.size() > kMaxText) {
      fail(0, fmt::format("{} bytes of text, at most {} are accepted", text_.size(), kMaxText));
    }
    Expr value;  // empty where an operand comes next
    while (true) {
      if (value.empty()) {
        value = operand();
        continue;
      }
      skip_space();
      const BinaryOperator* const op = next_operator();
      value = finish_operators(op == nullptr ? 0 : precedence(op->op), std::move(value));
      if (op != nullptr) {
        value = open_binary(*op, std::move(value));
      } else if (!open_.empty()) {
        value = finish_item(std::move(value));
      } else if (at_ == text_.size()) {
        return value;
      } else {
        fail(at_, fmt::format("expected an operator or the end, found {}", found()));
      }
    }
  }

 private:
  // A value that has no operands in the text; else empty, and what begins here is open.
  Expr operand() {
    skip_space();
    const std::size_t column = at_;
    check_nesting(column, 1);
    const char c = peek();
    if (starts_number(at_) || (c == '-' && starts_number(at_ + 1))) {
      return number();  // with its sign: -2147483648 is an int32
    }
    if (is_letter(c)) return word();
    if (c != '-' && c != '!' && c != '(') {
      fail(at_, fmt::format("expected a value, found {}", found()));
    }
    ++at_;
    if (c == '(') return open({.column = column, .close = ')'});
    const Op op = c == '-' ? Op::neg : Op::logical_not;
    return open({.column = column, .op = op, .precedence = kUnaryPrecedence});
  }

  Expr word() {
    const std::size_t column = at_;
    while (at_ < text_.size() && (is_letter(text_[at_]) || is_digit(text_[at_]))) ++at_;
    const std::string_view name = text_.substr(column, at_ - column);
    for (const Op op : kFunctions) {
      if (name == spelling(op)) return open_list('(', {.column = column, .op = op, .close = ')'});
    }
    for (const auto& buffer : buffers_) {
      if (name != buffer->name()) continue;
      OpenOperation load{.column = column, .op = Op::load, .close = ']', .buffer = buffer};
      return is_scalar(*buffer) ? built(load) : open_list('[', std::move(load));
    }
    return symbol(column, name);
  }

  static Expr symbol(std::size_t column, std::string_view name) {
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

  // What opens an operation is followed by an operand, so there is no value yet.
  Expr open(OpenOperation operation) {
    nesting_ += operation.levels();
    open_.push_back(std::move(operation));
    return {};
  }
  Expr open_list(char bracket, OpenOperation list) {
    expect(bracket);
    check_nesting(at_, list.levels());
    return open(std::move(list));
  }
  Expr open_binary(const BinaryOperator& op, Expr left) {
    check_nesting(at_, 1);
    const std::size_t column = std::exchange(at_, at_ + op.text.size());
    return open({.column = column,
                 .op = op.op,
                 .precedence = precedence(op.op),
                 .swapped = op.swapped,
                 .operands = {std::move(left)}});
  }

  // The innermost open operation, with the last of its operands.
  Expr finish(Expr last) {
    OpenOperation operation = std::move(open_.back());
    open_.pop_back();
    nesting_ -= operation.levels();
    operation.operands.push_back(std::move(last));
    return built(operation);
  }

  // What the open operators that bind at least as `least` make of their last operand: equal ones
  // group to the left.
  Expr finish_operators(int least, Expr last) {
    while (!open_.empty() && open_.back().close == 0 && open_.back().precedence >= least) {
      last = finish(std::move(last));
    }
    return last;
  }

  // What a bracket ends after this; empty where a comma follows.
  Expr finish_item(Expr item) {
    OpenOperation& list = open_.back();
    if (list.is_list() && peek() == ',') {
      ++at_;
      list.operands.push_back(std::move(item));
      return {};
    }
    expect(list.close);
    return finish(std::move(item));
  }

  Expr number() {
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
    const auto digit = [&](std::size_t i) { return i < text_.size() && is_digit(text_[i]); };
    return digit(at) || (at < text_.size() && text_[at] == '.' && digit(at + 1));
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
    if (peek() != c) fail(at_, fmt::format("expected '{}', found {}", c, found()));
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

  void check_nesting(std::size_t column, int levels) const {
    if (nesting_ + levels > kMaxNesting) {
      fail(column, fmt::format("nested more than {} levels deep", kMaxNesting));
    }
  }

  // The operation on its operands; a type error says the column as well.
  static Expr built(OpenOperation& operation) {
    std::vector<Expr>& operands = operation.operands;
    const Op op = operation.op;
    if (op == Op::constant) return operands[0];
    if (operation.swapped) std::swap(operands[0], operands[1]);
    const std::size_t arity = is_unary(op) ? 1 : is_binary(op) ? 2 : 3;
    if (op != Op::load && operands.size() != arity) {
      fail(operation.column, fmt::format("expected {} operands of {}, found {}", arity,
                                         spelling(op), operands.size()));
    }
    try {
      return op == Op::load ? load(operation.buffer, operands) : make(op, operands);
    } catch (const Error& error) {
      fail(operation.column, error.what());
    }
  }

  [[noreturn]] static void fail(std::size_t at, const std::string& message) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("expression text, column {}: {}", at + 1, message));
  }

  std::string_view text_;
  std::vector<std::shared_ptr<const Buffer>> buffers_;
  std::size_t at_ = 0;
  std::vector<OpenOperation> open_;  // the innermost last
  int nesting_ = 0;                  // levels of open_
};

}  // namespace
Expr parse(std::string_view text, const std::vector<Buffer>& buffers) {
  return Parser(text, buffers).run();
}

}  // namespace attn::expr
