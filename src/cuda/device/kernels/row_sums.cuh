// Sums of tensors of one shape, rows x heads x columns, in f32 and in the order of the terms,
// rounded once: partial sums of dK and dV of several GPUs. None gives zeros.
//
// Reads of C: Element of the terms, Stored of the sums, kWide, the elements of a load.
// Grid: any number of blocks of kRowSumsThreads, of which `lanes` threads work on a row; they go on
// with those a grid further.
#pragma once

#include "params.cuh"
#include "tile/scalar.cuh"

namespace attn::device {

template <class C>
struct AddRows {
  using Element = typename C::Element;
  using Stored = typename C::Stored;
  // What a thread loads, or stores, at once.
  template <class Of>
  struct alignas(C::kWide * sizeof(typename Scalar<Of>::Storage)) Packet {
    typename Scalar<Of>::Storage x[C::kWide];
  };

  static ATTN_DEVICE long long place(const Strides& s, long long batch, long long row, int head) {
    return batch * s.batch + row * s.row + head * s.head;
  }

  static ATTN_DEVICE void run(const RowSumsParams& p) {
    const int lane = static_cast<int>(threadIdx.x) % p.lanes;
    const int rows_at_once = kRowSumsThreads / p.lanes;
    const int packets = p.columns / C::kWide;
    const long long step = static_cast<long long>(gridDim.x) * rows_at_once;
    for (long long i = blockIdx.x * static_cast<long long>(rows_at_once) +
                       static_cast<int>(threadIdx.x) / p.lanes;
         i < p.all_rows; i += step) {
      const long long batch = i / p.rows, row = i % p.rows;
      for (int j = lane; j < p.heads * packets; j += p.lanes) {
        const int head = j / packets, column = j % packets * C::kWide;
        float sums[C::kWide];
#pragma unroll
        for (int c = 0; c < C::kWide; ++c) sums[c] = 0;
        for (int t = 0; t < p.count; ++t) {
          const RowTerm& term = p.terms[t];
          const auto packet = *reinterpret_cast<const Packet<Element>*>(
              element<Element>(term.data, place(term.strides, batch, row, head) + column));
#pragma unroll
          for (int c = 0; c < C::kWide; ++c) {
            const float x = Scalar<Element>::from(packet.x[c]);
            sums[c] = t == 0 ? x : sums[c] + x;
          }
        }
        Packet<Stored> rounded;
#pragma unroll
        for (int c = 0; c < C::kWide; ++c) rounded.x[c] = Scalar<Stored>::to(sums[c]);
        *reinterpret_cast<Packet<Stored>*>(
            element<Stored>(p.sums, place(p.strides, batch, row, head) + column)) = rounded;
      }
    }
  }
};

}  // namespace attn::device
