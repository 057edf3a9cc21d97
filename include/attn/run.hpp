// Running attention, forward and backward, and merging partial results.
#pragma once

#include <concepts>
#include <string>
#include <utility>
#include <vector>

#include "attn/context.hpp"
#include "attn/export.hpp"
#include "attn/plan.hpp"
#include "attn/problem.hpp"
#include "attn/tensor.hpp"

namespace ATTN_API attn {

// All tensors of a call but scalars are on one device. Lengths, page tables and lists of keys are
// each i32 or i64, which is meant by "integers". On a GPU the values of cu_seqlens, seqused and
// page_table cannot be looked at before the call returns: they are not checked, and must be right.
// On a CPU, and wherever a number may be any, none of i64 is cut to 32 bits before it is compared.
// Shapes by Layout (problem.hpp). The last dimension of Q, K, V, O and their gradients is
// contiguous (stride 1); other strides are free, and may be 0 for inputs. What lies in unused
// pages, padding or past a length is never read into a result. Rows of a packed tensor from
// cu_seqlens[batch] on belong to no sequence: in results they are as rows past seqused.
// Members have initialisers so that a braced list may name only some of them without a warning.
struct Inputs {
  Tensor q{};  // [batch, seqlen_q, heads_q, head_dim] or packed [total_q, heads_q, head_dim]
  Tensor k{};  // [batch, seqlen_k, heads_k, head_dim], packed, or paged [pages, page_size, heads_k,
               // head_dim]
  Tensor v{};  // as k, with head_dim_v. Of caches in types of their own the last dimension of k and
               // v has row_size() elements of storage_dtype() (cache_type.hpp)
  // Where type_q is given: f32, the scale of each query and head, [batch, seqlen_q, heads_q],
  // packed as Q is, any strides; or [heads_q], one a head; or [1]. Not given: 1. Its elements are
  // as those of scale_k. Example: one scale for each sequence and head has stride 0 along the
  // queries.
  Tensor scale_q{};
  // Where type_k (type_v) is e4m3, e5m2 or i8: f32, the scale of each key and head, [batch,
  // seqlen_k, heads_k], packed or paged as K is, any strides; or [heads_k], one a head; or [1]. Not
  // given: 1. One that is not finite makes its rows NaN.
  Tensor scale_k{};
  Tensor scale_v{};
  Tensor cu_seqlens_q{};  // integers [batch + 1], contiguous: rows where sequences start,
                          // non-decreasing, from 0, below 2^31; packed Q
  Tensor cu_seqlens_k{};  // likewise for packed K, V
  Tensor seqused_q{};     // integers [batch], contiguous: length in use, at most the sequence's;
                          // optional
  Tensor seqused_k{};     // likewise; paged: the length of each sequence
  Tensor page_table{};  // integers [batch, pages per sequence], last dimension contiguous; entries
                        // past the length are not read, and those of pages of which no row sees a
                        // key may hold any number, -1 as well
  Tensor prefix_k{};    // [seqlen_prefix, heads_k, head_dim], where a prefix is not paged
  Tensor prefix_v{};    // [seqlen_prefix, heads_k, head_dim_v]
  Tensor prefix_page_table{};  // integers [pages of the prefix], contiguous, when
                               // problem.paged_prefix
  // When problem.key_list: integers [batch, 1 or heads_k, seqlen_q, key_list], packed Q [1 or
  // heads_k, total_q, key_list], last dimension contiguous: the keys of each row, in any order; one
  // list for the query heads of a K, V head, or with 1 for all heads. Any number may stand in it:
  // what is no key of the sequence is masked out, and memory for it is never read.
  Tensor key_list{};
  Tensor sink{};       // f32 [heads_q], contiguous, when problem.sink
  Tensor rng_state{};  // i64 [2], contiguous, when problem.dropout.rng_state: seed and offset of
                       // dropout, whose 64 bits are taken as unsigned; the same in backward
  expr::Bindings buffers{};  // tensors for named buffers of mask and score, of the declared dtype
                             // and shape (a size declared as 0 is taken from the tensor); needed
                             // where the Buffer has no data. Scalars: see attn/scalar.hpp
};

struct Outputs {
  Tensor o{};    // as q, with head_dim_v, of type_o; a sequence's rows past seqused_q are zeros
  Tensor lse{};  // natural logarithms, f32 [batch, heads_q, seqlen_q] or packed [heads_q, total_q],
                 // any strides; f64 when the problem is; -inf past seqused_q; optional forward
  // The largest score of each head: f32 [heads_q], any stride; f64 when the problem is; optional,
  // forward. The maximum is over all rows in use of all sequences and the keys that each sees, of
  // scores as they enter softmax: after softmax_scale and the score expression, before dropout. The
  // sink is not part of it. -inf where no row sees a key, or every score is -inf. NaN where a row
  // sees a score of NaN or +inf: its O and LSE are NaN too. Training reads it: QK-clip (Kimi K2,
  // 2025) scales down weights of both where a head's largest score passes a bound. On a GPU the
  // algorithms flash_attention and block_sparse refuse it with Error(unsupported).
  Tensor max_logit{};
};

// Gradients of a loss with respect to O and LSE. Where the loss does not use LSE a Tensor says it
// all: backward(problem, inputs, outputs, d_o, gradients).
struct OutputGradients {
  Tensor o{};    // as O
  Tensor lse{};  // as LSE; optional. Not used at rows whose LSE is -inf
  OutputGradients() = default;
  // Implicit, so that a Tensor may stand where this is asked for.
  OutputGradients(const Tensor& d_o,  // NOLINT(google-explicit-constructor)
                  const Tensor& d_lse = {})
      : o(d_o), lse(d_lse) {}
};

struct Gradients {
  Tensor dq{}, dk{}, dv{};   // as q, k, v; each optional; rows past seqused are set to zero
  Tensor dsink{};            // f32 [heads_q], any stride; optional
  expr::Bindings buffers{};  // f32, shaped as the named buffer of the score: gradient of bias,
                             // slopes, ...; not of scalars; optional. On a GPU those whose
                             // elements many queries or keys share (slopes, tables of distances)
                             // may differ in the last bit between runs, as they are sums in
                             // float64 in no fixed order; PlanOptions::deterministic has them
                             // summed exactly
};

// Fills the sizes that `problem` leaves at 0 and a dtype not given from the tensors, and checks all
// that can be checked; throws Error(invalid_argument) naming the argument, its value and what is
// accepted. Of packed tensors in memory of the CPU it reads cu_seqlens for the longest sequence; on
// a GPU the problem must set seqlen_q (seqlen_k) of these itself. Thread-safe.
Problem complete(const Problem& problem, const Inputs& inputs);

// O <- attention, and LSE and max_logit where they are given. Plans, checks, then writes. Outputs
// must not overlap inputs or each other.
//
// Algorithm: FlashAttention-2 (Dao 2023), algorithm 1, with keys split as in Flash-Decoding where
// queries are few, unless PlanOptions names another one. A shared prefix has passes of its own,
// which are merged likewise. Accuracy: the largest error against fp64
// is at most twice that of standard attention computed in the same precision, plus half a unit in
// the last place of the output, and likewise element by element (docs/numerics.md, "The error
// rule"). Same inputs give the same bits for every number of threads.
//
// Throws Error: invalid_argument, unsupported, unavailable or out_of_memory, and then nothing was
// written; device, where a driver refuses a call; and what the executor throws. On a GPU the work
// is put into context.stream, and what fails while it runs is told by the next call that waits for
// it.
//
// Thread-safe: calls share the executor, with memory that the CPU backend keeps in it for the next
// ones (64 MiB at most, until the executor is destroyed; context.workspace instead, where given),
// kernels compiled for GPUs, which stay loaded until the process ends, and plans
// (docs/plan-cache.md).
void forward(const Problem& problem, const Inputs& inputs, const Outputs& outputs,
             const PlanOptions& options = {}, const Context& context = {});
// Runs a plan that make_plan gave for the forward phase, and does what forward() does; another plan
// is refused with Error(invalid_argument). forward(plan, ...) is a template, as that of backward,
// so that {} is a Problem: forward({}, inputs, outputs) is attention and nothing else.
void run_forward(const Plan& plan, const Inputs& inputs, const Outputs& outputs,
                 const Context& context = {});
template <std::same_as<Plan> P>
void forward(const P& plan, const Inputs& inputs, const Outputs& outputs,
             const Context& context = {}) {
  run_forward(plan, inputs, outputs, context);
}

// Gradients <- d(loss), given those of O and LSE, and O, LSE as forward wrote them. Those
// that are given are overwritten, not added to.
// Recomputes P from LSE (FlashAttention paper, algorithm 4; the loop over keys outside, as
// FlashAttention-2's algorithm 2) and regenerates the dropout mask. The gradient of LSE enters as
// D = rowsum(dO * O) - dLSE, since dLSE_i / dT_ij = P_ij; the sink is a part of LSE. K and V
// gradients of a GQA group are summed over its query heads. Not for paged K, V. Same inputs give
// the same bits, but for three things on a GPU without PlanOptions::deterministic: dQ, the
// gradients of buffers whose elements many queries or keys share (Gradients::buffers), and dK and
// dV over lists of keys, beside which that option is refused. Accuracy, errors and threads are as
// of forward.
void backward(const Problem& problem, const Inputs& inputs, const Outputs& outputs,
              const OutputGradients& d_outputs, const Gradients& gradients,
              const PlanOptions& options = {}, const Context& context = {});
// Runs a plan that make_plan gave for the backward phase, and does what backward() does; another
// plan is refused with Error(invalid_argument).
void run_backward(const Plan& plan, const Inputs& inputs, const Outputs& outputs,
                  const OutputGradients& d_outputs, const Gradients& gradients,
                  const Context& context = {});
template <std::same_as<Plan> P>
void backward(const P& plan, const Inputs& inputs, const Outputs& outputs,
              const OutputGradients& d_outputs, const Gradients& gradients,
              const Context& context = {}) {
  run_backward(plan, inputs, outputs, d_outputs, gradients, context);
}

// Merges partial results over disjoint sets of keys, as those of Flash-Decoding or of a ring of
// machines: LSE = log(sum_p exp(LSE_p)), O = sum_p exp(LSE_p - LSE) O_p (docs/numerics.md, "LSE").
//
// All tensors are on one device and of one shape, O dense or packed as in Outputs, of f32, bf16,
// f16 or on a CPU f64, each of its own dtype; LSE is f32 (f64 beside an O of f64), needed of the
// parts and optional in the result. On a GPU there are up to 32 parts. O of a part whose LSE is
// -inf is not read. The sink belongs to one part only. The result may be one of the parts, and
// overlaps no other. max_logit is refused: that of all keys is the largest of the parts'. Parts in
// 16 bits add a rounding each, which Problem::type_o avoids (docs/serving.md, "Two caches in one
// softmax"). No workspace is needed.
//
// Arithmetic is in double and rounded once, to the result's dtype. On a CPU it runs on the calling
// thread, on a GPU in context.stream. Throws Error(invalid_argument) before anything is written,
// and on a GPU unavailable or device. Thread-safe.
void merge(const std::vector<Outputs>& parts, const Outputs& result, const Context& context = {});

}  // namespace attn
