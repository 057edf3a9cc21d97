// The warpgroup of the Hopper backward kernel that computes P and dS of 64 queries, hands them on
// in shared memory, and adds dQ = dS K to memory.
#pragma once

#include "backward_sm90/tiles.cuh"
#include "products.cuh"
#include "ptx/math.cuh"
#include "ptx/mma.cuh"
#include "ptx/warpgroup.cuh"
#include "ptx/wgmma.cuh"
#include "tile/accumulator.cuh"

namespace attn::device {

template <class C>
struct BackwardSm90ScoreGroup : BackwardSm90Tiles<C> {
  using Base = BackwardSm90Tiles<C>;
  using Base::p, Base::shared;
  using typename Base::Layout, typename Base::Tile;
  static_assert(C::kBlockM == 64 && C::kBlockN == C::kHeadDim);

  using QRing = Ring<C::kStagesQ>;
  using ORing = Ring<C::kStagesQ>;
  using PRing = Ring<C::kStagesP>;
  using SRing = Ring<C::kStagesP>;
  // Blocks of queries are counted over all tiles: the n-th uses place n of each ring.
  struct State {
    float s[C::kBlockN / 2];   // S, then P
    float a[C::kHeadDim / 2];  // dP, then dQ
    unsigned ds[C::kBlockN / 4];
  };
  // Of a thread's two rows.
  struct Rows {
    float value[2];
  };

  static __device__ __forceinline__ int warp() { return static_cast<int>(threadIdx.x % 128 / 32); }
  __device__ __forceinline__ Rows load_rows(int at, int stage) const {
    const unsigned row = shared + static_cast<unsigned>(at + stage * Layout::kRows) +
                         static_cast<unsigned>(warp() * 64) + threadIdx.x % 32 / 4 * 4;
    Rows r;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(r.value[0]) : "r"(row) : "memory");
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(r.value[1]) : "r"(row + 32) : "memory");
    return r;
  }

  // rows keys^T: S from Q and K, or dP from dO and V.
  __device__ __forceinline__ void issue_scores(float (&to)[C::kBlockN / 2], int rows_at,
                                               int keys_at) const {
    const unsigned rows = descriptor_low(shared + static_cast<unsigned>(rows_at), 0);
    const unsigned keys = descriptor_low(shared + static_cast<unsigned>(keys_at), 0);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < C::kHeadDim / 16; ++step) {
      const int panel = step / 4, inside = step % 4 * 32;
      ProductSS<C::kBlockN, 0, 0>::run(to, rows + ((panel * Layout::kRowPanel + inside) >> 4),
                                       keys + ((panel * Layout::kKeyPanel + inside) >> 4),
                                       step > 0);
    }
    wgmma_commit();
  }
  __device__ __forceinline__ void issue_s(State& c, unsigned n) const {
    this->wait(Layout::kFullQ, QRing::stage(n), QRing::parity(n));
    pin(c.s);
    issue_scores(c.s, Layout::kQAt + QRing::stage(n) * Layout::kQ, Layout::kKAt);
  }
  __device__ __forceinline__ void issue_dp(State& c, unsigned n) const {
    this->wait(Layout::kFullO, ORing::stage(n), ORing::parity(n));
    pin(c.a);
    issue_scores(c.a, Layout::kOAt + ORing::stage(n) * Layout::kQ, Layout::kVAt);
  }
  __device__ __forceinline__ void issue_dq(State& c, unsigned n) const {
    const unsigned keys =
        descriptor_low(shared + static_cast<unsigned>(Layout::kKAt), Layout::kKeyPanel);
    pin(c.a);
    if constexpr (C::kSharedOperand) {
      const unsigned scores = descriptor_low(
          shared + static_cast<unsigned>(Layout::kSAt + SRing::stage(n) * Layout::kP), 0);
      barrier_sync(1, 128);  // dS of all warps is written
      wgmma_fence();
#pragma unroll
      for (int step = 0; step < C::kBlockN / 16; ++step) {
        ProductSS<C::kHeadDim, 0, 1>::run(
            c.a, scores + ((step / 4 * Layout::kRowPanel + step % 4 * 32) >> 4),
            keys + ((step * 2048) >> 4), step > 0);
      }
    } else {
      pin(c.ds);
      wgmma_fence();
#pragma unroll
      for (int step = 0; step < C::kBlockN / 16; ++step) {
        ProductRS<C::kHeadDim, 1>::run(c.a, &c.ds[4 * step], keys + ((step * 2048) >> 4), step > 0);
      }
    }
    wgmma_commit();
  }
  // dQ is complete.
  __device__ __forceinline__ void finish_dq(State& c, unsigned n) const {
    pin(c.a);
    if constexpr (C::kSharedOperand) this->arrive(Layout::kEmptyS, SRing::stage(n));
  }

  // Address of this thread's row of the matrices that stmatrix writes first; matrices of 16 keys
  // further on lie at this address with bits 5 and 6 changed.
  __device__ __forceinline__ unsigned matrix_address(int at, int stage) const {
    const unsigned lane = threadIdx.x % 32, row = lane % 16;
    return shared + static_cast<unsigned>(at + stage * Layout::kP + warp() * 2048) + row * 128 +
           ((lane / 16 ^ (row & 7)) << 4);
  }

  // S is complete: gives Q back, S <- P, and hands P on.
  __device__ __forceinline__ void exponentiate(State& c, const Tile& t, int block,
                                               unsigned n) const {
    const Rows lse = load_rows(Layout::kLseAt, QRing::stage(n));
    __syncwarp();
    this->arrive(Layout::kEmptyQ, QRing::stage(n));
    const int row = block * C::kBlockM + warp() * 16 + static_cast<int>(threadIdx.x % 32 / 4);
    const int key = t.key_block * C::kBlockN + 2 * static_cast<int>(threadIdx.x % 4);
    const bool diagonal =
        C::kCausal && (block + 0) * C::kBlockM < t.key_block * C::kBlockN + C::kBlockN - 1;
    if (diagonal || (t.key_block + 1) * C::kBlockN > p.seqlen_k) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int end = C::kCausal ? min(p.seqlen_k, row + 8 * i + 1) : p.seqlen_k;
        const int visible =
            end - key;  // of this thread's keys, those less than this far from the first
#pragma unroll
        for (int j = 0; j < C::kBlockN / 4; ++j) {
          float& x = c.s[j / 2 * 4 + 2 * i + j % 2];
          x = j / 2 * 8 + j % 2 < visible ? x : minus_infinity();
        }
      }
    }
    this->wait(Layout::kEmptyP, PRing::stage(n), PRing::parity(n) ^ 1);
    const unsigned matrices = matrix_address(Layout::kPAt, PRing::stage(n));
