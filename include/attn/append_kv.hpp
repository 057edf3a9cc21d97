// Appending to a cache of keys and values: new rows of K and V go to their places in it, and what a
// model does with them on the way, and with Q, is done in the same pass.
//
//   attn::AppendProblem problem{.type_k = CacheType::q8_0, .type_v = CacheType::q8_0};
//   attn::append_kv(problem,
//                   {.q = q, .k = k, .v = v, .cache_seqlens = lengths, .inv_freq = frequencies},
//                   {.q = rotated_q, .k = cache_k, .v = cache_v});
#pragma once

#include <cstdint>
#include <string_view>

#include "attn/cache_type.hpp"
#include "attn/context.hpp"
#include "attn/export.hpp"
#include "attn/plan.hpp"
#include "attn/tensor.hpp"

namespace ATTN_API attn {

// Which columns a rotary embedding (RoPE, Su et al. 2021) turns together, of the first r of a row.
enum class RopePairs : std::uint8_t {
  halves,       // i and r / 2 + i, as GPT-NeoX and Hugging Face's Llama do
  interleaved,  // 2 i and 2 i + 1, as the paper and GPT-J do
};
std::string_view name(RopePairs pairs) noexcept;
// Its inverse. Throws Error(invalid_argument) that lists the names.
RopePairs parse_rope_pairs(std::string_view text);

// What happens to the rows, each part where it is asked for, in this order:
//   1. norm:      x <- x / sqrt(mean(x^2) + norm_eps) * weight, over a row of Q and of K
//   2. rotary:    (a, b) <- (a cos - b sin, a sin + b cos) of the pairs of Q and K; the angle of
//                 pair i is position * inv_freq[i], or cos[position, i] and sin[position, i] are
//                 given
//   3. hadamard:  x <- H x, of Q and K, and of V by a flag of its own
//   4. rounding:  to the type of what is written, with scales as of attn::quantize
// H is the Walsh-Hadamard matrix in Sylvester's order, divided by the root of its size: symmetric
// and its own inverse. Its size is the largest power of two that divides the row's; further columns
// are further blocks. Scores q . k stay as they are. Where V is rotated, O is the rotated result,
// and a call with O as Q and `hadamard` alone turns it back.
struct AppendProblem {
  // How the caches store their elements. as_q: the floats that their tensors are of.
  CacheType type_k = CacheType::as_q;
  CacheType type_v = CacheType::as_q;
  // True: the caches are rolling buffers: position p stands in row p modulo the rows of a sequence.
  bool ring = false;
  RopePairs rope_pairs = RopePairs::halves;
  bool norm = false;
  double norm_eps = 1e-6;  // finite, at least 0
  bool hadamard = false;
  bool hadamard_v = false;
  Backend backend = Backend::automatic;
  bool operator==(const AppendProblem&) const = default;
};

// Rows of Q, K and V, all or some of them, are those of the same tokens; each tensor has a dtype of
// its own of f32, bf16 and f16. Last dimensions are contiguous, other strides are free, and may be
// 0. All tensors of a call are on one device. Integers are i32 or i64, each tensor for itself.
struct AppendInputs {
  Tensor q{};  // [batch, seqlen, heads_q, head_dim], or packed [total, heads_q, head_dim]
  Tensor k{};  // likewise with heads_k and the same head_dim
  Tensor v{};  // with heads_k and head_dim_v
  // Integers [batch + 1], contiguous: where sequences start in packed tensors, non-decreasing from
  // 0. Rows from cu_seqlens[batch] on belong to no sequence, and nothing is written for them.
  Tensor cu_seqlens{};
  // Integers [batch], any stride: how many of a sequence's new rows there are, the first ones, from
  // 0 to all of them. The others are padding: nothing is written for them, nor read. Not given:
  // all.
  Tensor seqused{};

  // Positions, in one of two ways. cache_seqlens, integers [batch], any stride: the keys that a
  // sequence had before the call, up to 2^62; its new rows have the positions from there on. Or
  // positions, integers [batch, seqlen] or packed [total], any strides: that of each row; for a row
  // with a negative one nothing is written, nor read. Not needed where there is neither K nor V and
  // Q is not rotated by them.
  Tensor cache_seqlens{};
  Tensor positions{};
  // As positions, where a rotary embedding counts otherwise than the cache does, as the tokens of a
  // tree do. Not given: the positions.
  Tensor rope_positions{};
  // Integers [batch, pages per sequence], last dimension contiguous: the caches are paged (Layout),
  // and position p of a sequence stands in page page_table[sequence, p / page_size].
  Tensor page_table{};

  // The rotary embedding: inv_freq, f32 [r / 2], or cos and sin, f32 [positions, r / 2], whose rows
  // are contiguous; r is even and at most head_dim. A table may hold any numbers, and its rows may
  // be of tokens instead of positions, where rope_positions counts tokens.
  Tensor inv_freq{};
  Tensor cos{};
  Tensor sin{};
  // With norm: f32, bf16 or f16 [head_dim], contiguous. Not given: 1.
  Tensor norm_weight_q{};
  Tensor norm_weight_k{};
  // Of caches of e4m3, e5m2 and i8, by which rows are divided: f32 [1], or [heads_k], any stride.
  // Not given here nor in AppendOutputs: 1.
  Tensor scale_k{};
  Tensor scale_v{};
};

// What is written: nothing but the rows that the positions name. Given where the input is.
struct AppendOutputs {
  Tensor q{};  // as the input, of a dtype of its own of f32, bf16 and f16; may be the same memory
  // [batch, rows of a sequence, heads_k, row_size()] of storage_dtype(), or paged [pages,
  // page_size, heads_k, row_size()] (cache_type.hpp). Any strides but of the last dimension, so
  // that one layer of a cache of many is a view of it.
  Tensor k{};
  Tensor v{};
  // Of caches of e4m3, e5m2 and i8, where each key and head has a scale of its own: f32, as the
  // cache but for the last dimension, any strides. It is chosen as attn::quantize does, and
  // written.
  Tensor scale_k{};
  Tensor scale_v{};
};

// Writes row `position` of each sequence of the caches, for every new row, and the same token's row
// of Q. Where cache_seqlens is given and a sequence has more new rows than its ring, only the last
// ones are written, whose places would be taken again; Q is written for all.
//
// On a CPU Error(invalid_argument) is thrown, and nothing written, where seqused is
// negative or more than a sequence's new rows, a position is past the cache or past cos and sin,
// where page_table has no page of the cache, as -1, for it, and where two rows would go to the same
// place. On a GPU values cannot be looked at: seqused past the new rows counts as all of them, and
// a negative one as none; a row without a place in the cache is not written, one past cos and sin
// is not written nor is its Q, and the place of two rows then holds parts of both.
//
// Arithmetic is f32 (angles of inv_freq: f64) and rounded once: results are within the error rule
// of the fp64 definition (docs/numerics.md, "The error rule"), and a row has the same bits whatever
// else is in the call. A row that holds a number that is not finite gives bytes without meaning
// where it becomes 8-bit floats, integers or blocks. Checks, then writes; outputs overlap nothing
// but q the input. Throws Error(invalid_argument | unsupported), on a GPU unavailable and device
// too, and what the executor throws, before anything is written. Thread-safe. On a CPU
// context.executor does the work. On a GPU of sm_80 and up it is put into context.stream, and the
// first call with such dtypes, head sizes and options compiles a kernel.
void append_kv(const AppendProblem& problem, const AppendInputs& inputs,
               const AppendOutputs& outputs, const Context& context = {});

}  // namespace attn
