// forward_sm90 of Q, K and V as 8-bit floats, with P as e4m3: twice the products of 16
// bits a second. FlashAttention-3, section 3.3, but for the transposition of V, which a kernel
// ahead does once (kernels/transpose_values.cuh) where many tiles of queries read it, and sums of
// O, which are float32 from block to block.
//
// Reads of C what forward_sm90 does, with kFloat8; Element is that of the dtype, Output that of O,
// rows of Q and K end where kHeadDim does, and kHeadDim and kHeadDimV are multiples of 16.
// OperandQ, OperandK and OperandV: Float8E4M3 or Float8E5M2.
#pragma once

#include "kernels/forward_sm90.cuh"

namespace attn::device {

template <class C, class Expressions>
ATTN_DEVICE void forward_sm90_float8(const CachedForwardParams& p, const Expressions& e,
                                     const ForwardMaps& maps) {
  forward_sm90<C, Expressions>(p, e, maps);
}

}  // namespace attn::device
