// Rung 5, vector_loads: register_tiles asks for one number an instruction. Here a thread asks for
// 16 bytes, and for those of the next step before it multiplies, so that they travel meanwhile.
// Expected: 1.3 times, near the rate of FMAs. Measured: 1.7 times (39 TFLOP/s). That rate is the
// limit now: on an H100 tensor cores multiply 16-bit numbers fifteen times as fast.
//
// Tile: 128 x 128 x 16, 256 threads. Takes matrices whose rows (columns, where those lie together)
// begin at multiples of 16 bytes and are multiples of 16 bytes long.
#pragma once

#include "device.cuh"
#include "matmul/register_tiles.cuh"
#include "ptx/mbarrier.cuh"

namespace attn::device {

// The part of a tile that a thread copies: vectors of neighbours. kAlongSteps: along k.
template <class Element, bool kAlongSteps>
struct VectorShare {
  using Storage = typename Scalar<Element>::Storage;
  static constexpr int kWidth = 16 / static_cast<int>(sizeof(Storage));
  static constexpr int kAcross =
      (kAlongSteps ? RegisterTiles::kDepth : RegisterTiles::kSide) / kWidth;
  static constexpr int kCount =
      RegisterTiles::kSide * RegisterTiles::kDepth / kWidth / RegisterTiles::kThreads;
  Int4 vectors[kCount];

  static ATTN_DEVICE int lane(int i) {  // of the row or column
    const int at = static_cast<int>(threadIdx.x) + i * RegisterTiles::kThreads;
    return kAlongSteps ? at / kAcross : at % kAcross * kWidth;
  }
  static ATTN_DEVICE int step(int i) {
    const int at = static_cast<int>(threadIdx.x) + i * RegisterTiles::kThreads;
    return kAlongSteps ? at % kAcross * kWidth : at / kAcross;
  }
  // first: of the tile; lanes, steps: that the matrix still has.
  ATTN_DEVICE void load(const Storage* first, long long lane_stride, long long step_stride,
                        int lanes, int steps) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      vectors[i] = Int4{0, 0, 0, 0};
      if (lane(i) < lanes && step(i) < steps) {
        vectors[i] =
            *reinterpret_cast<const Int4*>(first + lane(i) * lane_stride + step(i) * step_stride);
      }
    }
  }
  ATTN_DEVICE void store(float* tile) const {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const auto* x = reinterpret_cast<const Storage*>(&vectors[i]);
#pragma unroll
      for (int e = 0; e < kWidth; ++e) {
        const int to = (step(i) + (kAlongSteps ? e : 0)) * RegisterTiles::kPadded + lane(i) +
                       (kAlongSteps ? 0 : e);
        tile[to] = Scalar<Element>::from(x[e]);
      }
    }
  }
};

template <class C>
ATTN_DEVICE void matmul_vector_loads(const MatmulParams& p) {
  using L = RegisterTiles;
  using Element = typename C::Element;
  extern __shared__ __align__(1024) char memory[];
  float* const a = reinterpret_cast<float*>(memory);
  float* const b = a + L::kDepth * L::kPadded;
  const MatmulTile t = matmul_tile(p, static_cast<int>(blockIdx.x), L::kSide, L::kSide);
  if (!has_tile<C>(p, t)) return;
  const int x = static_cast<int>(threadIdx.x % 16), y = static_cast<int>(threadIdx.x / 16);
  const auto* first_a = element<Element>(p.a, t.batch * p.a_batch + t.row * p.a_row);
  const auto* first_b = element<Element>(p.b, t.batch * p.b_batch + t.column * p.b_column);
  VectorShare<Element, C::kStepsTogetherA> share_a;
  VectorShare<Element, C::kStepsTogetherB> share_b;
  const auto load = [&](int step) {
    share_a.load(first_a + step * p.a_step, p.a_row, p.a_step, p.m - t.row, p.k - step);
    share_b.load(first_b + step * p.b_step, p.b_column, p.b_step, p.n - t.column, p.k - step);
  };
  float sum[8][8] = {};
  const int first = next_step<C>(p, t, 0);
  load(first);  // zeros where the mask has nothing
  for (int step = first; step < p.k; step = next_step<C>(p, t, step + L::kDepth)) {
    share_a.store(a);
    share_b.store(b);
    __syncthreads();
    const int next = next_step<C>(p, t, step + L::kDepth);
    if (next < p.k) load(next);
    multiply_registers(a, b, y, x, sum);
    __syncthreads();
  }
  store_registers<C>(p, t, y, x, sum);
}

}  // namespace attn::device
