// Loads of a score that a thread makes for eight keys at once (src/cuda/device/expr/vector.cuh).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "attn/expr.hpp"
#include "core/expr/program.hpp"
#include "cuda/codegen/expression_factors.hpp"
#include "cuda/codegen/printed_buffers.hpp"

namespace attn::cuda {

// A load of a score's program whose last index is the key, whose other indices are the same for all
// keys, and of which several elements may be read at once (elements_at_once): buffer[head, query,
// key].
struct VectorLoad {
  std::size_t instruction;
  int first_word, words;     // of the Vectors of a row
  std::string_view element;  // the struct of device code for its elements
  int at_once;               // 8, which threads exchange, or 2
};
// Whether one of the loads of a score, of any tensor that is bound, may be such a load of the
// buffer: the text then depends on elements_at_once of what is bound.
bool may_load_vectors(const expr::Program& score, const expr::Buffer& buffer);
// All of them, but those for which a thread would hold more than 8 words a row.
std::vector<VectorLoad> vector_loads(const expr::Program& score, const PrintedBuffers& printed);

// Members of struct Expressions (expression_text.hpp): kVectorWords, and where it is not 0 Vectors,
// load_vectors, transpose_vectors and score_of_vectors. point: parameters of a query, a key, and
// what else a score depends on; score_point: those of score().
std::string vectors_text(const expr::Program& score, const ScoreFactors& factors,
                         const std::vector<VectorLoad>& loads, std::string_view point,
                         std::string_view score_point);

}  // namespace attn::cuda
