// Mask and score expressions: a small, immutable, typed tree built by ordinary C++ operators.
//
//   auto s = attn::expr::symbols();
//   Expr mask  = s.query >= s.key && s.query - s.key < 1024;
//   Expr score = 30 * tanh(s.score / 30) - slope[s.head] * (s.query - s.key);
//
// One tree has four readers: it is evaluated (scalars here, vectors over tiles in the CPU backend),
// printed (readable text that parse() reads back; CUDA C++), differentiated, and bounded over a
// tile of queries and keys.
//
// Semantics, the same on every backend:
//
// - int32 is two's complement and wraps. `/` and `%` round toward minus infinity; division by zero
//   gives 0, and so does its remainder. `& | ^` are of the bits. `<<` and `>>` by less than 0 or
//   more than 31 shift every bit out: the result is 0, or what the sign fills, 0 or -1.
// - float32 is IEEE single precision; the fp64 reference evaluates scores in double instead. exp,
//   log, tanh, sin and their kin are within a few units in the last place, for every argument;
//   16-bit problems on a GPU take shorter forms, of which tanh errs most, by 5e-4 of its value
//   (src/cuda/device/expr/fast.cuh).
// - floor and to_int jump at integers, so their operand is float32 for every reader: each of its
//   operations is rounded to float32 by itself, in the reference and in scores too. The score must
//   not stand in it: kernels round a score each in their own way. to_int rounds toward zero; what
//   lies outside of int32 becomes its nearest bound, and NaN 0.
// - boolean: && and || evaluate both sides.
// - Mixed int32 and float32 operands convert to float32; a boolean never converts.
// - A load whose index lies outside the buffer's shape reads as zero; a dimension of size 1 accepts
//   any index.
// - min(a, b) is a < b ? a : b and max(a, b) is a > b ? a : b, so a NaN operand gives b.
// - Building folds constants and drops neutral operands, but none that reads a buffer: what a text
//   names is part of its tree, in `f[key] >= 0 || true` too. The sign of a zero is the only thing
//   that may change by it.
//
// Functions here are thread-safe: trees never change.
#pragma once

#include <concepts>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "attn/export.hpp"
#include "attn/kept_vector.hpp"
#include "attn/tensor.hpp"

namespace ATTN_API attn {  // NOLINT(modernize-concat-nested-namespaces): not with an attribute
namespace expr {

enum class Type : std::uint8_t { boolean, int32, float32 };

enum class Op : std::uint8_t {
  constant,
  // Symbols. score is float32, all others int32; query and key count from 0 within their sequence.
  score,
  query,
  key,
  batch,
  head,
  seqlen_q,
  seqlen_k,
  load,  // element of a named buffer, one int32 index a dimension
  // Unary
  neg,
  logical_not,
  abs,
  exp,
  exp2,
  log,
  tanh,
  erf,
  sin,
  cos,
  sqrt,
  to_float,
  floor,
  to_int,
  // Binary
  add,
  sub,
  mul,
  div,
  mod,
  bit_and,
  bit_or,
  bit_xor,
  shift_left,
  shift_right,
  min,
  max,
  lt,
  le,
  eq,
  ne,
  logical_and,
  logical_or,
  // Ternary: condition, value if true, value if false
  select,
};

struct Node;
class Expr;

// A named tensor read by an expression. dtype i32 and u8 load as int32, f32, bf16 and f16 as
// float32. `data` may be null in the description of a problem and bound by name when it runs
// (Inputs::buffers). `owner` may keep the memory alive.
class Buffer {
 public:
  // Throws Error(invalid_argument) unless name is an identifier (letters, digits, _; at most 64
  // characters) that is no symbol or function, rank 0 (attn/scalar.hpp) to 4, the dtype one above.
  Buffer(std::string name, Tensor tensor, std::shared_ptr<const void> owner = nullptr);
  // Without moves: one that was moved from keeps its name and its memory.
  Buffer(const Buffer&) = default;
  Buffer& operator=(const Buffer&) = default;
  ~Buffer() = default;
  const std::string& name() const noexcept { return name_; }
  const Tensor& tensor() const noexcept { return tensor_; }
  // The element at int32 indices, one a dimension, as int32 or float32. Both throw
  // Error(invalid_argument) for another number or type of indices.
  Expr operator[](const Expr& index) const;                 // rank 1
  Expr operator()(const std::vector<Expr>& indices) const;  // any rank: buffer({s.batch, s.key})

