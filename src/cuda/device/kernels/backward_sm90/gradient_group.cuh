// The warpgroups of the Hopper backward kernel that keep dV = P^T dO and dK = dS^T Q of a tile of
// keys in registers.
#pragma once

#include "device.cuh"
#include "kernels/backward_sm90/gradient_side.cuh"
#include "kernels/backward_sm90/kept_bits.cuh"
#include "ptx/wgmma.cuh"
#include "tile/accumulator.cuh"
#include "tile/matrix_descriptor.cuh"

namespace attn::device {

template <class C, bool kOfV>
struct BackwardSm90GradientGroup {
  using Tiles = BackwardSm90Tiles<C>;
  using Layout = typename Tiles::Layout;
  using Element = typename Tiles::Element;
  using Stored = typename C::Stored;
  using G = BackwardSide<C, kOfV>;
  static constexpr int kKeys = Tiles::kKeys, kQueries = Tiles::kQueries;
  static constexpr int kColumns = G::kColumns;
  static constexpr int kParts = kKeys / 64;  // of 64 keys
  // One product gives up to 192 columns: accumulators of more do not fit into the registers that a
  // thread is launched with. The rest has a product of its own.
  static constexpr int kMost = 128;
  static constexpr int kFirst = kColumns > 192 ? kMost : kColumns, kRest = kColumns - kFirst;
  struct Sums {
    float first[kParts][kFirst / 2];
    float rest[kRest > 0 ? kParts : 1][kRest > 0 ? kRest / 2 : 1];
  };

  const Tiles& tiles;
  BackwardSm90GradientSide<C, kOfV> side;

  static ATTN_DEVICE void pin_all(Sums& sums) {
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      pin(sums.first[part]);
      if constexpr (kRest > 0) pin(sums.rest[part]);
    }
  }
  template <int kCount>
  static ATTN_DEVICE void multiply_step(float (&sums)[kCount], unsigned scores, unsigned rows,
                                        int part, int column, int step, bool add) {
    ProductTT<Element, 2 * kCount>::run(
        sums, scores + descriptor_step(part * Layout::kRowPanel + step * 2048),
        rows + descriptor_step(column / 64 * Layout::kRowPanel + step * 2048), step > 0 || add);
  }
  // Adds scores^T rows for one block of queries.
  static ATTN_DEVICE void issue(Sums& sums, unsigned scores, unsigned rows, bool add) {
#pragma unroll
    for (int step = 0; step < kQueries / 16; ++step) {
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        multiply_step(sums.first[part], scores, rows, part, 0, step, add);
        if constexpr (kRest > 0) {
          multiply_step(sums.rest[part], scores, rows, part, kMost, step, add);
        }
      }
    }
    wgmma_commit();
  }
  // Adds the same element by element, where a product would spread NaN.
  template <int kCount>
  ATTN_DEVICE void add_visible_part(float (&sums)[kCount], int scores, int rows, int part,
                                    int column, bool add) const {
    const unsigned at = tiles.shared + static_cast<unsigned>(scores);
    if (!add) {
#pragma unroll
      for (float& x : sums) x = 0;
    }
    const int key = static_cast<int>(threadIdx.x % 128 / 32) * 16 +
                    static_cast<int>(threadIdx.x % 32 / 4) + 64 * part;
    add_seen<Element, kQueries>(
        sums,
        [&](int i, int query) {
          return panel_element<Element>(at, Layout::kRowPanel, query, key + 8 * i);
        },
        tiles.shared + static_cast<unsigned>(rows), Layout::kRowPanel, column);
  }
  ATTN_DEVICE void add_visible(Sums& sums, int scores, int rows, bool add) const {
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      add_visible_part(sums.first[part], scores, rows, part, 0, add);
      if constexpr (kRest > 0) {
        add_visible_part(sums.rest[part], scores, rows, part, kMost, add);
      }
    }
  }

  // Stores the sums; s: a step of the tile.
  ATTN_DEVICE void store(Sums& sums, const BackwardStep& s) const {
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
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      store_part(sums.first[part], s, q, part, first, strides.row, factor);
      if constexpr (kRest > 0) {
        store_part(sums.rest[part], s, q, part, first + kBytesOf<Stored> * kMost, strides.row,
                   factor);
      }
    }
  }
  // at: the first row of the sequence.
  template <int kCount>
  ATTN_DEVICE void store_part(float (&sums)[kCount], const BackwardStep& s, const Sequence& q,
                              int part, char* at, long long stride, float factor) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int key = s.key0 + part * 64 + static_cast<int>(threadIdx.x % 128 / 32) * 16 +
                      static_cast<int>(threadIdx.x % 32 / 4) + 8 * i;
      if (C::kUsedK && key >= q.length_k) {  // what is not in use has gradient 0
#pragma unroll
        for (int j = 0; j < kCount / 4; ++j) sums[4 * j + 2 * i] = sums[4 * j + 2 * i + 1] = 0;
      }
      store_row<Stored, 2 * kCount>(sums, i, factor, at + kBytesOf<Stored> * key * stride,
                                    key < q.rows_k);
    }
  }

  ATTN_DEVICE void add_step_visible(Sums& sums, unsigned n, bool add) const {
    add_visible(sums, side.scores_at(n), side.rows_at(n), add);
  }
  ATTN_DEVICE void issue_step(Sums& sums, unsigned n, bool add) const {
    fence_proxy_async();
    const unsigned a = uniform(tiles.descriptor(side.scores_at(n), 0));
    const unsigned b = uniform(tiles.descriptor(side.rows_at(n), Layout::kRowPanel));
    pin_all(sums);
    wgmma_fence();
    issue(sums, a, b, add);
  }

  // Each of the two warpgroups draws half of what dropout keeps.
  static constexpr bool kDraws = BackwardSm90KeptBits<C>::kAhead;
  ATTN_DEVICE void draw_ahead(const Dropout<C::kRngState>& random, unsigned n) const {
    if constexpr (kDraws) {
      BackwardSm90KeptBits<C>{tiles}.template draw_ahead<kOfV ? 0 : 1>(random, n);
    }
  }

  ATTN_DEVICE void run() const {
    unsigned n = 0;  // steps so far
    Dropout<C::kRngState> random{};
    if constexpr (kDraws) random = dropout_of_warp<C::kRngState>(tiles.p);
    draw_ahead(random, 0);
    while (!Tiles::is(side.wait_for_rows(n), BackwardStep::kEnd)) {
      Sums sums;
      bool add = false;
      while (true) {
        const int flags = side.wait_for_rows(n);
        draw_ahead(random, n + 1);
        const bool special = side.is_special(n, flags);
        side.wait_for_scores(n);
        if (__any_sync(~0u, special)) {
          add_step_visible(sums, n, add);
        } else {
          issue_step(sums, n, add);
          wgmma_wait<0>();
          pin_all(sums);
        }
        side.release(n);
        if (Tiles::is(flags, BackwardStep::kLast)) break;
        ++n;
        add = true;
      }
      store(sums, tiles.step(n));
      ++n;
    }
  }
};

}  // namespace attn::device
