// Rows whose LSE is so far from 0 that one float does not say how many keys share it: LSE of 300
// keys with -1e30 added to each score is -1e30, as that of one such key. P of the backward pass,
// exp(score - LSE), would be 300 times too large. Such a row has its P from the largest of its
// scores and the sum of their exponentials, which kernels/backward_far_rows.cuh leaves for it.
//
// Reads of C: kFarRows, whether the score adds what may be as large
#pragma once

#include "device.cuh"
#include "params.cuh"
#include "ptx/math.cuh"
#include "softmax/online.cuh"

namespace attn::device {

// As on a CPU (kFarLse of src/cpu/backward/gradient_context.cpp). LSE of +inf stands for no keys.
ATTN_DEVICE bool is_far_lse(float lse) { return fabsf(lse) >= 0x1p20f && lse != -minus_infinity(); }
// The same of LSE in base 2.
ATTN_DEVICE bool is_far_lse2(float lse2) {
  return fabsf(lse2) >= 0x1p20f * 1.4426950408889634f && lse2 != -minus_infinity();
}
// LSE in base 2, which is finite where LSE is.
template <class C>
ATTN_DEVICE float lse_in_base_2(float lse) {
  const float lse2 = lse * 1.4426950408889634f;
  if constexpr (C::kFarRows) {
    if (fabsf(lse) <= largest_float()) return fminf(fmaxf(lse2, -largest_float()), largest_float());
  }
  return lse2;
}

// Those of a batch entry and head. They lie behind the terms of all rows.
ATTN_DEVICE FarRow* far_rows(const BackwardParams& p, int batch, int head) {
  const long long heads = static_cast<long long>(p.batch) * p.heads_q;
  return reinterpret_cast<FarRow*>(p.row_terms + heads * p.seqlen_q) +
         (static_cast<long long>(batch) * p.heads_q + head) * p.seqlen_q;
}

// Whether any row is far: a word behind them, which is 0 before the kernel that looks for them.
ATTN_DEVICE int* any_far_row(const BackwardParams& p) {
  return reinterpret_cast<int*>(far_rows(p, p.batch, 0));
}
// What a kernel is compiled for once more, as the subtraction of m takes time in every score.
template <class C>
struct WithoutFarRows : C {
  static constexpr bool kFarRows = false;
};

// What P of a row is computed with: 2^(c (score - m) - lse2), where m is 0 of rows that are not
// far.
struct RowReference {
  float m, lse2;
};
template <class C>
ATTN_DEVICE RowReference reference_of(const BackwardParams& p, float lse2, int batch, int head,
                                      int query) {
  if constexpr (C::kFarRows) {
    if (is_far_lse2(lse2)) {
      const FarRow far = far_rows(p, batch, head)[query];
      return {far.m, far.log2_l};
    }
  }
  return {0, lse2};
}

// The exponent in base 2 of a sink in a far row, whose scores are `factor` times what m is of.
ATTN_DEVICE float sink_exponent(float sink, float factor, float m) {
  return fminf(fmaf(-factor, m, sink) * 1.4426950408889634f, largest_float());
}

}  // namespace attn::device
