// Standard attention (FlashAttention paper, algorithm 0): S = Q K^T, P = softmax(S) and O = P V,
// each a launch of its own that goes through memory. The baseline of the others, with the
// arithmetic of forward_simt.cuh.
//
// S and then P lie in the workspace, [batch][heads_q][seqlen_q][seqlen_k] in float32. A block of
// 128 threads has a tile of rows in each of the three passes; a warp of it has whole rows in the
// second.
//
// Reads of C: what forward_simt.cuh reads, without kSplits, kClassified and kGroup, which are off.
// Grid: p.num_tiles blocks with ForwardSimtLayout<C>::kBytes of dynamic shared memory; p.pass says
// which pass.
#pragma once

#include "device.cuh"
#include "kernels/forward_simt.cuh"

namespace attn::device {

template <class C, class Expressions>
struct ForwardStandard {
  using Step = ForwardSimt<C, Expressions>;
  using Layout = typename Step::Layout;
  using Thread = typename Step::Thread;
  using Element = typename C::Element;
  using Row = VisibleRow<C, Expressions>;
  static constexpr int kWarps = Step::kThreads / 32;

  const Step step;

  ATTN_DEVICE int length_k() const { return step.tile.sequence.length_k; }
  ATTN_DEVICE int blocks() const { return step.tile.end; }
  // The address of S, or P, of a row of the tile.
  ATTN_DEVICE float* row_at(int row) const {
    const QueryTile<C>& t = step.tile;
    return step.p.scores + t.partial_row(step.p, t.query_of(row), t.head_of(row)) * step.p.seqlen_k;
  }
  ATTN_DEVICE bool is_used(int row) const {
    return step.tile.query_of(row) < step.tile.sequence.length_q;
  }

  // Copies between the tile of P in shared memory and rows of memory, 64 keys of each.
  template <class Copy>
  ATTN_DEVICE void for_each_score(int block, Copy copy) const {
    __syncthreads();
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x); i < C::kBlockM * C::kBlockN; i += Step::kThreads) {
      const int slot = i % C::kBlockN, row = i / C::kBlockN;
      const int key = block * C::kBlockN + Step::key_of(slot);
      const bool exists = key < length_k() && is_used(step.tile.row0 + row);
      copy(step.shared[Layout::kPAt + slot * Layout::kRows + row],
           exists ? row_at(step.tile.row0 + row) + key : nullptr);
    }
    __syncthreads();
  }

  // Line 1.
  ATTN_DEVICE void scores() const {
    step.load_q();
    Thread t;
#pragma unroll 1
    for (int block = 0; block < blocks(); ++block) {
      step.multiply_qk(t, block, false);
      step.change_scores(t, block, true);
      step.store_p(t);
      for_each_score(block, [](float s, float* to) {
        if (to != nullptr) *to = s;
      });
    }
  }

  // Line 2, of a row, by a warp: the largest score and the sum, each lane its own, then P.
  ATTN_DEVICE void softmax(int row) const {
    const ForwardParams& p = step.p;
    const int query = step.tile.query_of(row), head = step.tile.head_of(row);
    const float c =
        Expressions::kHasScore ? Expressions::kScoreFactor * Step::kLog2E : p.scale_log2;
    float* const s = row_at(row);
    float top = minus_infinity(), l = 0;
    for (int key = Row::lane(); key < length_k(); key += 32) top = fmaxf(top, s[key]);
    top = Row::warp_max(top);
    const float from = top == minus_infinity() ? 0 : top;
    for (int key = Row::lane(); key < length_k(); key += 32) l += exp2f((s[key] - from) * c);
    l = Row::warp_sum(l);
    const TwoFloats m = product(top, Expressions::kHasScore ? Expressions::kScoreFactor : p.scale);
    const float sink = C::kSink ? p.sink[head] : minus_infinity();
    const Denominator d = denominator<C::kSink, false, false>(m, l, sink);
    const float factor = C::kDropout ? d.inverse * p.dropout_scale : d.inverse;
    const auto dropout = dropout_of<C::kRngState>(p, step.tile.sequence.batch);
    const auto pair = static_cast<unsigned>(step.tile.sequence.batch * p.heads_q + head);
    const DropoutRow kept(dropout, pair, static_cast<unsigned>(query));
    for (int key = Row::lane(); key < length_k(); key += 32) {
      const float x = l == 0 ? 0 : exp2f((s[key] - from) * c) * factor;
      s[key] = !C::kDropout || kept.keeps(key) ? x : 0;
    }
    store_lse(row, d.lse);
    if constexpr (C::kMaxLogit) {
      if (Row::lane() == 0) raise_max_logit(p, head, largest_or_nan(m.value, l));
    }
  }
  ATTN_DEVICE void store_lse(int row, float lse) const {
    const QueryTile<C>& t = step.tile;
    if (Row::lane() != 0 || step.p.lse == nullptr) return;
    step.p.lse[t.query_row(step.p.lse_strides, t.query_of(row), t.head_of(row))] = lse;
  }
  ATTN_DEVICE void softmax() const {
#pragma unroll 1
    for (int r = Step::part(); r < C::kBlockM; r += kWarps) {
      const int row = step.tile.row0 + r;
      if (step.tile.query_of(row) >= step.tile.sequence.rows_q) return;
      if (is_used(row)) {
        softmax(row);
      } else {
        store_lse(row, minus_infinity());
      }
    }
  }

  // Line 3.
  ATTN_DEVICE void values() const {
    Thread t;
    Step::clear(t);
#pragma unroll 1
    for (int block = 0; block < blocks(); ++block) {
      for_each_score(block, [](float& p, const float* from) { p = from == nullptr ? 0 : *from; });
      step.multiply_pv(t, block, false);
    }
#pragma unroll
    for (int r = 0; r < Step::kRows; ++r) {
      const int row = step.first_row() + r;
      if (step.tile.query_of(row) < step.tile.sequence.rows_q) {
        step.store_row(t, r, 1, !is_used(row));
      }
    }
    step.repair(t);
  }
};

template <class C, class Expressions>
ATTN_DEVICE void forward_standard(const ForwardParams& p, const Expressions& e) {
  static_assert(ForwardSimtLayout<C>::kBytes == C::kSharedBytes);  // that the launch gives
  const ForwardStandard<C, Expressions> standard{
      {p, e, QueryTile<C>::at(p, static_cast<int>(blockIdx.x)), shared_memory()}};
  if (p.pass == 0) standard.scores();
  if (p.pass == 1) standard.softmax();
  if (p.pass == 2) standard.values();
}

}  // namespace attn::device
