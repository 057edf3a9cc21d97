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
  // Of a thread's two rows.
  struct Rows {
    float value[2];
  };
  struct State {
    float s[C::kBlockN / 2];   // S, then P
    float a[C::kHeadDim / 2];  // dP, then dQ
    unsigned ds[C::kBlockN / 4];
    Rows lse, d;
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

  // Whatever block n waits for, and its LSE and D: done while dQ of the block before is computed,
  // when there is time.
  __device__ __forceinline__ void prepare(State& c, unsigned n) const {
    this->wait(Layout::kFullQ, QRing::stage(n), QRing::parity(n));
    c.lse = load_rows(Layout::kLseAt, QRing::stage(n));
    this->wait(Layout::kFullO, ORing::stage(n), ORing::parity(n));
    c.d = load_rows(Layout::kDAt, ORing::stage(n));
    this->wait(Layout::kEmptyP, PRing::stage(n), PRing::parity(n) ^ 1);
    if constexpr (C::kStagesP > 1) wait_for_place(n);
  }
  __device__ __forceinline__ void wait_for_place(unsigned n) const {
    this->wait(Layout::kEmptyS, SRing::stage(n), SRing::parity(n) ^ 1);
  }

  // rows keys^T: S from Q and K, or dP from dO and V.
  __device__ __forceinline__ void issue_scores(float (&to)[C::kBlockN / 2], int rows_at,
                                               int keys_at) const {
    const unsigned rows = this->descriptor(rows_at, 0), keys = this->descriptor(keys_at, 0);
    pin(to);
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
    issue_scores(c.s, Layout::kQAt + QRing::stage(n) * Layout::kQ, Layout::kKAt);
  }
  __device__ __forceinline__ void issue_dp(State& c, unsigned n) const {
    issue_scores(c.a, Layout::kOAt + ORing::stage(n) * Layout::kQ, Layout::kVAt);
  }
  __device__ __forceinline__ void issue_dq(State& c) const {
    const unsigned keys = this->descriptor(Layout::kKAt, Layout::kKeyPanel);
    pin(c.a);
    pin(c.ds);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < C::kBlockN / 16; ++step) {
      ProductRS<C::kHeadDim, 1>::run(c.a, &c.ds[4 * step], keys + ((step * 2048) >> 4), step > 0);
    }
    wgmma_commit();
  }

  // Address of this thread's row of the matrices that stmatrix writes first; matrices of 16 keys
  // further on lie at this address with bits 5 and 6 changed.
  __device__ __forceinline__ unsigned matrix_address(int at, int stage) const {
    const unsigned lane = threadIdx.x % 32, row = lane % 16;
    return shared + static_cast<unsigned>(at + stage * Layout::kP + warp() * 2048) + row * 128 +
           ((lane / 16 ^ (row & 7)) << 4);
  }

  // What this warp wrote to shared memory is for the tensor cores of another warpgroup. Its readers
  // fence where C::kReadersFence, so that the scores need not wait until the writes are done.
  __device__ __forceinline__ void hand_over(int full, int stage) const {
    if constexpr (!C::kReadersFence) fence_proxy_async();
    __syncwarp();
    this->arrive(full, stage);
  }
  // dQ of block n from dS, and dS to its reader. Where a fence takes time, it does so beside the
  // product.
  __device__ __forceinline__ void issue_dq_and_hand_over(State& c, unsigned n) const {
    if constexpr (!C::kReadersFence) issue_dq(c);
    hand_over(Layout::kFullS, SRing::stage(n));
    if constexpr (C::kReadersFence) issue_dq(c);
  }

  // 2^x within 5e-5 of it, without the unit for special functions.
  static __device__ __forceinline__ float exp2_polynomial(float x) {
    constexpr float kRound =
        12582912.f;  // 1.5 2^23: the sum's low bits are x rounded to an integer
    const float y = fmaxf(x, -126.f), whole = y + kRound, f = y - (whole - kRound);
    const float power =
        fmaf(fmaf(fmaf(fmaf(0.00961813f, f, 0.05550411f), f, 0.24022651f), f, 0.69314718f), f, 1.f);
    return __int_as_float(__float_as_int(power) + (__float_as_int(whole) << 23));
  }

  // S is complete: gives Q back, S <- P, and hands P on. With C::kLateProduct, dP is asked for in
  // between.
  __device__ __forceinline__ void exponentiate(State& c, const Tile& t, int block,
                                               unsigned n) const {
    this->arrive(Layout::kEmptyQ, QRing::stage(n));
    const int row = block * C::kBlockM + warp() * 16 + static_cast<int>(threadIdx.x % 32 / 4);
    const int key = t.key_block * C::kBlockN + 2 * static_cast<int>(threadIdx.x % 4);
    const bool diagonal =
        C::kCausal && block * C::kBlockM < t.key_block * C::kBlockN + C::kBlockN - 1;
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
    const unsigned matrices = matrix_address(Layout::kPAt, PRing::stage(n));
#pragma unroll
    for (int k = 0; k < C::kBlockN / 16; ++k) {
      if (C::kLateProduct && k == C::kLateProduct) issue_dp(c, n);
      unsigned words[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        float* const x = &c.s[8 * k + 2 * j];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const float y = fmaf(x[i], p.scale_log2, -c.lse.value[j % 2]);
          x[i] = C::kLeaveOut & 2                ? y
                 : j == 3 && C::kPolynomial != 0 ? exp2_polynomial(y)
                                                 : exp2_approximate(y);
        }
        words[j] = BFloat16::pack(x[0], x[1]);
      }
      store_matrices((matrices ^ static_cast<unsigned>(k % 4 * 32)) +
                         static_cast<unsigned>(k / 4 * Layout::kRowPanel),
                     words);
    }
    hand_over(Layout::kFullP, PRing::stage(n));
  }

  // dP is complete: dS = P (dP - D), put to shared memory and kept as operand of dQ; gives dO back.
  __device__ __forceinline__ void differentiate(State& c, unsigned n) const {
    this->arrive(Layout::kEmptyO, ORing::stage(n));
    if constexpr (C::kStagesP == 1) wait_for_place(n);
    const unsigned matrices = matrix_address(Layout::kSAt, SRing::stage(n));
#pragma unroll
    for (int k = 0; k < C::kBlockN / 16; ++k) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int at = 8 * k + 2 * j;
        c.ds[4 * k + j] = BFloat16::pack(c.s[at] * (c.a[at] - c.d.value[j % 2]),
                                         c.s[at + 1] * (c.a[at + 1] - c.d.value[j % 2]));
      }
      const unsigned words[4] = {c.ds[4 * k], c.ds[4 * k + 1], c.ds[4 * k + 2], c.ds[4 * k + 3]};
      store_matrices((matrices ^ static_cast<unsigned>(k % 4 * 32)) +
                         static_cast<unsigned>(k / 4 * Layout::kRowPanel),
                     words);
    }
  }

  // dQ of the block is complete: adds it to memory. Words of a warp lie together.
  static constexpr int kWords = C::kHeadDim / 8;  // of 16 bytes a thread
  static constexpr int kWarpBytes = kWords * 512;
  __device__ __forceinline__ void stage(const State& c, unsigned at) const {
#pragma unroll
    for (int j = 0; j < kWords; ++j) {
      const float* const x = &c.a[4 * j];
      store_shared(
          at + static_cast<unsigned>(j * 512) + threadIdx.x % 32 * 16,
          {__float_as_int(x[0]), __float_as_int(x[1]), __float_as_int(x[2]), __float_as_int(x[3])});
    }
  }
  __device__ __forceinline__ void add_dq(State& c, const Tile& t, int block) const {
    if constexpr ((C::kLeaveOut & 1) != 0) return;
    const unsigned staged = shared + static_cast<unsigned>(Layout::kStagedAt + warp() * kWarpBytes);
    float* const to =
        p.dq_sum +
        ((static_cast<long long>(t.pair) * p.query_blocks + block) * 4 + warp()) * (kWarpBytes / 4);
    if constexpr (C::kAdd == Add::paced) {
      stage(c, staged);
      hand_over(Layout::kFullStaged, 0);
    } else if constexpr (C::kAdd == Add::bulk) {
      const bool leader = threadIdx.x % 32 == 0;
      if (leader) bulk_wait_read();
      __syncwarp();
      stage(c, staged);
      fence_proxy_async();
      __syncwarp();
      if (leader) {
        constexpr unsigned kBytes = kWarpBytes / (C::kLeaveOut & 4 ? 2 : 1);
        if constexpr (C::kLeaveOut & 8) {
          bulk_store(to, staged, kBytes);
        } else {
          bulk_red_add(to, staged, kBytes);
        }
        bulk_commit();
      }
    } else {
#pragma unroll
      for (int j = 0; j < kWords / (C::kLeaveOut & 4 ? 2 : 1); ++j) {
        red_add(to + j * 128 + threadIdx.x % 32 * 4, c.a[4 * j], c.a[4 * j + 1], c.a[4 * j + 2],
                c.a[4 * j + 3]);
      }
    }
  }
  __device__ __forceinline__ void wait_for_staging(unsigned n) const {
    if constexpr (C::kAdd == Add::paced) this->wait(Layout::kEmptyStaged, 0, ~n & 1);
  }

  __device__ __forceinline__ void run() const {
    unsigned n = 0, tiles = 0;  // blocks of queries, tiles of keys so far
    this->for_each_tile([&](const Tile& t) {
      State c;
      int block = t.first;
      this->wait(Layout::kFullK, 0, tiles & 1);
      prepare(c, n);
      issue_s(c, n);
      this->wait(Layout::kFullV, 0, tiles++ & 1);
      if constexpr (!C::kLateProduct) issue_dp(c, n);
      const unsigned last = n + static_cast<unsigned>(t.count) - 1;
      while (true) {
        // S and dP of this block are on their way.
        wgmma_wait<C::kLateProduct ? 0 : 1>();
        pin(c.s);
        exponentiate(c, t, block, n);
        wgmma_wait<0>();
        pin(c.a);
        differentiate(c, n);
        if (n == last) break;
        issue_dq_and_hand_over(c, n);
        wait_for_staging(n);
        prepare(c, n + 1);
        // There is no room for S beside dQ with its operand in registers.
        wgmma_wait<0>();
        pin(c.a);
        issue_s(c, n + 1);
        add_dq(c, t, block);
        if constexpr (!C::kLateProduct) issue_dp(c, n + 1);
        block = this->next_block(t, block);
        ++n;
      }
      this->arrive(Layout::kEmptyV, 0);
      issue_dq_and_hand_over(c, n);
      wait_for_staging(n);
      wgmma_wait<0>();
      pin(c.a);
      this->arrive(Layout::kEmptyK, 0);
      add_dq(c, t, block);
      ++n;
    });
    if (C::kAdd == Add::bulk && threadIdx.x % 32 == 0) bulk_wait();
  }
};

}  // namespace attn::device
