#include "cuda/jit/expression_text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <string_view>

#include "attn/error.hpp"
#include "core/expr/build.hpp"
#include "core/expr/cuda_text.hpp"
#include "cuda/jit/expression_buffers.hpp"
#include "cuda/jit/expression_factors.hpp"
#include "cuda/jit/expression_range.hpp"
#include "cuda/jit/mask_bounds.hpp"

namespace attn::cuda {
namespace {

using expr::CudaMath;
using expr::Expr;
using expr::Instruction;
using expr::Op;
using expr::Program;
using expr::Type;

// A value longer than this gets a name, as one that is used twice: the text stays readable, and
// its nesting far from what a compiler takes.
constexpr std::size_t kLongestValue = 120;

bool is_leaf(const Instruction& in) { return in.num_args == 0; }
bool uses(const Program& program, Op symbol) {
  return std::any_of(program.instructions.begin(), program.instructions.end(),
                     [&](const Instruction& in) { return in.op == symbol; });
}

std::vector<std::string> operands_of(const Instruction& in,
                                     const std::vector<std::string>& values) {
  std::vector<std::string> operands;
  for (int a = 0; a < in.num_args; ++a) {
    operands.push_back(values[static_cast<std::size_t>(in.args[a])]);
  }
  return operands;
}

// A load that many scores share.
bool is_shared(const Instruction& in) {
  return in.op == Op::load && in.dependence != expr::Dependence::full;
}

// Something is loaded for each score.
bool loads_elements(const Program& program) {
  return std::any_of(program.instructions.begin(), program.instructions.end(),
                     [](const Instruction& in) { return in.op == Op::load && !is_shared(in); });
}

// The int32 `text` + coefficient * step, where a score's key is key_first + step.
struct Linear {
  std::string text;  // empty: not of this form
  int coefficient = 0;
};

// Prints what a program computes; `factors` of a score's, null for a mask's. is_small: with
// polynomials for tanh.
class Values {
 public:
  Values(const Program& program, const ScoreFactors* factors, bool is_small = false)
      : program_(program),
        factors_(factors),
        is_small_(is_small),
        math_(factors == nullptr ? CudaMath::exact : CudaMath::fast),
        small_(small_in_short_sequences(program)),
        users_(program.instructions.size()) {
    for (std::size_t i = 0; i < users_.size(); ++i) linear_.push_back(linear(i));
    users_[result()] = 1;
    for (std::size_t i = users_.size(); i-- > 0;) {
      if (users_[i] == 0) continue;
      for (const std::size_t a : read_by(i)) ++users_[a];
    }
  }

  // Statements that compute the program and return it.
  std::string body() {
    std::string text = statements();
    if (!is_small_) return text + fmt::format("    return {};\n", values_[result()]);
    return text +
           fmt::format("    return {{{}, kScoreFactor * kLog2e, room}};\n", values_[result()]);
  }

 private:
  std::string statements() {
    std::string text =
        fmt::format("    using namespace {};\n", math_ == CudaMath::exact ? "exact" : "fast");
    if (is_small_) text += "    int room = 0x7fffffff;\n";
    for (std::size_t i = 0; i < users_.size(); ++i) {
      const Instruction& in = program_.instructions[i];
      std::string value = users_[i] > 0 ? value_text(i) : std::string();
      const bool steps = factors_ != nullptr && in.op == Op::key && users_[i] > 0;
      if (steps || (!is_leaf(in) && (users_[i] > 1 || value.size() > kLongestValue))) {
        const std::string name = steps ? "key" : fmt::format("v{}", i);
        text += fmt::format("    const {} {} = {};\n", expr::cuda_type(in.type), name, value);
        value = name;
      }
      values_.push_back(std::move(value));
    }
    return text;
  }

  std::size_t result() const { return factors_ != nullptr ? factors_->result : users_.size() - 1; }
  int multiple(std::size_t i) const { return factors_ != nullptr ? factors_->multiple[i] : -1; }
  const Instruction& operand(std::size_t i) const {
    return program_.instructions[static_cast<std::size_t>(program_.instructions[i].args[0])];
  }

