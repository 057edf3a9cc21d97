#include "cuda/codegen/expression_functions.hpp"

#include <fmt/format.h>

#include "core/expr/build.hpp"
#include "cuda/codegen/expression_buffers.hpp"
#include "cuda/codegen/expression_values.hpp"

namespace attn::cuda {

std::string_view element_name(DType dtype) {
  switch (dtype) {
    case DType::bf16:
      return "ElementBF16";
    case DType::f16:
      return "ElementF16";
    case DType::i32:
      return "ElementI32";
    case DType::u8:
      return "ElementU8";
    case DType::f32:
    case DType::f64:
    case DType::i64:
      break;
  }
  return "ElementF32";  // the only one left that a buffer has (expr::Buffer)
}

std::string function(std::string_view result, std::string_view name, std::string_view parameters,
                     std::string_view body) {
  return fmt::format("  __device__ __forceinline__ {} {}({}) const {{\n{}  }}\n", result, name,
                     parameters, body);
}

std::string value_body(const expr::Program& program, expr::CudaMath math,
                       const ScoreFactors* factors, std::size_t result) {
  ExpressionValues values(program, math, factors, {result});
  std::string text = values.statements();
  return text + fmt::format("    return {};\n", values.value(result));
}

std::string value_function(std::string_view name, const expr::Expr& e) {
  const expr::Program program = compile(e);
  return function(
      e.type() == expr::Type::int32 ? "int" : "float", name, kPoint,
      value_body(program, expr::CudaMath::slope, nullptr, program.instructions.size() - 1));
}

std::string views_text(const expr::Expr& score, const PrintedBuffers& printed) {
  std::string text;
  for (const auto& buffer : expression_buffers({}, score)) {
    text +=
        buffer_text(*buffer, printed_tensor(*buffer, printed), {.element = true, .shared = true});
  }
  return text;
}

std::string struct_text(std::string_view name, std::string_view body) {
  return fmt::format(
      "#include \"expr/expressions.cuh\"\n#include \"expr/buffer_gradient.cuh\"\n\n"
      "namespace attn::device {{\n\nstruct alignas(8) {} {{\n{}}};\n\n"
      "}}  // namespace attn::device\n",
      name, body);
}

std::string buffer_text(const expr::Buffer& buffer, const PrintedTensor& tensor,
                        const Readers& readers) {
  const std::string& name = buffer.name();
  if (expr::is_scalar(buffer)) {
    return fmt::format("  Scalar<{}> scalar_{};\n",
                       is_floating(buffer.tensor().dtype) ? "float" : "int", name);
  }
  const bool is_float = is_floating(tensor.dtype);
  std::string values;
  std::string arguments;
  for (std::int32_t d = 0; d < buffer.tensor().rank; ++d) {
    values += fmt::format("{}int i{}", d > 0 ? ", " : "", d);
    arguments += fmt::format(", i{}", d);
  }
  const auto reader = [&](std::string_view prefix, std::string_view called) {
    return function(is_float ? "float" : "int", fmt::format("{}{}", prefix, name), values,
                    fmt::format("    return {}<{}, {}>(buffer_{}{});\n", called,
                                element_name(tensor.dtype), tensor.contiguous, name, arguments));
  };
  std::string text = fmt::format("\n  BufferView buffer_{};\n", name);
  if (readers.element) text += reader("attn_load_", "load_element");
  if (readers.shared) text += reader("attn_share_", "load_shared_element");
  if (!readers.range) return text;
  return text + "  template <class... Ranges>\n" +
         function(is_float ? "FloatRange" : "IntRange", "range_load_" + name, "Ranges... ranges",
                  fmt::format("    return range_load<{}>(buffer_{}, ranges...);\n",
                              element_name(tensor.dtype), name));
}

}  // namespace attn::cuda