#pragma unroll
    for (int k = 0; k < C::kBlockN / 16; ++k) {
      unsigned words[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        float* const x = &c.s[8 * k + 2 * j];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const float y = fmaf(x[i], p.scale_log2, -lse.value[j % 2]);
          x[i] = C::kLeaveOut & 2 ? y : exp2_approximate(y);
        }
        words[j] = BFloat16::pack(x[0], x[1]);
      }
      store_matrices((matrices ^ static_cast<unsigned>(k % 4 * 32)) +
                         static_cast<unsigned>(k / 4 * Layout::kRowPanel),
                     words);
    }
    fence_proxy_async();
    __syncwarp();
    this->arrive(Layout::kFullP, PRing::stage(n));
  }

  // dP is complete: dS = P (dP - D), handed on and kept as operand of dQ; gives dO back.
  __device__ __forceinline__ void differentiate(State& c, unsigned n) const {
    const Rows d = load_rows(Layout::kDAt, ORing::stage(n));
    __syncwarp();
    this->arrive(Layout::kEmptyO, ORing::stage(n));
    this->wait(Layout::kEmptyS, SRing::stage(n), SRing::parity(n) ^ 1);
    const unsigned matrices = matrix_address(Layout::kSAt, SRing::stage(n));
#pragma unroll
    for (int k = 0; k < C::kBlockN / 16; ++k) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int at = 8 * k + 2 * j;
        c.ds[4 * k + j] = BFloat16::pack(c.s[at] * (c.a[at] - d.value[j % 2]),
                                         c.s[at + 1] * (c.a[at + 1] - d.value[j % 2]));
      }
      const unsigned words[4] = {c.ds[4 * k], c.ds[4 * k + 1], c.ds[4 * k + 2], c.ds[4 * k + 3]};
      store_matrices((matrices ^ static_cast<unsigned>(k % 4 * 32)) +
                         static_cast<unsigned>(k / 4 * Layout::kRowPanel),
                     words);
    }
    fence_proxy_async();
    __syncwarp();
    this->arrive(Layout::kFullS, SRing::stage(n));
  }

  // dQ of the block is complete: adds it to memory. Words of a warp lie together.
  __device__ __forceinline__ void add_dq(State& c, const Tile& t, int block, unsigned n) const {
    if constexpr ((C::kLeaveOut & 1) != 0) return;
    constexpr int kWarpWords = 16 * C::kHeadDim;
    const int lane = static_cast<int>(threadIdx.x % 32);
    float* const to =
        p.dq_sum +
        ((static_cast<long long>(t.pair) * p.query_blocks + block) * 4 + warp()) * kWarpWords;
    if constexpr (C::kAdd == Add::pair) {
      const unsigned rank = cluster_rank();
      const unsigned mine = shared +
                            static_cast<unsigned>(Layout::kStagedAt + warp() * 2 * kWarpWords) +
                            static_cast<unsigned>(lane * 16);
      const unsigned there = address_in(mine + Layout::kHalf, rank ^ 1);
      const unsigned ready =
          address_in(shared + static_cast<unsigned>(Layout::kFullTheirs), rank ^ 1);
      this->wait(Layout::kEmptyMine, 0, ~n & 1);
      this->wait_for_pair(Layout::kEmptyTheirs, ~n & 1);
      constexpr int kWords = C::kHeadDim / 16;  // of 16 bytes, of a half
      const auto part = [&](int keep, int give) {
#pragma unroll
        for (int j = 0; j < kWords; ++j) {
          const float* const x = &c.a[4 * (give + j)];
          send(there + static_cast<unsigned>(j * 512), x[0], x[1], x[2], x[3], ready);
        }
#pragma unroll
        for (int j = 0; j < kWords; ++j) {
          const float* const x = &c.a[4 * (keep + j)];
          store_shared(mine + static_cast<unsigned>(j * 512),
                       {__float_as_int(x[0]), __float_as_int(x[1]), __float_as_int(x[2]),
                        __float_as_int(x[3])});
        }
      };
      if (rank == 0) {
        part(0, kWords);
      } else {
        part(kWords, 0);
      }
      __syncwarp();
      this->arrive(Layout::kFullMine, 0);
    } else if constexpr (C::kAdd == Add::bulk) {
      const unsigned staged =
          shared + static_cast<unsigned>(Layout::kStagedAt + warp() * 4 * kWarpWords);
      if (lane == 0) bulk_wait_read();
      __syncwarp();
#pragma unroll
      for (int j = 0; j < C::kHeadDim / 8; ++j) {
        store_shared(staged + static_cast<unsigned>(j * 512 + lane * 16),
                     {__float_as_int(c.a[4 * j]), __float_as_int(c.a[4 * j + 1]),
                      __float_as_int(c.a[4 * j + 2]), __float_as_int(c.a[4 * j + 3])});
      }
      fence_proxy_async();
      __syncwarp();
      if (lane == 0) {
        bulk_red_add(to, staged, 4 * kWarpWords);
        bulk_commit();
      }
    } else {
#pragma unroll
      for (int j = 0; j < C::kHeadDim / 8; ++j) {
        red_add(to + j * 128 + lane * 4, c.a[4 * j], c.a[4 * j + 1], c.a[4 * j + 2],
                c.a[4 * j + 3]);
      }
    }
  }

  __device__ __forceinline__ void run() const {
    unsigned n = 0, tiles = 0;  // blocks of queries, tiles of keys so far
    this->for_each_tile([&](const Tile& t) {
      State c;
      int block = t.first;
      this->wait(Layout::kFullK, 0, tiles & 1);
      issue_s(c, n);
      if constexpr (!C::kQueryFirst) {
        wgmma_wait<0>();
        pin(c.s);
        exponentiate(c, t, block, n);
      }
      this->wait(Layout::kFullV, 0, tiles++ & 1);
      issue_dp(c, n);
      for (const unsigned last = n + static_cast<unsigned>(t.count) - 1; true; ++n) {
        if constexpr (C::kQueryFirst) {
          // S and dP of this block are on their way.
          wgmma_wait<1>();
          pin(c.s);
          exponentiate(c, t, block, n);
        }
        wgmma_wait<0>();
        pin(c.a);
        differentiate(c, n);
        if (n == last) break;
        const int next = this->next_block(t, block);
        if constexpr (C::kQueryFirst) {
          issue_dq(c, n);
          // With its operand in registers there is no room for S beside dQ.
          if constexpr (!C::kSharedOperand) {
            wgmma_wait<0>();
            finish_dq(c, n);
          }
          issue_s(c, n + 1);
          if constexpr (C::kSharedOperand) {
            wgmma_wait<1>();
            finish_dq(c, n);
          }
          add_dq(c, t, block, n);
        } else {
          issue_s(c, n + 1);
          issue_dq(c, n);
          wgmma_wait<1>();
          pin(c.s);
          exponentiate(c, t, next, n + 1);
          wgmma_wait<0>();
          finish_dq(c, n);
          add_dq(c, t, block, n);
        }
        issue_dp(c, n + 1);
        block = next;
      }
      this->arrive(Layout::kEmptyV, 0);
      issue_dq(c, n);
      wgmma_wait<0>();
      finish_dq(c, n);
      this->arrive(Layout::kEmptyK, 0);
      add_dq(c, t, block, n);
      ++n;
    });
    if (C::kAdd == Add::bulk && threadIdx.x % 32 == 0) {
      asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
    }
  }
};

}  // namespace attn::device
