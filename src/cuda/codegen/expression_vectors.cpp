#include "cuda/codegen/expression_vectors.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "core/expr/cuda_text.hpp"
#include "cuda/codegen/expression_buffers.hpp"
#include "cuda/codegen/expression_functions.hpp"
#include "cuda/codegen/expression_values.hpp"

namespace attn::cuda {
namespace {

using expr::Dependence;
using expr::Instruction;
using expr::Op;
using expr::Program;

// A thread holds them for two rows, and two or three times, as vectors are loaded ahead.
constexpr int kMostWords = 8;

bool is_vector(const Program& score, const Instruction& in) {
  if (in.op != Op::load || is_leaf(in) || is_shared(in)) return false;
  const auto index = [&](int a) {
    return score.instructions[static_cast<std::size_t>(in.args[a])];
  };
  if (index(in.num_args - 1).op != Op::key) return false;
  for (int a = 0; a + 1 < in.num_args; ++a) {
    const Dependence on = index(a).dependence;
    if (on != Dependence::uniform && on != Dependence::row) return false;
  }
  return true;
}

}  // namespace

bool may_load_vectors(const Program& score, const expr::Buffer& buffer) {
  return std::ranges::any_of(score.instructions, [&](const Instruction& in) {
    return is_vector(score, in) &&
           score.buffers[static_cast<std::size_t>(in.buffer)]->name() == buffer.name();
  });
}

std::vector<VectorLoad> vector_loads(const Program& score, const PrintedBuffers& printed) {
  std::vector<VectorLoad> loads;
  int words = 0;
  for (std::size_t i = 0; i < score.instructions.size(); ++i) {
    const Instruction& in = score.instructions[i];
    if (!is_vector(score, in)) continue;
    const PrintedTensor tensor =
        printed_tensor(*score.buffers[static_cast<std::size_t>(in.buffer)], printed);
    const int at_once = tensor.at_once;
    const int of_load = 2 * static_cast<int>(size_of(tensor.dtype));
    if (at_once == 1 || words + of_load > kMostWords) continue;
    loads.push_back({i, words, of_load, element_name(tensor.dtype), at_once});
    words += of_load;
  }
  return loads;
}

std::string vectors_text(const Program& score, const ScoreFactors& factors,
                         const std::vector<VectorLoad>& loads, std::string_view point,
                         std::string_view score_point) {
  const int words = loads.empty() ? 0 : loads.back().first_word + loads.back().words;
  std::string text = fmt::format("  static constexpr int kVectorWords = {};\n", words);
  if (loads.empty()) return text;
  text += "  struct Vectors {\n    unsigned words[kVectorWords];\n  };\n";
  std::vector<std::size_t> indices;
  std::vector<std::string> given(score.instructions.size());
  std::string turned;
  for (const VectorLoad& load : loads) {
    const Instruction& in = score.instructions[load.instruction];
    for (int a = 0; a + 1 < in.num_args; ++a) {
      indices.push_back(static_cast<std::size_t>(in.args[a]));
    }
    given[load.instruction] = fmt::format("vector_element<{}>(vectors.words + {}, element)",
                                          load.element, load.first_word);
    if (load.at_once != 8) continue;
    turned += fmt::format("    transpose_vector(vectors.words + {});\n", load.first_word);
  }
  ExpressionValues values(score, expr::CudaMath::fast, nullptr, indices);
  std::string loaded = values.statements();
  for (const VectorLoad& load : loads) {
    const Instruction& in = score.instructions[load.instruction];
    loaded +=
        fmt::format("    load_vector<{}, {}>(buffer_{}, vectors.words + {}, key", load.element,
                    load.at_once == 8 ? "kTransposed" : "false",
                    score.buffers[static_cast<std::size_t>(in.buffer)]->name(), load.first_word);
    for (int a = 0; a + 1 < in.num_args; ++a) {
      loaded += ", " + values.value(static_cast<std::size_t>(in.args[a]));
    }
    loaded += ");\n";
  }
  ExpressionValues with(score, expr::CudaMath::fast, &factors, {factors.result}, false, given);
  std::string body = with.statements();
  body += fmt::format("    return {};\n", with.value(factors.result));
  return text + "  template <bool kTransposed>\n" +
         function("void", "load_vectors", fmt::format("Vectors& vectors, {}", point), loaded) +
         function("void", "transpose_vectors", "Vectors& vectors", turned) +
         function("float", "score_of_vectors",
                  fmt::format("const Vectors& vectors, int element, {}", score_point), body);
}

}  // namespace attn::cuda