 private:
  std::string name_;
  Tensor tensor_;
  std::shared_ptr<const void> owner_;
};

// Value handle; not a bool (`if (a < b)` on symbols is a mistake); cheap to copy; an empty Expr
// means "not given". Thread-safe: nodes never change. A tree has at most 256 levels and 65536 nodes
// (shared ones counted each time), so that every reader may recurse; building a larger one throws
// Error(invalid_argument).
class Expr {
 public:
  Expr() = default;
  // A template so that only bool itself fits: a pointer must not become a boolean.
  template <std::same_as<bool> T>
  Expr(T value) : Expr(boolean(value)) {}  // NOLINT(google-explicit-constructor): literals mix
  Expr(int value);                         // NOLINT(google-explicit-constructor)
  // Other integers, as in s.key < n with a long or a size_t. Throws Error(invalid_argument) unless
  // the value fits int32.
  template <std::integral T>
  requires(!std::same_as<T, bool> && !std::same_as<T, int>)
      Expr(T value)  // NOLINT(google-explicit-constructor)
      : Expr(checked(std::in_range<std::int32_t>(+value), std::to_string(+value),
                     static_cast<std::int32_t>(value))) {}
  Expr(float value);   // NOLINT(google-explicit-constructor)
  Expr(double value);  // NOLINT(google-explicit-constructor): rounded to float32
  explicit Expr(std::shared_ptr<const Node> node) : node_(std::move(node)) {}
  // Without moves: a Problem that was moved from keeps its mask, as one without it would run too.
  Expr(const Expr&) = default;
  Expr& operator=(const Expr&) = default;
  ~Expr() = default;

  bool empty() const noexcept { return node_ == nullptr; }
  const Node& node() const noexcept { return *node_; }      // not of an empty one
  const Node* get() const noexcept { return node_.get(); }  // null of an empty one
  Type type() const;  // throws Error(invalid_argument) for an empty one

 private:
  static Expr boolean(bool value);
  static int checked(bool fits, const std::string& text, std::int32_t value);

