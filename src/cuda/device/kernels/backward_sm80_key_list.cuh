// dQ, dK and dV over lists of keys (Problem::key_list) on any architecture from sm_80 on, with
// asynchronous copies and products of single warps. FlashAttention-2, algorithm 2, with the rows of
// Q outside and the keys of their list inside.
//
// A block of threads has up to 16 query heads of a K, V head's group, all of one query, so that a
// row of K and V that its list names is read once for all of them. It meets kBlockM entries of the
// list at a time, 16 a warp:
//
//   S = Q K^T, dP = dO V^T        a warp has its 16 keys
//   dQ += dS K                    a warp has blocks of 16 columns, in turn with the others
//   dK += dS^T Q, dV += P^T dO    a warp has its 16 keys, and adds them to sums in memory
//
// A second launch stores the sums (schedule/list_sums.cuh). A key that a list names twice is added
// twice; an entry that names none has rows of zeros and is added nowhere.
//
// Reads of C:
//   Element                BFloat16 or Float16
//   Stored                 of dK and dV: Element or Float32
//   kHeadDim, kHeadDimV    multiples of 8, up to 576
//   kGradient              Gradient::all; dk_dv, which stores the sums
//   kBlockM, kWarps        16 keys a warp; of dk_dv, keys of a block of threads
//   kBlockN                16
//   kStages                1 or 2
//   kPackedQ, kPackedK, kUsedQ, kUsedK, kWide
//   kScoreHides            a score may be -inf
//   kFarRows               softmax/far_rows.cuh
// Slope: src/cuda/codegen/expression_gradients.hpp.
// All tensors but lists are 16-byte aligned, and so are their strides. Grid: a block of 32 kWarps
// threads for each batch entry, K, V head, query and 16 heads of the group, with
// BackwardSm80KeyListLayout<C>::kBytes of dynamic shared memory.
#pragma once

#include "device.cuh"
#include "divide_up.cuh"
#include "kernels/backward_weights.cuh"
#include "params.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/reduce.cuh"
#include "schedule/list_sums.cuh"
#include "schedule/listed_query.cuh"
#include "tile/shared_product.cuh"
#include "tile/shared_tile.cuh"
#include "tile/special_values.cuh"

namespace attn::device {

// Offsets in shared memory: Q, dO, P, dS, for each stage the keys, then for each stage K and V.
template <class C>
struct BackwardSm80KeyListLayout {
  static constexpr int kRows = 16;
  using TileQ = SharedTile<C::kHeadDim, 16 * C::kWarps>;   // of Q and K
  using TileO = SharedTile<C::kHeadDimV, 16 * C::kWarps>;  // of dO and V
  using TileP = SharedTile<C::kBlockM>;                    // of P and dS, a row for each head
  static constexpr int kDo = kRows * TileQ::kRowBytes;
  static constexpr int kP = kDo + kRows * TileO::kRowBytes;
  static constexpr int kDs = kP + kRows * TileP::kRowBytes;
  static constexpr int kKeys = kDs + kRows * TileP::kRowBytes;
  static constexpr int kStageAt = kKeys + divide_up<128>(C::kStages * 4 * C::kBlockM) * 128;
  static constexpr int kV = C::kBlockM * TileQ::kRowBytes;  // from the start of a stage
  static constexpr int kStage = kV + C::kBlockM * TileO::kRowBytes;
  static constexpr int kBytes =
      C::kGradient == Gradient::dk_dv ? 0 : kStageAt + C::kStages * kStage;
};

template <class C, class Expressions, class Slope>
struct BackwardSm80KeyList {
  using Layout = BackwardSm80KeyListLayout<C>;
  using TileQ = typename Layout::TileQ;
  using TileO = typename Layout::TileO;
  using TileP = typename Layout::TileP;
  using Element = typename C::Element;
  using Weights = BackwardWeights<C, Expressions, Slope>;
  static constexpr int kThreads = 32 * C::kWarps, kRows = Layout::kRows;
  static_assert(C::kBlockM == 16 * C::kWarps && C::kBlockN == kRows);
  // Columns of dQ are dealt to warps in blocks of 16.
  static constexpr int kTurn = 16 * C::kWarps;
  static constexpr int kDqBlocks = divide_up<kTurn>(C::kHeadDim);
  // Blocks of columns of dK or dV of which a warp has sums at a time.
  static constexpr int kAtOnce = C::kWarps < 4 ? C::kWarps : 4;
  // Some rows may not see a key that others see: what is multiplied by 0 must not reach a sum.
  static constexpr bool kHides = Expressions::kHasMask || C::kScoreHides;
  using Sums = float[1][1][8];  // of the warp's keys
  using SumsQ = float[1][kDqBlocks][8];

