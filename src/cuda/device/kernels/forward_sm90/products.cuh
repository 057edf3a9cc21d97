// The products of a consumer of the Hopper forward kernel, 64 rows of Q: S = Q K^T of a block of
// keys and O += P V of the block before, issued together and waited for one after the other.
#pragma once

#include "device.cuh"
#include "kernels/forward_sm90/float8_parts.cuh"
#include "kernels/forward_sm90/tiles.cuh"
#include "ptx/wgmma.cuh"
#include "softmax/online.cuh"
#include "tile/accumulator.cuh"
#include "tile/matrix_descriptor.cuh"

namespace attn::device {

// What a consumer keeps from round to round.
template <class C>
struct ForwardSm90State {
  float o[C::kHeadDimV / 2];
  float s[C::kBlockN / 2];
  unsigned probability[C::kBlockN / (C::kFloat8 ? 8 : 4)];
  Float8State<C> float8;
  OnlineSoftmax softmax;
  unsigned blocks = 0;   // whose S was computed so far
  bool k_ready = false;  // K of the next block was there when it was looked for
  // Tiles of Q that were released (high half) and tiles begun (low half) so far; each wraps in its
  // half, a multiple of the rings' lengths.
  unsigned counts = 0;
  ATTN_DEVICE unsigned queries() const { return counts >> 16; }
  ATTN_DEVICE unsigned tiles() const { return counts & 0xffff; }
  ATTN_DEVICE void next_query() { counts += 0x10000; }
  ATTN_DEVICE void next_tile() { counts = (counts & 0xffff0000) | ((counts + 1) & 0xffff); }
};

template <class C, class Expressions>
struct ForwardSm90Products {
  using Tiles = ForwardSm90Tiles<C, Expressions>;
  using State = ForwardSm90State<C>;
  using Layout = typename Tiles::Layout;
  using Operands = typename Tiles::Operands;
  using Own = typename Tiles::Own;

  const Tiles& tiles;

  // Consumers take turns issuing products, so that one has its softmax while another multiplies.
  ATTN_DEVICE void wait_turn() const {
    if constexpr (C::kTakeTurns) barrier_sync(Tiles::kTurnBarrier + tiles.consumer, 256);
  }
  ATTN_DEVICE void give_turn() const {
    if constexpr (C::kTakeTurns) {
      const int next = tiles.consumer + 1 == C::kConsumers ? 0 : tiles.consumer + 1;
      barrier_arrive(Tiles::kTurnBarrier + next, 256);
    }
  }

