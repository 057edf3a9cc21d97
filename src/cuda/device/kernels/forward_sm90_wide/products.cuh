// The products of a warpgroup of forward_sm90_wide: S = Q K^T, and its share of O += P V.
#pragma once

#include "device.cuh"
#include "divide_up.cuh"
#include "kernels/forward_sm90_wide/layout.cuh"
#include "ptx/warpgroup.cuh"
#include "ptx/wgmma.cuh"
#include "tile/matrix_descriptor.cuh"

namespace attn::device {

template <class C>
struct ForwardSm90WideProducts {
  using Layout = ForwardSm90WideLayout<C>;
  using Warp = ForwardSm90WideWarp<C>;
  using Element = typename C::Element;
  static constexpr int kKeys = Warp::kKeys, kColumns = Warp::kColumns;
  static constexpr int kPanelBytes = Layout::TileK::kPanelBytes;

  // S <- Q K^T. shared: where the layout begins.
  static ATTN_DEVICE void multiply_qk(float (&s)[kKeys / 2], unsigned shared, int stage) {
    const unsigned keys = shared + static_cast<unsigned>(Layout::kKAt + stage * Layout::kK);
    const unsigned q = uniform_descriptor(shared, 0);
    const unsigned k = uniform_descriptor(keys, 0);
    pin(s);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < divide_up<16>(C::kHeadDim); ++step) {
      const unsigned at = descriptor_step(step / 4 * kPanelBytes + step % 4 * 32);
      ProductSS<Element, kKeys>::run(s, q + at, k + at, step > 0);
    }
    wgmma_commit();
    wgmma_wait<0>();
    pin(s);
  }

  // O += P V of the warpgroup's columns.
  static ATTN_DEVICE void multiply_pv(float (&o)[1][kColumns / 2], unsigned shared, int stage) {
    const int at = C::kVInK ? Layout::kKAt + stage * Layout::kK : Layout::kVAt + stage * Layout::kV;
    const int panels = Warp::column0() / 64 * kPanelBytes;
    const unsigned p = uniform_descriptor(shared + Layout::kPAt, 0);
    const unsigned v = uniform_descriptor(shared + static_cast<unsigned>(at + panels), kPanelBytes);
    pin(o[0]);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < C::kBlockN / 16; ++step) {
      ProductST<Element, kColumns>::run(o[0], p + descriptor_step(32 * step),
                                        v + descriptor_step(2048 * step), 1);
    }
    wgmma_commit();
    wgmma_wait<0>();
    pin(o[0]);
  }
};

}  // namespace attn::device
