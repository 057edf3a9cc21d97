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
#include "cuda/jit/expression_range.hpp"

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

// As cuda_value, in the words of the struct. small: the result is so in short sequences.
std::string value_text(const Program& program, std::size_t i,
                       const std::vector<std::string>& operands, const std::vector<bool>& small,
                       CudaMath math) {
  const Instruction& in = program.instructions[i];
  if ((in.op == Op::add || in.op == Op::sub) && small[i]) {
    return fmt::format("attn_position_{}({}, {})", expr::cuda_word(in.op), operands[0],
                       operands[1]);
  }
  if (in.op == Op::to_float && small[static_cast<std::size_t>(in.args[0])]) {
    return fmt::format("attn_position_to_float({})", operands[0]);
  }
  if (is_shared(in)) {
    return fmt::format("attn_share_{}({})",
                       program.buffers[static_cast<std::size_t>(in.buffer)]->name(),
                       fmt::join(operands, ", "));
  }
  return expr::cuda_value(program, in, operands, math);
}

// Statements that compute the program and return it.
std::string value_body(const Program& program, CudaMath math) {
  std::vector<int> users(program.instructions.size());
  for (const Instruction& in : program.instructions) {
    for (int a = 0; a < in.num_args; ++a) ++users[static_cast<std::size_t>(in.args[a])];
  }
  const std::vector<bool> small = small_in_short_sequences(program);
  std::string text =
      fmt::format("    using namespace {};\n", math == CudaMath::exact ? "exact" : "fast");
  std::vector<std::string> values;
  for (std::size_t i = 0; i < program.instructions.size(); ++i) {
    const Instruction& in = program.instructions[i];
    std::string value = value_text(program, i, operands_of(in, values), small, math);
    if (!is_leaf(in) && (users[i] > 1 || value.size() > kLongestValue)) {
      text += fmt::format("    const {} v{} = {};\n", expr::cuda_type(in.type), i, value);
      value = fmt::format("v{}", i);
    }
    values.push_back(std::move(value));
  }
  return text + fmt::format("    return {};\n", values.back());
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

  std::string text =
      "#include \"expr/expressions.cuh\"\n\nnamespace attn::device {\n\n"
      "struct alignas(8) Expressions {\n";
  text += fmt::format("  static constexpr bool kHasMask = {};\n", !mask.empty());
  text += fmt::format("  static constexpr bool kHasScore = {};\n", !score.empty());
  text +=
      fmt::format("  static constexpr bool kMaskReadsBuffers = {};\n", mask_reads_buffers(mask));
  for (const auto& buffer : buffers) {
    text += buffer_text(*buffer, described(*buffer, bindings), readers_of(*buffer, masked, scored));
  }
  text += '\n';
  text += function("bool", "mask", parameters(kPoint, masked), value_body(masked, CudaMath::exact));
  text += function("float", "score",
                   fmt::format("float{}, {}", uses(scored, Op::score) ? " score" : "",
                               parameters(kPoint, scored)),
                   value_body(scored, CudaMath::fast));
  text += function("Coverage", "classify", parameters(kTile, masked), range_body(masked));
  return text + "};\n\n}  // namespace attn::device\n";
}

}  // namespace attn::cuda
