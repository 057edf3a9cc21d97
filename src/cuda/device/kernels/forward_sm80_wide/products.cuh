// The products of forward_sm80_wide: a warp's share of S = Q K^T and of O += P V.
#pragma once

#include "device.cuh"
#include "kernels/forward_sm80_wide/layout.cuh"
#include "ptx/mma.cuh"

namespace attn::device {

template <class C>
struct ForwardSm80WideProducts {
  using Layout = ForwardSm80WideLayout<C>;
  using Warp = ForwardSm80WideWarp<C>;
  using TileK = typename Layout::TileK;
  using TileV = typename Layout::TileV;
  using TileP = typename Layout::TileP;
  using Element = typename C::Element;
  static constexpr int kGroups = Warp::kGroups, kKeys = Warp::kKeys, kColumns = Warp::kColumns;

  // Rows of Q, all columns: kQInRegisters.
  struct Queries {
    unsigned steps[TileK::kChunks / 2][4];
  };
  static ATTN_DEVICE void load_queries(Queries& q, unsigned shared) {
    const int l = Warp::lane();
    const unsigned lane = TileK::lane(shared + static_cast<unsigned>(Layout::kQAt),
                                      Warp::group_row() + l % 16, l / 16);
#pragma unroll
    for (int step = 0; step < TileK::kChunks / 2; ++step) {
      load_matrices(q.steps[step], TileK::further(lane, 0, 2 * step));
    }
  }

  // S <- Q K^T of the warp's rows and its 8 keys. A product waits for the one before it in its sum,
  // so there are four.
  static ATTN_DEVICE void multiply_qk(float (&s)[4], const Queries& q, unsigned shared, int stage) {
    static_assert(kKeys == 8);
    constexpr int kSums = 4;
    const int l = Warp::lane();
    const unsigned keys = shared + static_cast<unsigned>(Layout::kKAt + stage * Layout::kK);
    const unsigned k_lane = TileK::lane(keys, Warp::key0() + l % 8, l / 8);
    float sums[kSums][4] = {};
#pragma unroll
    for (int step = 0; step < TileK::kChunks / 2; step += 2) {
      unsigned k[4];
      load_matrices(k, TileK::further(k_lane, 0, 2 * step));
      multiply(Element{}, sums[step % kSums], q.steps[step], k[0], k[1]);
      multiply(Element{}, sums[(step + 1) % kSums], q.steps[step + 1], k[2], k[3]);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) s[i] = (sums[0][i] + sums[1][i]) + (sums[2][i] + sums[3][i]);
  }

  // S <- Q K^T of the warp's rows and keys. shared: where the layout begins.
  static ATTN_DEVICE void multiply_qk(float (&s)[kKeys / 2], unsigned shared, int stage) {
    const int l = Warp::lane();
    const unsigned q_lane = TileK::lane(shared, Warp::group_row() + l % 16, l / 16);
    const unsigned keys = shared + static_cast<unsigned>(Layout::kKAt + stage * Layout::kK);
#pragma unroll
    for (int i = 0; i < kKeys / 2; ++i) s[i] = 0;
    constexpr int kUnroll = 6;  // all steps together are thousands of instructions
    if constexpr (kKeys == 8) {
      const unsigned k_lane = TileK::lane(keys, Warp::key0() + l % 8, l / 8);
#pragma unroll kUnroll
      for (int chunk = 0; chunk < TileK::kChunks; chunk += 4) {
        unsigned q[4], k[4];
        load_matrices(k, TileK::further(k_lane, 0, chunk));
        load_matrices(q, TileK::further(q_lane, 0, chunk));
        multiply(Element{}, s, q, k[0], k[1]);
        load_matrices(q, TileK::further(q_lane, 0, chunk + 2));
        multiply(Element{}, s, q, k[2], k[3]);
      }
    } else {
      const unsigned k_lane = TileK::lane(keys, Warp::key0() + l / 16 * 8 + l % 8, l / 8 % 2);
#pragma unroll kUnroll
      for (int chunk = 0; chunk < TileK::kChunks; chunk += 2) {
        unsigned q[4];
        load_matrices(q, TileK::further(q_lane, 0, chunk));
#pragma unroll
        for (int j = 0; j < kKeys / 16; ++j) {
          unsigned k[4];
          load_matrices(k, TileK::further(k_lane, 16 * j, chunk));
          multiply(Element{}, s + 8 * j, q, k[0], k[1]);
          multiply(Element{}, s + 8 * j + 4, q, k[2], k[3]);
        }
      }
    }
  }

  // O += P V of the warp's columns.
  static ATTN_DEVICE void multiply_pv(float (&o)[kGroups][kColumns / 2], unsigned shared,
                                      int stage) {
    const int l = Warp::lane();
    const unsigned p_lane = TileP::lane(shared + Layout::kPAt, l % 16, l / 16);
    const int at = C::kVInK ? Layout::kKAt + stage * Layout::kK : Layout::kVAt + stage * Layout::kV;
    const unsigned v_lane =
        TileV::lane(shared + static_cast<unsigned>(at), l % 16, Warp::column0() / 8 + l / 16);
#pragma unroll
    for (int step = 0; step < C::kBlockN / 16; ++step) {
      unsigned p16[kGroups][4];
#pragma unroll
      for (int m = 0; m < kGroups; ++m) {
        load_matrices(p16[m], TileP::further(p_lane, 16 * m, 2 * step));
      }
#pragma unroll
      for (int j = 0; j < kColumns / 16; ++j) {
        if (!Warp::kAllColumns && Warp::column0() + 16 * j >= 8 * TileV::kChunks) break;
        unsigned v[4];
        load_matrices_transposed(v, further(v_lane, 16 * step, 2 * j));
#pragma unroll
        for (int m = 0; m < kGroups; ++m) {
          multiply(Element{}, o[m] + 8 * j, p16[m], v[0], v[1]);
          multiply(Element{}, o[m] + 8 * j + 4, p16[m], v[2], v[3]);
        }
      }
    }
  }

 private:
  // TileV::further from the warp's first column, which may be inside a group of chunks that are
  // exchanged: 48 columns a warp are 6 chunks, where 8 are exchanged.
  static ATTN_DEVICE unsigned further(unsigned v_lane, int rows, int chunks) {
    if constexpr (kColumns / 8 % TileV::kSwizzle == 0) return TileV::further(v_lane, rows, chunks);
    const int row = Warp::lane() % 16, first = Warp::column0() / 8 + Warp::lane() / 16;
    return v_lane +
           static_cast<unsigned>(rows * TileV::kRowBytes + TileV::offset(row, first + chunks) -
                                 TileV::offset(row, first));
  }
};

}  // namespace attn::device