  // Instructions whose values the text of this one contains.
  std::vector<std::size_t> read_by(std::size_t i) const {
    const Instruction& in = program_.instructions[i];
    if (multiple(i) >= 0 || !stepped(i).empty()) return {};
    return {in.args, in.args + in.num_args};
  }

  // Sums and differences of positions and lengths that are small. The range of the key holds
  // key_first too, so `text` is as small.
  Linear linear(std::size_t i) const {
    const Instruction& in = program_.instructions[i];
    if (factors_ == nullptr || !small_[i]) return {};
    if (in.op == Op::key) return {"key_first", 1};
    if (is_leaf(in)) return {expr::cuda_value(program_, in, {}, math_), 0};
    if (in.op != Op::add && in.op != Op::sub) return {};
    const Linear& a = linear_[static_cast<std::size_t>(in.args[0])];
    const Linear& b = linear_[static_cast<std::size_t>(in.args[1])];
    if (a.text.empty() || b.text.empty()) return {};
    Linear sum{position_text(in.op, a.text, b.text),
               in.op == Op::add ? a.coefficient + b.coefficient : a.coefficient - b.coefficient};
    return sum.text.size() > kLongestValue ? Linear{} : sum;
  }
  static std::string position_text(Op op, std::string_view a, std::string_view b) {
    return fmt::format("attn_position_{}({}, {})", expr::cuda_word(op), a, b);
  }

  // The conversion of a linear int32, or of its absolute value, that the step is in: integers of
  // 22 bits are exact as float32, so the step is added there. For the scores of a row that are
  // steps apart that is one addition of a constant each. Empty: i is no such conversion.
  std::string stepped(std::size_t i) const {
    if (program_.instructions[i].op != Op::to_float) return {};
    const auto converted = static_cast<std::size_t>(program_.instructions[i].args[0]);
    const bool is_abs = operand(i).op == Op::abs && small_[converted];
    const Linear& x = linear_[is_abs ? static_cast<std::size_t>(operand(i).args[0]) : converted];
    if (x.coefficient == 0) return {};
    const std::string value =
        fmt::format("attn_position_to_float({}, {} * step)", x.text, x.coefficient);
    return is_abs ? fmt::format("attn_abs({})", value) : value;
  }

  // As cuda_value, in the words of the struct.
  std::string value_text(std::size_t i) const {
    const Instruction& in = program_.instructions[i];
    if (multiple(i) >= 0) return fmt::format("attn_mul(dot, multiple_{})", multiple(i));
    if (in.op == Op::score) return "dot";
    if (factors_ != nullptr && in.op == Op::key) return "key_first + step";
    if (std::string value = stepped(i); !value.empty()) return value;
    const std::vector<std::string> operands = operands_of(in, values_);
    if ((in.op == Op::add || in.op == Op::sub) && small_[i]) {
      return position_text(in.op, operands[0], operands[1]);
    }
    if (in.op == Op::to_float && small_[static_cast<std::size_t>(in.args[0])]) {
      return fmt::format("attn_position_to_float({})", operands[0]);
    }
    if (is_shared(in)) {
      return fmt::format("attn_share_{}({})",
                         program_.buffers[static_cast<std::size_t>(in.buffer)]->name(),
                         fmt::join(operands, ", "));
    }
    if (is_small_ && factors_->small_tanh[i]) {
      return fmt::format("attn_small_tanh({}, room)", operands[0]);
    }
    return expr::cuda_value(program_, in, operands, math_);
  }