  const BackwardParams& p;
  const Expressions& e;
  const Slope& slope;
  const ListedQuery<C> tile;
  char* const memory;
  const unsigned shared;  // the address of memory, 128-byte aligned

  // The thread's rows, lane / 4 and 8 more.
  struct Rows {
    RowReference reference[2];
    float d[2];
  };

  static ATTN_DEVICE int warp() { return static_cast<int>(threadIdx.x / 32); }
  static ATTN_DEVICE int lane() { return static_cast<int>(threadIdx.x % 32); }
  static constexpr ATTN_DEVICE int stage_at(int stage) {
    return Layout::kStageAt + stage * Layout::kStage;
  }
  ATTN_DEVICE int* keys(int stage) const {
    return reinterpret_cast<int*>(memory + Layout::kKeys) + stage * C::kBlockM;
  }
  ATTN_DEVICE bool has_row(int row) const { return row < tile.heads; }
  ATTN_DEVICE Weights weights(int row) const {
    return {p, e, slope, tile.sequence, tile.head_q + row};
  }

  // ---- copies. Rows that do not exist are zeros: a weight of 0 would not undo a NaN.

  template <class Tile>
  ATTN_DEVICE void load_rows(int at, const void* data, const Strides& strides) const {
    load_tile<Tile, kRows, kThreads>(
        shared + static_cast<unsigned>(at),
        static_cast<const char*>(data) + 2 * tile.query_row(strides, tile.head_q), 2 * strides.head,
        tile.heads);
  }
  template <class Tile>
  ATTN_DEVICE void load_listed(int at, int block, const void* data, const Strides& strides) const {
    load_gathered_tile<Tile, C::kBlockM, kThreads>(
        shared + static_cast<unsigned>(at), [&](int row) {
          const int key = tile.key_at(p, block * C::kBlockM + row);
          const bool exists = key >= 0;
          return SourceRow{
              static_cast<const char*>(data) + 2 * tile.key_row(strides, exists ? key : 0), exists};
        });
  }
  // Asks for a block of the list.
  ATTN_DEVICE void load_keys(int stage, int block) const {
    if (threadIdx.x < C::kBlockM) {
      keys(stage)[threadIdx.x] = tile.key_at(p, block * C::kBlockM + static_cast<int>(threadIdx.x));
    }
    load_listed<TileQ>(stage_at(stage), block, p.k, p.k_strides);
    load_listed<TileO>(stage_at(stage) + Layout::kV, block, p.v, p.v_strides);
  }

  // ---- weights

  ATTN_DEVICE Rows rows() const {
    Rows all;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = lane() / 4 + 8 * i;
      all.reference[i] = {0, -minus_infinity()};
      all.d[i] = 0;
      if (!has_row(row)) continue;
      const RowTerms terms = tile.terms(p, tile.head_q + row);
      all.reference[i] = weights(row).reference(lse_in_base_2<C>(terms.lse), tile.query);
      all.d[i] = terms.d;
    }
    return all;
  }

