// The products that a score warpgroup of the Hopper backward kernel issues for a step: S = Q K^T,
// dP = dO V^T and dQ = dS K.
#pragma once

#include "device.cuh"
#include "divide_up.cuh"
#include "kernels/backward_sm90/scores.cuh"
#include "ptx/wgmma.cuh"
#include "tile/accumulator.cuh"
#include "tile/matrix_descriptor.cuh"

namespace attn::device {

template <class C>
struct BackwardSm90ScoreProducts {
  using Tiles = BackwardSm90Tiles<C>;
  using Layout = typename Tiles::Layout;
  using Element = typename Tiles::Element;
  using Order = typename Layout::Order;
  using State = BackwardSm90State<C>;
  static constexpr int kKeys = Tiles::kKeys;
  // dP is asked for in the middle of the exponentials, when S is done, so that issuing it does not
  // hold them up.
  static constexpr int kLateProduct = kKeys / 32;

  const Tiles& tiles;

  // rows keys^T over kColumns columns: S from Q and K, or dP from dO and V. rows: a descriptor.
  template <int kColumns>
  ATTN_DEVICE void issue_scores(float (&to)[kKeys / 2], unsigned rows, int keys_at) const {
    const unsigned keys = tiles.descriptor(keys_at, 0);
    pin(to);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < divide_up<16>(kColumns); ++step) {
      const int panel = step / 4, inside = step % 4 * 32;
      ProductSS<Element, kKeys>::run(to, rows + descriptor_step(panel * Layout::kRowPanel + inside),
                                     keys + descriptor_step(panel * Layout::kKeyPanel + inside),
                                     step > 0);
    }
    wgmma_commit();
  }
  ATTN_DEVICE void issue_s(State& c) const { issue_scores<C::kHeadDim>(c.s, c.q, Layout::kKAt); }
  ATTN_DEVICE void issue_dp(State& c) const {
    issue_scores<C::kHeadDimV>(c.dp, c.d_o, Layout::kVAt);
  }
  template <int kPart, int kCount>
  ATTN_DEVICE void issue_dq(float (&dq)[kCount], State& c) const {
    const unsigned keys = tiles.descriptor(
        Layout::kKAt + kPart * Order::kMostColumns / 64 * Layout::kKeyPanel, Layout::kKeyPanel);
    pin(dq);
    pin(c.ds);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < kKeys / 16; ++step) {
      ProductRS<Element, 2 * kCount>::run(dq, &c.ds[4 * step], keys + descriptor_step(step * 2048),
                                          step > 0);
    }
    wgmma_commit();
  }
};

}  // namespace attn::device