  static ATTN_DEVICE void pin_all(State& c) {
    pin_product(c);
    pin(c.s);
    pin(c.probability);
  }
  // Multiplies O, where references have moved.
  static ATTN_DEVICE void scale(State& c, const float (&factor)[2]) {
#pragma unroll
    for (int i = 0; i < C::kHeadDimV / 2; ++i) c.o[i] *= factor[i / 2 % 2];
    if constexpr (C::kFloat8) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if constexpr (C::kSumsByProduct) c.float8.sums[2 * i] *= factor[i];
        c.float8.alpha[i] *= factor[i];
      }
    }
  }
  static ATTN_DEVICE void pin_product(State& c) {
    pin(c.o);
    if constexpr (C::kSumsByProduct) pin(c.float8.sums);
  }

  ATTN_DEVICE unsigned v_tile(const State& c) const {
    return tiles.shared +
           static_cast<unsigned>(Layout::kVAt + Tiles::ValueRing::stage(c.blocks - 1) * Layout::kV);
  }
  ATTN_DEVICE unsigned q_descriptor(const State& c) const {
    return uniform_descriptor(tiles.shared + Layout::kQAt + q_slot(c) * Layout::kQ, 0);
  }
  ATTN_DEVICE unsigned k_descriptor(const State& c) const {
    return uniform_descriptor(
        tiles.shared + Layout::kKAt + Tiles::KeyRing::stage(c.blocks) * Layout::kK, 0);
  }
  // The descriptor of V of the block before, whose P is ready.
  ATTN_DEVICE unsigned v_descriptor(const State& c) const {
    return uniform_descriptor(v_tile(c), Layout::kPanelBytes);
  }

  ATTN_DEVICE void issue_qk(State& c, unsigned q, unsigned k) const {
#pragma unroll
    for (int step = 0; step < Tiles::kStepsK; ++step) {
      const int panel = step / 4, inside = step % 4 * 32;
      ProductSS<typename Operands::Scores, C::kBlockN>::run(
          c.s, q + descriptor_step(panel * 8192 + inside),
          k + descriptor_step(panel * Layout::kPanelBytes + inside), step > 0);
    }
    wgmma_commit();
  }

  ATTN_DEVICE void issue_pv(State& c, unsigned v, bool add) const {
    if constexpr (C::kFloat8) {
#pragma unroll
      for (int step = 0; step < C::kBlockN / 32; ++step) {
        const int place = step / 4 * Layout::kTransposedPanel + step % 4 * 32;
        const unsigned* const p = &c.probability[4 * step];
        const bool adds = step > 0 || (add && !c.float8.taken);
        if constexpr (Layout::kOnesInV) {
          ProductWithSums<typename Operands::Values, C::kHeadDimV>::run(
              c.o, c.float8.sums, p, v + descriptor_step(place), adds);
        } else {
          ProductRS<typename Operands::Values, C::kHeadDimV>::run(c.o, p,
                                                                  v + descriptor_step(place), adds);
          if constexpr (C::kSumsByProduct) {
            ProductRS<typename Operands::Values, kRowsOfOnes>::run(
                c.float8.sums, p, matrix_descriptor(tiles.shared + Layout::kOnesAt, 0), adds);
          }
        }
      }
      c.float8.taken = false;
    } else {
#pragma unroll
      for (int step = 0; step < C::kBlockN / 16; ++step) {
        ProductRS<typename Operands::Values, C::kHeadDimV>::run(
            c.o, &c.probability[4 * step], v + descriptor_step(step * 2048), step > 0 || add);
      }
    }
    wgmma_commit();
  }

  // Issues S of the next block, whose K is there.
  ATTN_DEVICE void issue_s(State& c, unsigned q, unsigned k) const {
    wait_turn();
    pin_all(c);
    wgmma_fence();
    issue_qk(c, q, k);
  }
  // Issues O += P V of the block before, whose V is there.
  ATTN_DEVICE void issue_o(State& c, unsigned v, bool add) const {
    wgmma_fence();
    issue_pv(c, v, add);
    give_turn();
  }
  // Waits for S alone.
  ATTN_DEVICE void wait_s(State& c) const {
    wgmma_wait<1>();
    pin(c.s);
    if constexpr (Tiles::kJudgesLate) tiles.k_ring().release(c.blocks);
  }
  // Waits for V of the block before; `used` of its keys are in use.
  ATTN_DEVICE void wait_v(const State& c, int used) const {
    tiles.v_ring().wait(c.blocks - 1);
    clear_tail(c, used);
  }
  // Computes O += P V and nothing else.
  ATTN_DEVICE void multiply_v(State& c, int used, bool add) const {
    wait_v(c, used);
    pin_all(c);
    wgmma_fence();
    issue_pv(c, v_descriptor(c), add);
    wgmma_wait<0>();
    pin_product(c);
    tiles.v_ring().release(c.blocks - 1);
  }

  // Rows [first, rows) of a tile in shared memory become zeros before the warpgroup's next product.
  template <int kPanels>
  ATTN_DEVICE void clear_rows(unsigned tile, int panel_bytes, int first, int rows) const {
    const int words = (rows - first) * 8;  // of 16 bytes, of a panel
    for (int panel = 0; panel < kPanels; ++panel) {
      for (int i = static_cast<int>(threadIdx.x % 128); i < words; i += 128) {
        store_shared(tile + static_cast<unsigned>(panel * panel_bytes + first * 128 + i * 16),
                     {0, 0, 0, 0});
      }
    }
    fence_proxy_async();
    barrier_sync(Tiles::kWarpgroupBarrier + tiles.consumer, 128);
  }
  // Rows of V from the used-th on are past the length and someone else's: they must not meet P = 0
  // as NaN.
  ATTN_DEVICE void clear_tail(const State& c, int used) const {
    if constexpr (C::kClearTail) {
      if (used >= C::kBlockN) return;
      clear_rows<Layout::kPanelsV>(v_tile(c), Layout::kPanelBytes, used, C::kBlockN);
    }
  }
  // So are rows of Q past the length. As zeros they do not decide for the rows beside them in a
  // warp whether the reference of the softmax is good. Rows before row 0 fill warps of their own.
  ATTN_DEVICE void clear_queries(const State& c, const Own& t) const {
    if constexpr (C::kPackedQ || C::kUsedQ) {
      const int used = t.w.sequence.length_q * C::kGroup - (t.w.row0 + 64 * tiles.consumer);
      if (used >= 64) return;
      clear_rows<Layout::kPanelsK>(tiles.shared + Layout::kQAt + q_slot(c) * Layout::kQ, 8192, used,
                                   64);
    }
  }

  ATTN_DEVICE int q_slot(const State& c) const {
    return tiles.q_ring(tiles.consumer).place(c.queries());
  }
};

}  // namespace attn::device
