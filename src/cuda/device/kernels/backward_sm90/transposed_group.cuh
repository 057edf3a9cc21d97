// dV and dK of a tile of keys, transposed: dV^T = dO^T P and dK^T = Q^T dS. A product has 64
// columns of the head as rows and all keys as columns, so that heads of 64 columns read three
// quarters of the shared memory that products of 64 keys by 64 columns do.
#pragma once

#include "device.cuh"
#include "kernels/backward_sm90/gradient_group.cuh"
#include "kernels/backward_sm90/gradient_side.cuh"
#include "ptx/wgmma.cuh"
#include "tile/accumulator.cuh"
#include "tile/matrix_descriptor.cuh"

namespace attn::device {

template <class C, bool kOfV>
struct BackwardSm90TransposedGroup {
  using Tiles = BackwardSm90Tiles<C>;
  using Layout = typename Tiles::Layout;
  using Element = typename Tiles::Element;
  using Stored = typename C::Stored;
  using G = BackwardSide<C, kOfV>;
  static constexpr int kQueries = Tiles::kQueries, kTileKeys = Tiles::kTileKeys;
  static constexpr int kParts = G::kPanels;  // of 64 columns
  struct Sums {
    float x[kParts][kTileKeys / 2];
  };

  const Tiles& tiles;
  BackwardSm90GradientSide<C, kOfV> side;

  static ATTN_DEVICE void pin_all(Sums& sums) {
#pragma unroll
    for (int part = 0; part < kParts; ++part) pin(sums.x[part]);
  }
  ATTN_DEVICE void issue_step(Sums& sums, unsigned n, bool add) const {
    fence_proxy_async();
    const unsigned a = tiles.descriptor(side.rows_at(n), 0);
    const unsigned b = tiles.descriptor(side.scores_at(n), Layout::kRowPanel);
    pin_all(sums);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < kQueries / 16; ++step) {
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        ProductTT<Element, kTileKeys>::run(
            sums.x[part], a + descriptor_step(part * Layout::kRowPanel + step * 2048),
            b + descriptor_step(step * 2048), step > 0 || add);
      }
    }
    wgmma_commit();
  }
  // The column of the head that row i of a thread's two is.
  static ATTN_DEVICE int column(int part, int i) {
    return 64 * part + static_cast<int>(threadIdx.x % 128 / 32) * 16 +
           static_cast<int>(threadIdx.x % 32 / 4) + 8 * i;
  }
  // Adds a step element by element, where a product would spread NaN.
  ATTN_DEVICE void add_step_visible(Sums& sums, unsigned n, bool add) const {
    const unsigned scores = tiles.shared + static_cast<unsigned>(side.scores_at(n));
    const unsigned rows = tiles.shared + static_cast<unsigned>(side.rows_at(n));
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      if (!add) {
#pragma unroll
        for (float& x : sums.x[part]) x = 0;
      }
#pragma unroll 1
      for (int query = 0; query < kQueries; ++query) {
        const float row[2] = {
            panel_element<Element>(rows, Layout::kRowPanel, query, column(part, 0)),
            panel_element<Element>(rows, Layout::kRowPanel, query, column(part, 1))};
#pragma unroll
        for (int j = 0; j < kTileKeys / 8; ++j) {
          const unsigned pair = panel_word(scores, Layout::kRowPanel, query,
                                           8 * j + 2 * static_cast<int>(threadIdx.x % 4));
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const float weight =
                Scalar<Element>::from(static_cast<unsigned short>(pair >> (16 * half)));
#pragma unroll
            for (int i = 0; i < 2; ++i) {
              float& sum = sums.x[part][4 * j + 2 * i + half];
              if (weight != 0) sum = fmaf(weight, row[i], sum);
            }
          }
        }
      }
    }
  }

  // s: of the tile. Threads whose columns are neighbours exchange halves, so that each stores two
  // columns of a key.
  ATTN_DEVICE void store(const Sums& sums, const BackwardStep& s) const {
    void* const to = kOfV ? tiles.p.dv : tiles.p.dk;
    if (to == nullptr) return;
    const Strides& strides = kOfV ? tiles.p.dv_strides : tiles.p.dk_strides;
    const float factor = side.factor();
    const Sequence q = sequence_of<C>(tiles.p, s.batch);
    const int head = s.head_q / tiles.p.group;
    char* const first =
        static_cast<char*>(to) +
        kBytesOf<Stored> *
            (head * strides.head + (C::kPackedK ? q.row_k * strides.row : s.batch * strides.batch));
    const bool odd = (threadIdx.x / 4 & 1) != 0;
#pragma unroll
    for (int j = 0; j < kTileKeys / 8; ++j) {
      const int key = s.key0 + 8 * j + 2 * static_cast<int>(threadIdx.x % 4) + (odd ? 1 : 0);
      const bool used = !C::kUsedK || key < q.length_k;
      char* const row = first + kBytesOf<Stored> * key * strides.row;
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const float* const x = &sums.x[part][4 * j + 2 * i];
          const float got = __shfl_xor_sync(~0u, odd ? x[0] : x[1], 4);
          const float low = odd ? got : x[0], high = odd ? x[1] : got;
          const int at = column(part, i) & ~1;
          const bool exists = key < q.rows_k && at < G::kColumns;
          if constexpr (kBytesOf<Stored> == 4) {
            const float2 pair = used ? make_float2(low * factor, high * factor) : make_float2(0, 0);
            if (exists) *reinterpret_cast<float2*>(row + 4 * at) = pair;
          } else {
            const unsigned word = used ? Element::pack(low * factor, high * factor) : 0u;
            if (exists) *reinterpret_cast<unsigned*>(row + 2 * at) = word;
          }
        }
      }
    }
  }
};

