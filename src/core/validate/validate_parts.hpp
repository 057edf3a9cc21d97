// The parts of validate.hpp, by what they look at. Each throws Error(invalid_argument).
#pragma once

#include <cstdint>
#include <memory_resource>
#include <string_view>
#include <vector>

#include "attn/run.hpp"
#include "core/validate/argument_check.hpp"

namespace attn::core {

// cu_seqlens of packed sequences: i32 or i64 [batch + 1], contiguous, from 0, non-decreasing, at
// most `rows`. Returns the length of the longest sequence, or 0 where the values cannot be looked
// at.
std::int64_t check_cu_seqlens(const ArgumentCheck& check, std::string_view name, const Tensor& t,
                              std::int64_t batch, std::int64_t rows);

// cu_seqlens, seqused and page_table, present where the layouts want them and within bounds. q and
// k were checked.
void check_sequences(const ArgumentCheck& check, const Problem& problem, const Inputs& inputs);

// Entries of page_table for pages of which some row sees a key are pages of k. All else was
// checked.
void check_pages(const ArgumentCheck& check, const Problem& problem, const Inputs& inputs);

// Lists of keys: present where the problem has them, of its shape.
void check_key_list(const ArgumentCheck& check, const Problem& problem, const Inputs& inputs);

// scale_q, scale_k and scale_v, where Q and K have their shapes.
void check_scales(const ArgumentCheck& check, const Problem& problem, const Inputs& inputs);

// The state of dropout: i64 [2] where the problem says that it is a tensor, else none.
void check_rng_state(const ArgumentCheck& check, const Dropout& dropout, const Tensor& rng_state);

// [batch, seqlen_q, heads_q, dim] or packed [rows, heads_q, dim].
Shape shape_like_q(const Problem& problem, std::int64_t rows, std::int64_t dim);
// [batch, seqlen_k, heads_k, dim] or packed [rows, heads_k, dim]; paged, [rows, page_size, heads_k,
// dim], `rows` being the number of pages.
Shape shape_like_k(const Problem& problem, std::int64_t rows, std::int64_t dim);

// A buffer of the mask or the score with the tensor that it reads in this call: one of the inputs,
// or of the expression.
struct BoundBuffer {
  std::string_view name;  // of the expression's Buffer
  const Tensor& tensor;
};

// A buffer of a shorthand of mask.hpp (told by its name and its indices) has the sizes that the
// shorthand counts: slopes[head] one a head, bias[query, key] one a score. A size of 1 serves every
// index; in a declaration, 0 is taken from the tensor that is bound. Hand-written loads may be of
// any shape.
void check_shorthand_shape(const ArgumentCheck& check, const Problem& problem,
                           const attn::expr::Buffer& buffer, const Tensor& t,
                           bool declaration = false);

// Those of mask and score: each name once, none of them without data, in `memory`.
std::pmr::vector<BoundBuffer> check_buffers(const ArgumentCheck& check, const Problem& problem,
                                            const Inputs& inputs,
                                            std::pmr::memory_resource& memory);

// dsink and the gradients of the buffers of the score; appends them to `outputs`.
void check_sum_gradients(const ArgumentCheck& check, const Problem& problem,
                         const Gradients& gradients, const std::pmr::vector<BoundBuffer>& buffers,
                         std::pmr::vector<NamedTensor>& outputs);

// Q, K, V, the sequences, the sink and the buffers of mask and score; returns the latter, each name
// once, none of them without data, in `memory`.
std::pmr::vector<BoundBuffer> check_inputs(const ArgumentCheck& check, const Problem& problem,
                                           const Inputs& inputs, std::pmr::memory_resource& memory);

}  // namespace attn::core
