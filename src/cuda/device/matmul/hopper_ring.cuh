// What the rungs with TMA and wgmma share: a ring of tiles of A and B in shared memory, which the
// copy engine fills and warpgroups multiply, 64 rows of C each.
//
// A stage is 128 bytes along k, 64 steps or 128 of 8-bit floats: of A the rows of all warpgroups,
// of B C::kColumns columns. Where neighbours along k lie together it is one panel of 128-byte rows;
// else panels of 64 rows (columns), [step][64], side by side (tile/swizzle.cuh), the last of them
// whole even where fewer columns are multiplied. Past the ends of a matrix the copy engine writes
// zeros. An instruction multiplies 256 columns at most: tiles of 320 take two, of 192 and 128.
//
// Reads of C, beside what common.cuh does: kGroups (warpgroups that multiply), kColumns, kStages,
// kMulticast (blocks of a cluster that have the same B: each asks for its part of it, for all).
#pragma once

#include "device.cuh"
#include "divide_up.cuh"
#include "matmul/common.cuh"
#include "ptx/cluster.cuh"
#include "ptx/dependent.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/tma.cuh"
#include "ptx/warpgroup.cuh"
#include "ptx/wgmma.cuh"
#include "tile/matrix_descriptor.cuh"

namespace attn::device {

struct MatmulMaps {
  TensorMap a, b, c;
};

// Calls f(row, column, x, y) for neighbouring sums of a thread, of the 64 rows of its warpgroup.
template <int kCount, class F>
ATTN_DEVICE void for_each_pair(const float (&sum)[kCount], F f) {
  const int row = static_cast<int>(threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4);
  const int column = static_cast<int>(threadIdx.x % 4) * 2;
#pragma unroll
  for (int i = 0; i < kCount; i += 2) {
    f(row + i / 2 % 2 * 8, column + i / 4 * 8, sum[i], sum[i + 1]);
  }
}

template <class C>
struct HopperRing {
  static constexpr int kRows = 64 * C::kGroups, kPanel = 64 * 128;
  static constexpr int kDepth = C::kFloat8 ? 128 : 64;
  static constexpr int kPanelsB = divide_up<64>(C::kColumns);
  static constexpr bool kWide = C::kColumns > 256;
  static constexpr int kAtOnce = kWide ? 192 : C::kColumns;  // columns of the first instruction
  static constexpr int kA = kRows * 128;
  static constexpr int kB = C::kStepsTogetherB ? C::kColumns * 128 : kPanelsB * kPanel;
  static constexpr int kStageBytes = kA + kB;
  static constexpr int kBarriers = C::kStages * kStageBytes;  // full, then empty
  static constexpr int kBytes = kBarriers + 16 * C::kStages;

  unsigned shared;
  ATTN_DEVICE unsigned full(int stage) const {
    return shared + kBarriers + static_cast<unsigned>(8 * stage);
  }
  ATTN_DEVICE unsigned empty(int stage) const { return full(stage) + 8 * C::kStages; }
  // Prepares the barriers; by one thread, before a barrier of all.
  ATTN_DEVICE void init() const {
    for (int i = 0; i < C::kStages; ++i) {
      mbarrier_init(full(i), 1);
      mbarrier_init(empty(i), 4 * C::kGroups * C::kMulticast);  // a warp each
    }
    mbarrier_init_fence();
  }