  const Program& program_;
  const ScoreFactors* factors_;
  bool is_small_;
  CudaMath math_;
  std::vector<bool> small_;
  std::vector<int> users_;  // 0: its value is not needed
  std::vector<Linear> linear_;
  std::vector<std::string> values_;
};

std::string_view range_type(Type type) {
  switch (type) {
    case Type::boolean:
      return "BoolRange";
    case Type::int32:
      return "IntRange";
    default:
      return "FloatRange";
  }
}

// The bits by which a division by a power of two shifts; 0 for all else.
int shift_of(const Program& program, const Instruction& in) {
  if (in.op != Op::div || in.operands != Type::int32) return 0;
  const Instruction& divisor = program.instructions[static_cast<std::size_t>(in.args[1])];
  const auto value = static_cast<std::uint32_t>(divisor.int_value);
  const bool power =
      divisor.op == Op::constant && divisor.int_value > 0 && std::has_single_bit(value);
  return power ? std::countr_zero(value) : 0;
}

// Indices of a load: numbers where the tile has but one.
std::vector<std::string> load_ranges(const Program& program, const Instruction& in,
                                     const std::vector<std::string>& values) {
  std::vector<std::string> ranges = operands_of(in, values);
  for (std::size_t d = 0; d < ranges.size(); ++d) {
    const Instruction& index = program.instructions[static_cast<std::size_t>(in.args[d])];
    if (index.op == Op::constant) ranges[d] = expr::cuda_constant(index);
    if (index.op == Op::batch || index.op == Op::seqlen_q || index.op == Op::seqlen_k) {
      ranges[d] = expr::spelling(index.op);
    }
  }
  return ranges;
}

std::string range_value(const Program& program, const Instruction& in,
                        const std::vector<std::string>& values) {
  switch (in.op) {
    case Op::constant:
      return fmt::format("range_of({})", expr::cuda_constant(in));
    case Op::query:
    case Op::key:
    case Op::head:
      return fmt::format("range_of({0}_min, {0}_max)", expr::spelling(in.op));
    case Op::batch:
    case Op::seqlen_q:
    case Op::seqlen_k:
      return fmt::format("range_of({})", expr::spelling(in.op));
    case Op::load:
      return fmt::format("range_load_{}({})",
                         program.buffers[static_cast<std::size_t>(in.buffer)]->name(),
                         fmt::join(load_ranges(program, in, values), ", "));
    default:
      if (const int bits = shift_of(program, in); bits > 0) {
        return fmt::format("range_shift<{}>({})", bits, operands_of(in, values)[0]);
      }
      return fmt::format("range_{}({})", expr::cuda_word(in.op),
                         fmt::join(operands_of(in, values), ", "));
  }
}

std::string range_body(const Program& program) {
  std::string text;
  std::vector<std::string> values;
  for (const Instruction& in : program.instructions) {
    std::string value = range_value(program, in, values);
    if (!is_leaf(in)) {
      const std::string name = fmt::format("r{}", values.size());
      text += fmt::format("    const {} {} = {};\n", range_type(in.type), name, value);
      value = name;
    }
    values.push_back(std::move(value));
  }
  return text + fmt::format("    return coverage_of({});\n", values.back());
}

struct Parameter {
  std::string_view name;
  Op symbol;
};
constexpr std::array kPoint = {
    Parameter{"query", Op::query},       Parameter{"key", Op::key},
    Parameter{"batch", Op::batch},       Parameter{"head", Op::head},
    Parameter{"seqlen_q", Op::seqlen_q}, Parameter{"seqlen_k", Op::seqlen_k}};
constexpr std::array kTile = {
    Parameter{"query_min", Op::query},  Parameter{"query_max", Op::query},
    Parameter{"key_min", Op::key},      Parameter{"key_max", Op::key},
    Parameter{"batch", Op::batch},      Parameter{"head_min", Op::head},
    Parameter{"head_max", Op::head},    Parameter{"seqlen_q", Op::seqlen_q},
    Parameter{"seqlen_k", Op::seqlen_k}};

// int parameters; those that the program does not use have no name.
template <std::size_t kCount>
std::string parameters(const std::array<Parameter, kCount>& all, const Program& program) {
  std::string text;
  for (const Parameter& p : all) {
    if (!text.empty()) text += ", ";
    text += uses(program, p.symbol) ? fmt::format("int {}", p.name) : "int";
  }
  return text;
}
std::string function(std::string_view result, std::string_view name, std::string_view parameters,
                     std::string_view body) {
  return fmt::format("  __device__ __forceinline__ {} {}({}) const {{\n{}  }}\n", result, name,
                     parameters, body);
}

constexpr std::array kRow = {Parameter{"query", Op::query}, Parameter{"batch", Op::batch},
                             Parameter{"head", Op::head}, Parameter{"seqlen_q", Op::seqlen_q},
                             Parameter{"seqlen_k", Op::seqlen_k}};

// Functions of the parts of a mask, and mask itself, made of them.
std::string mask_text(const MaskBounds& bounds) {
  std::string text, value;
  const auto part = [&](const Expr& e, std::string_view type, std::string_view name,
                        const auto& all, std::string_view called) {
    if (e.empty()) return;
    const Program program = compile(e);
    text += function(type, name, parameters(all, program), Values(program, nullptr).body());
    value += (value.empty() ? "" : " & ") + std::string(called);
  };
  part(bounds.first, "int", "mask_first", kRow,
       "(key >= mask_first(query, batch, head, seqlen_q, seqlen_k))");
  part(bounds.last, "int", "mask_last", kRow,
       "(key <= mask_last(query, batch, head, seqlen_q, seqlen_k))");
  part(bounds.rest, "bool", "mask_rest", kPoint,
       "mask_rest(query, key, batch, head, seqlen_q, seqlen_k)");
  if (value.empty()) {
    return function("bool", "mask", "int, int, int, int, int, int", "    return true;\n");
  }
  return text + function("bool", "mask",
                         "int query, int key, int batch, int head, int seqlen_q, int seqlen_k",
                         fmt::format("    return {};\n", value));
}

std::string score_parameters(const Program& program) {
  std::array all = kPoint;
  for (Parameter& p : all) {
    if (p.symbol == Op::key) p.name = "key_first";
  }
  return fmt::format("float{}, {}, int{} = 0", uses(program, Op::score) ? " dot" : "",
                     parameters(all, program), uses(program, Op::key) ? " step" : "");
}

// small_score, and the polynomial that it takes. A score that is a constant times a tanh is the dot
// product times a polynomial of it, whose coefficients hold all constants.
std::string small_score_text(const Program& scored, const ScoreFactors& factors) {
  const bool is_tanh = factors.small_result >= 0;
  const std::string polynomial =
      is_tanh
          ? fmt::format("  SmallTanh small_tanh;  // of multiple_{} * dot, times {:a} * log2(e)\n",
                        factors.small_result, factors.after)
          : "  static constexpr SmallTanh small_tanh = SmallTanhOf<ATTN_PRECISE_MATH>::kValue;\n";
  return polynomial +
         function("SmallScore", "small_score", score_parameters(scored),
                  is_tanh
                      ? "    int room = 0x7fffffff;\n"
                        "    const float scale = fast::small_tanh_ratio(dot, small_tanh, room);\n"
                        "    return {dot, scale, room};\n"
                      : Values(scored, &factors, true).body());
}

std::string_view element(DType dtype) {
  switch (dtype) {
    case DType::bf16:
      return "ElementBF16";
    case DType::f16:
      return "ElementF16";
    case DType::i32:
      return "ElementI32";
    case DType::u8:
      return "ElementU8";
    default:
      return "ElementF32";
  }
}

// How a buffer is read.
struct Readers {
  bool element = false, shared = false, range = false;
};
Readers readers_of(const expr::Buffer& buffer, const Program& mask, const Program& score) {
  Readers readers;
  for (const Program* program : {&mask, &score}) {
    for (const Instruction& in : program->instructions) {
      if (in.op != Op::load ||
          program->buffers[static_cast<std::size_t>(in.buffer)]->name() != buffer.name()) {
        continue;
      }
      (is_shared(in) ? readers.shared : readers.element) = true;
      readers.range = readers.range || program == &mask;
    }
  }
  return readers;
}

// The view of a buffer and what reads it.
std::string buffer_text(const expr::Buffer& buffer, const Tensor& tensor, const Readers& readers) {
  const std::string& name = buffer.name();
  const bool is_float = is_floating(tensor.dtype);
  std::string values;
  std::string arguments;
  for (std::int32_t d = 0; d < tensor.rank; ++d) {
    values += fmt::format("{}int i{}", d > 0 ? ", " : "", d);
    arguments += fmt::format(", i{}", d);
  }
  const auto reader = [&](std::string_view prefix, std::string_view called) {
    return function(
        is_float ? "float" : "int", fmt::format("{}{}", prefix, name), values,
        fmt::format("    return {}<{}, {}>(buffer_{}{});\n", called, element(tensor.dtype),
                    last_is_contiguous(tensor), name, arguments));
  };
  std::string text = fmt::format("\n  BufferView buffer_{};\n", name);
  if (readers.element) text += reader("attn_load_", "load_element");
  if (readers.shared) text += reader("attn_share_", "load_shared_element");
  if (!readers.range) return text;
  return text + "  template <class... Ranges>\n" +
         function(is_float ? "FloatRange" : "IntRange", "range_load_" + name, "Ranges... ranges",
                  fmt::format("    return range_load<{}>(buffer_{}, ranges...);\n",
                              element(tensor.dtype), name));
}

void check_type(std::string_view argument, const Expr& e, Type type, std::string_view accepted) {
  if (e.empty() || e.type() == type) return;
  throw Error(ErrorCode::invalid_argument,
              fmt::format("{} '{}' is {}; accepted is {}", argument, to_string(e),
                          expr::name(e.type()), accepted));
}

}  // namespace

std::string print_expressions(const Expr& mask, const Expr& score, const expr::Bindings& bindings) {
  check_type("mask", mask, Type::boolean, "a boolean expression");
  check_type("score", score, Type::float32, "a float32 expression");
  if (depends_on(mask, Op::score)) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("mask '{}' depends on score; accepted are query, key, batch, head, "
                            "seqlen_q, seqlen_k and buffers",
                            to_string(mask)));
  }
  const auto buffers = expression_buffers(mask, score);
  // Without an expression every point is visible and every score stays.
  const Program masked = compile(mask.empty() ? expr::boolean(true) : mask);
  const Program scored = compile(score.empty() ? expr::symbols().score : score);
  const ScoreFactors factors = score_factors(score);

  std::string text =
      "#include \"expr/expressions.cuh\"\n\nnamespace attn::device {\n\n"
      "struct alignas(8) Expressions {\n";
  text += fmt::format("  static constexpr bool kHasMask = {};\n", !mask.empty());
  const MaskBounds bounds = mask_bounds(mask);
  text += fmt::format("  static constexpr bool kMaskFirst = {};\n", !bounds.first.empty());
  text += fmt::format("  static constexpr bool kMaskLast = {};\n", !bounds.last.empty());
  text += fmt::format("  static constexpr bool kMaskRest = {};\n", !bounds.rest.empty());
  text += fmt::format("  static constexpr bool kHasScore = {};\n", !score.empty());
  text += fmt::format("  static constexpr bool kScoreLoads = {};\n", loads_elements(scored));
  text += fmt::format("  static constexpr float kScoreFactor = {:a}f;\n", factors.after);
  for (const auto& buffer : buffers) {
    text += buffer_text(*buffer, described(*buffer, bindings), readers_of(*buffer, masked, scored));
  }
  for (std::size_t i = 0; i < factors.multiples.size(); ++i) {
    text += fmt::format("  float multiple_{};  // softmax_scale * {:a}\n", i, factors.multiples[i]);
  }
  if (factors.has_small_tanh) text += small_score_text(scored, factors);
  text += '\n';
  text += mask_text(bounds);
  text += function("float", "score", score_parameters(scored), Values(scored, &factors).body());
  text += function("Coverage", "classify", parameters(kTile, masked), range_body(masked));
  return text + "};\n\n}  // namespace attn::device\n";
}

}  // namespace attn::cuda
