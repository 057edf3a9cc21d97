#include "cuda/codegen/expression_text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <string_view>

#include "attn/error.hpp"
#include "core/expr/build.hpp"
#include "core/expr/cuda_text.hpp"
#include "core/text/echo.hpp"
#include "cuda/codegen/expression_buffers.hpp"
#include "cuda/codegen/expression_factors.hpp"
#include "cuda/codegen/expression_functions.hpp"
#include "cuda/codegen/expression_range.hpp"
#include "cuda/codegen/expression_values.hpp"
#include "cuda/codegen/expression_vectors.hpp"
#include "cuda/codegen/mask_bounds.hpp"

namespace attn::cuda {
namespace {

using expr::Expr;
using expr::Instruction;
using expr::Op;
using expr::Program;
using expr::Type;

bool uses(const Program& program, Op symbol) {
  return std::any_of(program.instructions.begin(), program.instructions.end(),
                     [&](const Instruction& in) { return in.op == symbol; });
}

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
  return expr::is_power_of_two(divisor)
             ? std::countr_zero(static_cast<std::uint32_t>(divisor.int_value))
             : 0;
}

// Indices of a load: numbers where the tile has but one.
std::vector<std::string> load_ranges(const Program& program, const Instruction& in,
                                     const std::vector<std::string>& values) {
  std::vector<std::string> ranges = operands_of(in, values);
  for (std::size_t d = 0; d < ranges.size(); ++d) {
    const Instruction& index = program.instructions[static_cast<std::size_t>(in.args[d])];
    if (index.op == Op::constant) ranges[d] = expr::cuda_constant(index);
    if (index.op == Op::load && is_leaf(index)) {
      ranges[d] = expr::cuda_value(program, index, {}, expr::CudaMath::exact);
    }
    if (index.op == Op::batch || index.op == Op::seqlen_q || index.op == Op::seqlen_k) {
      ranges[d] = expr::spelling(index.op);
    }
  }
  return ranges;
}

// What a load may give where no element is looked at.
std::string any_value(const expr::Buffer& buffer, const PrintedBuffers& printed) {
  return fmt::format("ScanOf<{}>::any()", element_name(printed_tensor(buffer, printed).dtype));
}

// unscanned: given where no element is to be looked at; the tensors of buffers.
std::string range_value(const Program& program, const Instruction& in,
                        const std::vector<std::string>& values, const PrintedBuffers* unscanned) {
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
      if (is_leaf(in)) {
        return fmt::format("range_of({})",
                           expr::cuda_value(program, in, {}, expr::CudaMath::exact));
      }
      if (unscanned != nullptr) {
        return any_value(*program.buffers[static_cast<std::size_t>(in.buffer)], *unscanned);
      }
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

std::string range_body(const Program& program, const PrintedBuffers* unscanned) {
  std::string text;
  std::vector<std::string> values;
  for (const Instruction& in : program.instructions) {
    std::string value = range_value(program, in, values, unscanned);
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
    text += function(
        type, name, parameters(all, program),
        value_body(program, expr::CudaMath::exact, nullptr, program.instructions.size() - 1));
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

std::string vectors_of(const Program& score, const ScoreFactors& factors,
                       const PrintedBuffers& printed) {
  return vectors_text(score, factors, vector_loads(score, printed), parameters(kPoint, score),
                      score_parameters(score));
}

// The polynomial of exponent(), where it has one.
std::string small_tanh_text(const ScoreFactors& factors) {
  if (factors.small_tanh < 0) return {};
  for (const ExponentTerm& term : factors.exponent) {
    if (term.polynomial == 0) continue;
    return fmt::format("  SmallTanh small_tanh;  // of softmax_scale * {:a} * dot, times {:a}\n",
                       term.polynomial, term.factor);
  }
  return "  static constexpr SmallTanh small_tanh = SmallTanhOf<ATTN_PRECISE_MATH>::kValue;\n";
}

bool depends_on_query(const Program& program, std::size_t i) {
  std::vector<bool> depends;
  for (const Instruction& in : program.instructions) {
    bool on_query = in.op == Op::query;
    for (int a = 0; a < in.num_args; ++a) {
      on_query = on_query || depends[static_cast<std::size_t>(in.args[a])];
    }
    depends.push_back(on_query);
  }
  return depends[i];
}

// What the scores of a row share of their exponents, and an exponent: the sum of its terms.
std::string exponent_text(const Program& score, const ScoreFactors& factors) {
  std::vector<std::size_t> of_row, of_element;
  for (const ExponentTerm& term : factors.exponent) {
    if (term.row >= 0) of_row.push_back(static_cast<std::size_t>(term.row));
    if (term.value >= 0 && term.polynomial == 0) {
      of_element.push_back(static_cast<std::size_t>(term.value));
    }
  }
  ExpressionValues row(score, expr::CudaMath::fast, &factors, of_row),
      element(score, expr::CudaMath::fast, &factors, of_element, true);
  std::string row_body = row.statements(), body = element.statements();
  std::size_t count = 0;
  for (const ExponentTerm& term : factors.exponent) {
    std::string a = fmt::format("{:a}f", static_cast<float>(term.factor)), b;
    if (term.row >= 0) {
      const std::string& value = row.value(static_cast<std::size_t>(term.row));
      row_body += fmt::format("    shared.value[{}] = attn_mul({}, {});\n", count, value, a);
      a = fmt::format("shared.value[{}]", count++);
    }
    if (term.polynomial > 0) {
      a = "dot";
      b = "small_tanh_ratio(dot, small_tanh, room)";
    } else if (term.multiple >= 0) {
      a = "dot";
      b = fmt::format("multiple_{}", term.multiple);
    } else if (term.value >= 0) {
      b = element.value(static_cast<std::size_t>(term.value));
    }
    body += b.empty() ? fmt::format("    sum = attn_add({}, sum);\n", a)
                      : fmt::format("    sum = attn_fma({}, {}, sum);\n", a, b);
  }
  const bool shares_query =
      std::ranges::any_of(of_row, [&](std::size_t i) { return depends_on_query(score, i); });
  std::string text = fmt::format("  static constexpr bool kRowSharesQuery = {};\n", shares_query);
  text += fmt::format("  struct RowShared {{\n    static constexpr int kCount = {};\n{}  }};\n",
                      count, count > 0 ? fmt::format("    float value[{}];\n", count) : "");
  if (count > 0) {
    text +=
        function("void", "share_row", "RowShared& shared, " + parameters(kRow, score), row_body);
  }
  if (factors.exponent.empty()) return text;
  return text +
         function("float", "exponent",
                  "const RowShared& shared, float sum, int& room, " + score_parameters(score),
                  body + "    return sum;\n");
}

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

constexpr std::string_view kBegin =
    "#include \"expr/expressions.cuh\"\n\nnamespace attn::device {\n\n"
    "struct alignas(8) Expressions {\n";
constexpr std::string_view kEnd = "};\n\n}  // namespace attn::device\n";

void check_type(std::string_view argument, const Expr& e, Type type, std::string_view accepted) {
  if (e.empty() || e.type() == type) return;
  throw Error(ErrorCode::invalid_argument,
              fmt::format("{} '{}' is {}; accepted is {}", argument, core::echo(to_string(e)),
                          expr::name(e.type()), accepted));
}

void check_mask(const Expr& mask) {
  check_type("mask", mask, Type::boolean, "a boolean expression");
  if (!depends_on(mask, Op::score)) return;
  throw Error(ErrorCode::invalid_argument,
              fmt::format("mask '{}' depends on score; accepted are query, key, batch, head, "
                          "seqlen_q, seqlen_k and buffers",
                          core::echo(to_string(mask))));
}

// Without an expression every point is visible.
Program mask_program(const Expr& mask) {
  return compile(mask.empty() ? expr::boolean(true) : mask);
}

// unscanned: as of range_value.
std::string classify_text(const Program& masked, const PrintedBuffers* unscanned) {
  return function("Coverage", "classify", parameters(kTile, masked), range_body(masked, unscanned));
}

}  // namespace

std::string print_classifier(const Expr& mask, const PrintedBuffers& printed) {
  check_mask(mask);
  const Program masked = mask_program(mask);
  std::string text(kBegin);
  text += fmt::format("  static constexpr bool kHasMask = {};\n", !mask.empty());
  for (const auto& buffer : expression_buffers(mask, {})) {
    text += buffer_text(*buffer, printed_tensor(*buffer, printed), readers_of(*buffer, masked, {}));
  }
  return text + classify_text(masked, nullptr) + std::string(kEnd);
}

std::string print_expressions(const Expr& mask, const Expr& score, const PrintedBuffers& printed,
                              bool short_sequences, bool scans_buffers) {
  check_mask(mask);
  check_type("score", score, Type::float32, "a float32 expression");
  const auto buffers = expression_buffers(mask, score);
  const Program masked = mask_program(mask);
  // Without an expression every score stays.
  const Program scored = compile(score.empty() ? expr::symbols().score : score);
  const ScoreFactors factors = score_factors(score);

  std::string text(kBegin);
  text += fmt::format("  static constexpr bool kHasMask = {};\n", !mask.empty());
  const MaskBounds bounds = mask_bounds(mask, short_sequences);
  text += fmt::format("  static constexpr bool kMaskFirst = {};\n", !bounds.first.empty());
  text += fmt::format("  static constexpr bool kMaskLast = {};\n", !bounds.last.empty());
  text += fmt::format("  static constexpr bool kMaskRest = {};\n", !bounds.rest.empty());
  text += fmt::format("  static constexpr bool kHasScore = {};\n", !score.empty());
  text += fmt::format("  static constexpr bool kScoreLoads = {};\n", loads_elements(scored));
  text += fmt::format("  static constexpr bool kHasExponent = {};\n", !factors.exponent.empty());
  text += fmt::format("  static constexpr bool kHasSmallTanh = {};\n", factors.small_tanh >= 0);
  text += fmt::format("  static constexpr float kScoreFactor = {:a}f;\n", factors.after);
  for (const auto& buffer : buffers) {
    Readers readers = readers_of(*buffer, masked, scored);
    readers.range = readers.range && scans_buffers;
    text += buffer_text(*buffer, printed_tensor(*buffer, printed), readers);
  }
  for (std::size_t i = 0; i < factors.multiples.size(); ++i) {
    const ScoreMultiple& c = factors.multiples[i];
    text += fmt::format("  float multiple_{};  // softmax_scale * {:a}{}{}\n", i, c.factor,
                        c.scalar.empty() ? ""
                        : c.divides      ? " / "
                                         : " * ",
                        c.scalar);
  }
  text += small_tanh_text(factors) + '\n';
  text += mask_text(bounds);
  text += function("float", "score", score_parameters(scored),
                   value_body(scored, expr::CudaMath::fast, &factors, factors.result));
  text += vectors_of(scored, factors, printed);
  text += exponent_text(scored, factors);
  text += classify_text(masked, scans_buffers ? nullptr : &printed);
  return text + std::string(kEnd);
}

}  // namespace attn::cuda