  // S <- P and dP <- dS of the warp's keys; 0 where a row does not see a key.
  ATTN_DEVICE void weigh(const Rows& of, Sums& s, Sums& dp, int stage) const {
#pragma unroll
    for (int r = 0; r < 8; ++r) {
      const int i = r / 2 % 2, row = lane() / 4 + 8 * i;
      const int key = keys(stage)[16 * warp() + r / 4 * 8 + 2 * (lane() % 4) + r % 2];
      float& probable = s[0][0][r];
      float& ds = dp[0][0][r];
      bool visible = key >= 0 && has_row(row);
      const Weights w = weights(has_row(row) ? row : 0);
      if constexpr (Expressions::kHasMask) {
        visible = visible && e.mask(tile.query, key, tile.sequence.batch, w.head_q,
                                    tile.sequence.length_q, tile.sequence.length_k);
      }
      float x = 0;
      if (visible) {
        x = w.probability(probable, of.reference[i], tile.query, key);
        w.template weigh<false, true>(x, probable, ds, of.d[i], tile.query, key, false, true);
      }
      probable = x;
      if (x == 0) ds = 0;
    }
  }

  // ---- products

  template <bool kSeen, int kSteps, int kColumns, class A, class B>
  static ATTN_DEVICE void add(float (&sums)[1][kColumns][8], const A& a, const B& b) {
    if constexpr (kSeen) {
      add_seen_product<Element, kSteps>(sums, a, b);
    } else {
      add_product<Element, kSteps>(sums, a, b);
    }
  }

  // P and dS of a block to shared memory.
  ATTN_DEVICE void put_weights(const Rows& of, int stage) const {
    Sums s, dp;
    clear(s);
    clear(dp);
    add_product<Element, divide_up<16>(C::kHeadDim)>(
        s, SharedOperand<Element, TileQ, Side::a, false>(shared, 0, 0),
        SharedOperand<Element, TileQ, Side::b, false>(shared, stage_at(stage), 16 * warp()));
    add_product<Element, divide_up<16>(C::kHeadDimV)>(
        dp, SharedOperand<Element, TileO, Side::a, false>(shared, Layout::kDo, 0),
        SharedOperand<Element, TileO, Side::b, false>(shared, stage_at(stage) + Layout::kV,
                                                      16 * warp()));
    weigh(of, s, dp, stage);
    put_sums<Element, TileP, 16>(s, 1.f, Layout::kP, 0, 16 * warp());
    put_sums<Element, TileP, 16>(dp, 1.f, Layout::kDs, 0, 16 * warp());
  }

  template <bool kSeen>
  ATTN_DEVICE void add_dq(SumsQ& dq, int stage) const {
    add<kSeen, C::kBlockM / 16>(
        dq, SharedOperand<Element, TileP, Side::a, false>(shared, Layout::kDs, 0),
        SharedOperand<Element, TileQ, Side::b, true, kTurn>(shared, stage_at(stage), 16 * warp()));
  }

