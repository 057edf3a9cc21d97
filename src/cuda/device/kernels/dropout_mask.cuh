// Which elements of P dropout keeps, a byte each. A thread draws the bits of sixteen keys of a row
// (softmax/dropout.cuh), as one does of an accumulator, and goes on with those a grid further.
//
// Grid: any number of blocks of kDropoutMaskThreads.
#pragma once

#include "params.cuh"
#include "softmax/dropout.cuh"

namespace attn::device {

template <bool kRngState>
__device__ void dropout_mask(const DropoutMaskParams& p) {
  const auto dropout = dropout_of<kRngState>(p);
  const long long groups = (p.seqlen_k + 63ll) / 64 * 4;  // of sixteen keys
  const long long count = groups * p.seqlen_q * p.heads_q * p.batch;
  const long long step = static_cast<long long>(gridDim.x) * kDropoutMaskThreads;
  for (long long i = blockIdx.x * static_cast<long long>(kDropoutMaskThreads) + threadIdx.x;
       i < count; i += step) {
    const long long row = i / groups, batch_head = row / p.seqlen_q;
    const int group = static_cast<int>(i % groups), pair = group % 4;
    const long long query = row % p.seqlen_q;
    const DropoutRow bits(dropout, static_cast<unsigned>(batch_head), static_cast<unsigned>(query));
    const DropoutCall call = bits.call(DropoutColumns(dropout, group / 4, pair));
    unsigned char* kept = p.kept + batch_head / p.heads_q * p.kept_strides[0] +
                          batch_head % p.heads_q * p.kept_strides[1] + query * p.kept_strides[2];
#pragma unroll
    for (int t = 0; t < 8; ++t) {
      const long long key = group / 4 * 64ll + 8 * t + 2 * pair;
      const unsigned halves = kept_halves(call.pair(t), p.dropout_rule);
      if (key < p.seqlen_k) kept[key * p.kept_strides[3]] = halves & 1;
      if (key + 1 < p.seqlen_k) kept[(key + 1) * p.kept_strides[3]] = halves >> 31;
    }
  }
}

}  // namespace attn::device