  // Asks for the steps of a stage from `step` on of the tile; one thread.
  ATTN_DEVICE void load(const MatmulParams& p, const MatmulMaps& maps, const MatmulTile& t,
                        int step, int stage) const {
    const unsigned at = shared + static_cast<unsigned>(stage * kStageBytes);
    mbarrier_arrive_expect(full(stage), kStageBytes);
    const int batch_a = p.a_batch == 0 ? 0 : t.batch, batch_b = p.b_batch == 0 ? 0 : t.batch;
    load_operand<C::kStepsTogetherA, kRows>(at, maps.a, full(stage), t.row, step, batch_a,
                                            kEvictNormal);
    constexpr int kPart = C::kColumns / C::kMulticast;
    const int part = C::kMulticast > 1 ? static_cast<int>(cluster_rank()) * kPart : 0;
    load_operand<C::kStepsTogetherB, kPart, C::kMulticast>(
        at + kA + static_cast<unsigned>(part * 128), maps.b, full(stage), t.column + part, step,
        batch_b, p.streams_b ? kEvictFirst : kEvictNormal);
  }
  template <bool kStepsTogether, int kLanes, int kBlocks = 1>
  static ATTN_DEVICE void load_operand(unsigned at, const TensorMap& map, unsigned barrier,
                                       int lane, int step, int batch, unsigned long long policy) {
    const auto load_box = [&](unsigned to, int across, int down) {
      if constexpr (kBlocks == 1) {
        tma_load_4d(to, map, barrier, across, down, batch, 0, policy);
      } else {
        tma_load_4d_multicast(to, map, barrier, across, down, batch, 0, (1 << kBlocks) - 1, policy);
      }
    };
    if constexpr (kStepsTogether && kLanes <= 256) {
      load_box(at, step, lane);
    } else if constexpr (kStepsTogether) {
#pragma unroll
      for (int i = 0; i < kLanes / 64; ++i) load_box(at + i * kPanel, step, lane + 64 * i);
    } else {
#pragma unroll
      for (int i = 0; 64 * i < kLanes; ++i) load_box(at + i * kPanel, lane + 64 * i, step);
    }
  }
  // Gives a stage back, to all who fill it; by all threads of a warp.
  ATTN_DEVICE void release(int stage) const {
    if constexpr (C::kMulticast == 1) {
      if (threadIdx.x % 32 == 0) mbarrier_arrive(empty(stage));
    } else {
      const unsigned lane = threadIdx.x % 32;
      if (lane < C::kMulticast) mbarrier_arrive_cluster(cluster_address(empty(stage), lane));
    }
  }

  // Issues the products of a stage, by one warpgroup: sum += A B. add == 0: the sum starts here.
  ATTN_DEVICE void multiply(int stage, int group, int add, float (&sum)[C::kColumns / 2]) const {
    const unsigned at = shared + static_cast<unsigned>(stage * kStageBytes);
    const unsigned a = uniform_descriptor(at + static_cast<unsigned>(group * kPanel), kPanel);
    const unsigned b = uniform_descriptor(at + kA, kPanel);
#pragma unroll
    for (int l = 0; l < 4; ++l) {  // 16 (32) steps: 32 bytes of a row, or 16 rows
      const unsigned da = a + (C::kStepsTogetherA ? 2 : 128) * l;
      const unsigned db = b + (C::kStepsTogetherB ? 2 : 128) * l;
      const int more = l == 0 ? add : 1;
      multiply_columns<0, kAtOnce>(da, db, more, sum);
      if constexpr (kWide) multiply_columns<kAtOnce, C::kColumns - kAtOnce>(da, db, more, sum);
    }
    wgmma_commit();
  }
  // The columns from kFirst on, a multiple of 64: 128 bytes of shared memory each, in either order.
  template <int kFirst, int kCount>
  static ATTN_DEVICE void multiply_columns(unsigned a, unsigned b, int add,
                                           float (&sum)[C::kColumns / 2]) {
    using Element = typename C::Element;
    auto& part = *reinterpret_cast<float(*)[kCount / 2]>(&sum[kFirst / 2]);
    const unsigned from = b + kFirst * 128 / 16;
    if constexpr (C::kStepsTogetherA && C::kStepsTogetherB) {
      ProductSS<Element, kCount>::run(part, a, from, add);
    } else if constexpr (C::kStepsTogetherA) {
      ProductST<Element, kCount>::run(part, a, from, add);
    } else if constexpr (C::kStepsTogetherB) {
      ProductTS<Element, kCount>::run(part, a, from, add);
    } else {
      ProductTT<Element, kCount>::run(part, a, from, add);
    }
  }
};

}  // namespace attn::device