// How one warpgroup keeps both: transposed, but for wider heads, of which tiles have 64 keys.
template <bool kWide>
struct BackwardSm90GradientForm {
  template <class C, bool kOfV>
  using Group = BackwardSm90TransposedGroup<C, kOfV>;
};
template <>
struct BackwardSm90GradientForm<true> {
  template <class C, bool kOfV>
  using Group = BackwardSm90GradientGroup<C, kOfV>;
};

// One warpgroup that keeps both.
template <class C>
struct BackwardSm90Gradients {
  using Tiles = BackwardSm90Tiles<C>;
  using Form = BackwardSm90GradientForm<(C::kHeadDim > 64 || C::kHeadDimV > 64)>;
  using OfV = typename Form::template Group<C, true>;
  using OfK = typename Form::template Group<C, false>;
  OfV v;
  OfK k;

  // The flags of step n, when its dO and Q are there.
  ATTN_DEVICE int wait_for_rows(unsigned n) const {
    v.side.wait_for_rows(n);
    return k.side.wait_for_rows(n);
  }

  ATTN_DEVICE void run() const {
    unsigned n = 0;  // steps so far
    int flags = wait_for_rows(n);
    while (!Tiles::is(flags, BackwardStep::kEnd)) {
      typename OfV::Sums dv;
      typename OfK::Sums dk;
      bool add = false;
      while (true) {
        const bool last = Tiles::is(flags, BackwardStep::kLast);
        bool special = false;
        if (Tiles::is(flags, BackwardStep::kMixed)) {
          special = __any_sync(~0u, v.side.is_special(n, flags) | k.side.is_special(n, flags));
        }
        v.side.wait_for_scores(n);
        if (special) {
          v.add_step_visible(dv, n, add);
          v.side.release(n);
          k.side.wait_for_scores(n);
          k.add_step_visible(dk, n, add);
          if (!last) flags = wait_for_rows(n + 1);
        } else {
          v.issue_step(dv, n, add);
          k.side.wait_for_scores(n);
          k.issue_step(dk, n, add);
          // What the next step waits for, beside the products. After the last step of a tile that
          // would keep dV and dK from being stored.
          if (!last) flags = wait_for_rows(n + 1);
          wgmma_wait<1>();
          v.side.release(n);
          wgmma_wait<0>();
          OfV::pin_all(dv);
          OfK::pin_all(dk);
        }
        k.side.release(n);
        n = uniform(n + 1);  // so descriptors are scalar
        if (last) break;
        add = true;
      }
      const BackwardStep s = v.tiles.step(n - 1);
      v.store(dv, s);
      k.store(dk, s);
      flags = wait_for_rows(n);
    }
  }
};

}  // namespace attn::device
