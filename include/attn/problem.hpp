// What is to be computed. For every batch b, query head h, query i and key j of the sequence:
//
//   score(i, j) = score_expression(softmax_scale * q_i . k_j)   or -inf where the mask is false
//   P(i, j)     = exp(score(i, j) - LSE(i)),   LSE(i) = log(sum_j exp(score(i, j)) + exp(sink_h))
//   O(i)        = sum_j Z(i, j) P(i, j) v_j,   Z the dropout factor: 0 or 1 / (1 - probability)
//
// A row that attends to nothing gives O = 0, LSE = -inf (the sink, if there is one, also +inf and
// NaN) and zero gradients. Such a sink makes O and LSE of all other rows NaN.
//
// A row sees the keys where the mask is true. O(i), LSE(i) and dQ(i) depend on the keys that row i
// sees and on nothing else, dK(j) and dV(j) on the rows that see key j: whatever else K, V, Q and
// dO hold, infinities and NaN included, changes nothing. A visible key with a score of -inf has P =
// 0: it adds nothing to O(i) and dQ(i), and row i nothing to dK(j) and dV(j), whatever k, v, q and
// dO hold. On a GPU this is so where the -inf is a constant of the score expression or what a
// buffer holds for the key, as of a bias; where arithmetic gives it, as exp(x) past 3e38 or an
// infinite k does, NaN and infinities of that key may reach the row. Extremes: docs/numerics.md.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "attn/cache_type.hpp"
#include "attn/export.hpp"
#include "attn/expr.hpp"
#include "attn/tensor.hpp"

namespace ATTN_API attn {

// How the sequences of a tensor lie in memory.
enum class Layout : std::uint8_t {
  dense,   // [batch, seqlen, heads, head_dim]
  packed,  // [total, heads, head_dim], sequence b in rows cu_seqlens[b] .. cu_seqlens[b + 1]
  paged,   // K and V only: [pages, page_size, heads, head_dim], row j of sequence b in page
           // page_table[b, j / page_size]
};

// Dropout on P. Bit (b, h, i, j) comes from Philox4x32-7, so the mask is the same on every
// backend, for every tiling and number of threads (docs/numerics.md defines it bit for bit).
// probability is rounded to a multiple of 2^-15.
struct Dropout {
  double probability = 0;  // in [0, 1)
  std::uint64_t seed = 0;
  std::uint64_t offset = 0;
  // Seed and offset are read from Inputs::rng_state while a call runs, and those above are not. A
  // captured CUDA graph whose tensor is written anew between replays draws anew at each.
  bool rng_state = false;
};

// The dtype of a problem, or none, of which it counts as f32. Written and read like a DType:
// problem.dtype = DType::bf16, problem.dtype == DType::f32.
class OptionalDType {
 public:
  constexpr OptionalDType() noexcept = default;
  // Implicit both ways.
  constexpr OptionalDType(DType dtype) noexcept  // NOLINT(google-explicit-constructor)
      : dtype_(dtype), given_(true) {}
  // NOLINTNEXTLINE(google-explicit-constructor)
  constexpr operator DType() const noexcept { return dtype_; }
  constexpr bool given() const noexcept { return given_; }

 private:
  DType dtype_ = DType::f32;
  bool given_ = false;
};

// The largest head size, of Q and K as of V and O.
inline constexpr std::int64_t kMaxHeadDim = 576;

// Sizes left at 0 are taken from the tensors when a call receives them; sizes that are set must
// match the tensors.
struct Problem {
  std::int64_t batch = 0;
  std::int64_t seqlen_q = 0;  // of the longest sequence when packed, or more
  std::int64_t seqlen_k = 0;  // likewise; paged: page_size * pages of a sequence when left at 0
  std::int64_t heads_q = 0;
  std::int64_t heads_k = 0;     // divides heads_q: MHA, GQA or MQA
  std::int64_t head_dim = 0;    // of Q and K, 1 to kMaxHeadDim
  std::int64_t head_dim_v = 0;  // of V and O, 1 to kMaxHeadDim
  // The type of Q, K, V, O and their gradients, but for the next four: f32, bf16, f16; f64 on a
  // CPU. Not given, it is taken from Q as a size of 0 is, and f32 where there is none; given, it
  // must be that of Q.
  OptionalDType dtype{};
  // Of O where that is another one: f32 beside bf16 or f16, so that what is merged (attn::merge) or
  // added up later is rounded once. Products stay those of dtype. Forward only.
  OptionalDType type_o{};
  // Of Q where it is stored otherwise: e4m3 or e5m2, times Inputs::scale_q. dtype is then
  // that of O, but for type_o, and must be set, as no input shows it. Beside any dtype but f64;
  // forward only.
  CacheType type_q = CacheType::as_q;
  // Of K and of V, where they are stored otherwise, as an engine's cache is: any pair, beside any
  // dtype but f64. Each element counts as the number that is stored, times its scale. as_q: dtype.
  // Blocks (q8_0, q4_0) ask for a head size that 32 divides. Forward only.
  CacheType type_k = CacheType::as_q;
  CacheType type_v = CacheType::as_q;