  // Adds weights^T rows of the warp's keys to sums in memory. weights: P or dS; rows: Q or dO.
  template <bool kSeen, class Tile, int kColumns>
  ATTN_DEVICE void add_to_keys(float* to, int at_weights, int at_rows, int stage) const {
    using Memory = ListSums<kColumns>;
    if (to == nullptr) return;
    const SharedOperand<Element, TileP, Side::a, true> a(shared, at_weights, 16 * warp());
    const SharedOperand<Element, Tile, Side::b, true> b(shared, at_rows, 0);
    float* row[2];
    bool exists[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int key = keys(stage)[16 * warp() + lane() / 4 + 8 * i];
      exists[i] = key >= 0;
      row[i] = Memory::row(to, p, tile.sequence.batch, tile.head_k, exists[i] ? key : 0) +
               4 * (lane() % 4);
    }
#pragma unroll 1
    for (int first = 0; first < Memory::kWidth / 16; first += kAtOnce) {
      float sums[1][kAtOnce][8];
      clear(sums);
      add<kSeen, 1>(sums, a, b.from_block(first));
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
        if (first + j >= Memory::kWidth / 16) break;
        const float* const x = sums[0][j];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          if (exists[i]) {
            add_to_memory(row[i] + 16 * (first + j), x[2 * i], x[2 * i + 1], x[2 * i + 4],
                          x[2 * i + 5]);
          }
        }
      }
    }
  }
  template <bool kSeen>
  ATTN_DEVICE void add_gradients(SumsQ& dq, int stage) const {
    if (p.dq != nullptr) add_dq<kSeen>(dq, stage);
    add_to_keys<kSeen, TileQ, C::kHeadDim>(p.dk == nullptr ? nullptr : p.dk_sum, Layout::kDs, 0,
                                           stage);
    add_to_keys<kSeen, TileO, C::kHeadDimV>(p.dv == nullptr ? nullptr : p.dv_sum, Layout::kP,
                                            Layout::kDo, stage);
  }

  // Whether Q, dO or the block's K holds an infinity or NaN; the same answer in all threads.
  ATTN_DEVICE bool any_special(int stage) const {
    const bool special = holds_special<Element, kThreads>(0, Layout::kP) |
                         holds_special<Element, kThreads>(stage_at(stage), Layout::kV);
    return __syncthreads_or(special) != 0;
  }

  // ---- the tile

  ATTN_DEVICE void accumulate(SumsQ& dq) const {
    const int blocks = divide_up<C::kBlockM>(p.list_length);
    load_rows<TileQ>(0, p.q, p.q_strides);
    load_rows<TileO>(Layout::kDo, p.d_o, p.d_o_strides);
    load_keys(0, 0);
    copy_async_commit();
    const Rows of = rows();
    int stage = 0;
#pragma unroll 1
    for (int block = 0; block < blocks; ++block) {
      copy_async_wait<0>();
      __syncthreads();  // the keys are here; nobody reads the block before any more
      if constexpr (C::kStages == 2) {
        if (block + 1 < blocks) load_keys(stage ^ 1, block + 1);
        copy_async_commit();
      }
      put_weights(of, stage);
      __syncthreads();  // P and dS are here
      if (kHides && any_special(stage)) {
        add_gradients<true>(dq, stage);
      } else {
        add_gradients<false>(dq, stage);
      }
      if constexpr (C::kStages == 1) {
        __syncthreads();  // nobody reads the keys any more
        if (block + 1 < blocks) load_keys(0, block + 1);
        copy_async_commit();
      }
      stage ^= C::kStages - 1;
    }
  }

  ATTN_DEVICE void store(const SumsQ& dq) const {
    if (p.dq == nullptr) return;
#pragma unroll
    for (int j = 0; j < kDqBlocks; ++j) {
#pragma unroll
      for (int r = 0; r < 8; r += 2) {
        const int row = lane() / 4 + r / 2 % 2 * 8;
        const int column = kTurn * j + 16 * warp() + r / 4 * 8 + 2 * (lane() % 4);
        if (!has_row(row) || column >= C::kHeadDim) continue;
        const float* const x = &dq[0][j][r];
        *reinterpret_cast<unsigned*>(
            element<Element>(p.dq, tile.query_row(p.dq_strides, tile.head_q + row) + column)) =
            Element::pack(x[0] * p.scale, x[1] * p.scale);
      }
    }
  }

  ATTN_DEVICE void run() const {
    SumsQ dq;
    clear(dq);
    if (tile.is_used()) accumulate(dq);
    store(dq);
  }
};

template <class C, class Expressions, class Slope>
ATTN_DEVICE void backward_sm80_key_list(const BackwardParams& p, const Expressions& e,
                                        const Slope& slope) {
  static_assert(BackwardSm80KeyListLayout<C>::kBytes == C::kSharedBytes);  // that the launch gives
  if constexpr (C::kGradient == Gradient::dk_dv) {
    store_list_gradients<C>(p);
  } else {
    extern __shared__ __align__(128) char memory[];
    const auto shared = static_cast<unsigned>(__cvta_generic_to_shared(memory));
    const auto tile = ListedQuery<C>::at(p, static_cast<int>(blockIdx.x));
    if (!tile.exists()) return;
    BackwardSm80KeyList<C, Expressions, Slope>{p, e, slope, tile, memory, shared}.run();
  }
}

}  // namespace attn::device