  std::shared_ptr<const Node> node_;
};

struct Node {
  Op op = Op::constant;
  Type type = Type::int32;
  std::int32_t int_value = 0;            // constant of type int32 or boolean (0 or 1)
  float float_value = 0;                 // constant of type float32
  std::vector<Expr> args;                // operands; indices of a load
  std::shared_ptr<const Buffer> buffer;  // of a load
  std::int32_t depth = 1;                // levels of the tree below and with this node
  std::int32_t size = 1;                 // its nodes, shared ones counted each time
  bool reads = false;                    // a load stands in it
};

struct Symbols {
  Expr score, query, key, batch, head, seqlen_q, seqlen_k;
  // The query's place among the keys: query + (seqlen_k - seqlen_q), the last query standing at the
  // last key. With 4 queries of 12 keys query 0 has position 8; with more queries than keys the
  // first have negative ones. It is that sum, so every reader knows it; text calls it `position`.
  Expr position;
};
const Symbols& symbols();

// Each throws Error(invalid_argument) that prints both operands when the types do not fit.
// Constants are folded.
Expr operator-(const Expr& a);
Expr operator!(const Expr& a);
Expr operator+(const Expr& a, const Expr& b);
Expr operator-(const Expr& a, const Expr& b);
Expr operator*(const Expr& a, const Expr& b);
Expr operator/(const Expr& a, const Expr& b);
Expr operator%(const Expr& a, const Expr& b);
Expr operator&(const Expr& a, const Expr& b);  // int32: of the bits; && is for booleans
Expr operator|(const Expr& a, const Expr& b);
Expr operator^(const Expr& a, const Expr& b);
Expr operator<<(const Expr& a, const Expr& b);
Expr operator>>(const Expr& a, const Expr& b);  // keeps the sign: -5 >> 1 is -3
Expr operator<(const Expr& a, const Expr& b);
Expr operator<=(const Expr& a, const Expr& b);
Expr operator>(const Expr& a, const Expr& b);
Expr operator>=(const Expr& a, const Expr& b);
Expr operator==(const Expr& a, const Expr& b);
Expr operator!=(const Expr& a, const Expr& b);
Expr operator&&(const Expr& a, const Expr& b);
Expr operator||(const Expr& a, const Expr& b);
Expr abs(const Expr& a);
Expr exp(const Expr& a);
Expr exp2(const Expr& a);  // 2^a
Expr log(const Expr& a);
Expr tanh(const Expr& a);
Expr erf(const Expr& a);  // of GELU: 0.5 * x * (1 + erf(x / sqrt(2)))
Expr sin(const Expr& a);  // of radians; of an infinity NaN, as cos
Expr cos(const Expr& a);
Expr tan(const Expr& a);  // sin(a) / cos(a)
Expr sqrt(const Expr& a);
Expr to_float(const Expr& a);
// These throw Error(invalid_argument), too, where the operand depends on score. An int32 operand of
// floor, ceil and trunc becomes float32, which they leave as it is; to_int leaves an int32.
Expr floor(const Expr& a);   // float32: toward minus infinity; infinities and NaN stay
Expr ceil(const Expr& a);    // -floor(-a)
Expr trunc(const Expr& a);   // float32: toward zero, for any magnitude
Expr to_int(const Expr& a);  // int32: toward zero, saturating, 0 of NaN
Expr min(const Expr& a, const Expr& b);
Expr max(const Expr& a, const Expr& b);
Expr select(const Expr& condition, const Expr& if_true, const Expr& if_false);

// Empty expressions may be given: two are the same, nothing stands in one, and it reads no buffer.
bool same(const Expr& a, const Expr& b);    // structural equality (buffers by name)
bool depends_on(const Expr& e, Op symbol);  // whether the symbol, or a load, stands in e
// Each name once, in order of first use. Throws Error(invalid_argument) if two different tensors
// have one name.
std::vector<std::shared_ptr<const Buffer>> buffers(const Expr& e);
// e with every occurrence of the symbol replaced: substitute(alibi, Op::score, softcap) composes
// scores. Throws Error(invalid_argument) unless the replacement is of the symbol's type.
Expr substitute(const Expr& e, Op symbol, const Expr& replacement);

// d e / d score, simplified (0.0 where e does not depend on it); where e has a kink (abs, min, max)
// the derivative of the side that evaluate takes, and of floor 0. And d e / d (the value read by
// each load of `buffer`), summed by the caller per load; loads by which the derivative is 0 are
// left out. Both throw Error(invalid_argument) unless e is float32.
Expr derivative(const Expr& e);
struct LoadDerivative {
  Expr load;        // the load node: its indices say which element
  Expr derivative;  // d e / d that element
};
std::vector<LoadDerivative> load_derivatives(const Expr& e, std::string_view buffer);

// Readable infix text; parse(to_string(e), buffers) gives an Expr with same(e, result).
std::string to_string(const Expr& e);
// Names in the text: score query key batch head seqlen_q seqlen_k position, functions as above but
// tan, ceil and trunc, which are made of others, and the given buffers written name[i, j]. Throws
// Error(invalid_argument) with the column and what was expected. Depth and length bounded.
Expr parse(std::string_view text, const std::vector<Buffer>& buffers = {});

// One CUDA C++ expression. Symbols print as the identifiers of the same name, literals exactly (hex
// floats), loads as attn_load_<name>(i, j), arithmetic as functions: attn_add(a, b), attn_exp(a),
// ... (docs/expressions.md). Throws Error(invalid_argument) for an empty e.
std::string to_cuda(const Expr& e);

// Where an expression is evaluated.
struct Point {
  double score = 0;
  std::int32_t query = 0, key = 0, batch = 0, head = 0, seqlen_q = 0, seqlen_k = 0;
};
// Tensors bound by name at run time; they win over the tensor inside the Buffer. Thread-safe to
// read.
using Bindings = KeptVector<std::pair<std::string, Tensor>>;

// The value of e at one point, slow and obvious. float32 arithmetic in Real = float or double (the
// reference uses double for scores and float for masks, so that every backend masks alike). Throws
// Error(invalid_argument) for an empty e, and for a buffer that has no data in memory of the CPU.
template <class Real>
ATTN_API Real evaluate(const Expr& e, const Point& at,
                       const Bindings& bindings = {});  // booleans give 0 or 1

// Closed ranges of a tile: queries [query_min, query_max], keys [key_min, key_max], one batch,
// heads likewise.
struct Tile {
  std::int32_t query_min = 0, query_max = 0, key_min = 0, key_max = 0, batch = 0;
  std::int32_t head_min = 0, head_max = 0, seqlen_q = 0, seqlen_k = 0;
};
enum class Coverage : std::uint8_t { empty, full, mixed };

// Interval arithmetic over the tile. empty: the mask is false at every point; full: true at every
// point; mixed otherwise (or not provable). Never contradicts evaluate<float>. Cost: O(nodes), plus
// at most 4096 buffer elements a load. Throws Error(invalid_argument) unless mask is boolean.
Coverage classify(const Expr& mask, const Tile& tile, const Bindings& bindings = {});

}  // namespace expr
}  // namespace attn