  Layout layout_q = Layout::dense;  // of Q, O, dQ, dO
  Layout layout_k = Layout::dense;  // of K, V, dK, dV
  std::int64_t page_size = 0;       // when layout_k is paged

  // Keys that all sequences share and that lie once in memory, as of a common prompt (cascade
  // attention): key j of a sequence is key j of the prefix, and from seqlen_prefix on its own key
  // j - seqlen_prefix. Sizes and lengths of K here and in Inputs (seqlen_k, seqused_k,
  // cu_seqlens_k, page_table) are those of the own keys. Mask and score see all keys: `key` counts
  // from the first key of the prefix, the symbol `seqlen_k` is the prefix and the own length
  // together, and `position` follows from it. So
  // the causal mask shows the whole prefix to queries that stand at own keys, a window or ALiBi
  // counts distances through it, and buffers by key have seqlen_prefix + seqlen_k of them. The keys
  // of the prefix that every query is sure to see, by a score that is the same function for all
  // queries, are read once for the batch, others once for each sequence (Plan::reasons says how
  // many). Example: with the causal mask and up to 4 queries a sequence, a key is sure to be seen
  // where 3 more keys of the prefix follow. Forward only, without dropout and
  // PlanOptions::batch_invariant: these are refused with Error(unsupported).
  std::int64_t seqlen_prefix = 0;
  // True, where layout_k is paged: the prefix lies in pages of K and V (Inputs::prefix_page_table).
  // False: it is Inputs::prefix_k and prefix_v, whatever layout_k is.
  bool paged_prefix = false;

  // Keys by list: the number of entries of each list in Inputs::key_list, or 0, where there are no
  // lists and a row looks at every key. With lists a row's sums run over the entries of its list
  // that are keys of the sequence, 0 to its length - 1, and for which the mask is true; mask and
  // score get the key's own index. Other entries, as -1, stand for nothing. A key that stands in a
  // list twice counts twice, as two equal keys would. Without dropout and seqlen_prefix; backward
  // not in f64 nor paged, on a GPU without gradients of buffers and PlanOptions::deterministic.
  std::int64_t key_list = 0;

  // 1 / sqrt(head_dim) when not given; finite and, but for f64, at most 2^127 in magnitude.
  std::optional<double> softmax_scale{};
  expr::Expr mask{};   // boolean; over everything but score; empty: every key is seen
  expr::Expr score{};  // float32; empty: the score itself
  bool sink = false;   // a learnable logit per head in the denominator
  Dropout dropout{};

  double scale() const;  // softmax_scale or its default, which needs head_dim
};

// Text form, e.g. "b2_sq1024_sk4096_hq8_hk2_d128_causal_bf16"; docs/descriptors.md is its grammar.
// Used by the command, the tests, the benchmarks and in errors. parse_problem(to_string(p))
// describes the same problem (a dtype that is not given is written as f32, which it counts as);
// buffers of shorthands (alibi, bias, documents, block masks) come back by name and shape, without
// data. parse_problem throws Error(invalid_argument) that names the token; a text cannot make it
// take more memory or time than its length asks for (docs/security.md).
std::string to_string(const Problem& problem);
Problem parse_problem(std::string_view text);

}  // namespace attn
