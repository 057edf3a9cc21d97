// The gradients of Q, K and V on any architecture from sm_80 on, with asynchronous copies and
// products of single warps (FlashAttention-2, algorithm 2). A block of threads has a tile of
// kBlockM keys of a K, V head, and takes blocks of kBlockN queries of all heads of its group:
//
//   S = Q K^T, dP = dO V^T     P and dS go to shared memory
//   dV += P^T dO, dK += dS^T Q stay in registers
//   dQ += dS K                 is added to float32 sums in memory, in no fixed order
//
// Each product is dealt to all warps in a grid of its own: kScoreWarps along the queries of S and
// dP, kKeyWarps along the keys of dV and dK, kQueryWarps along the queries of dQ, and the others
// along columns. With two stages Q and dO of the next block arrive during all of this one.
//
// What is read of C: backward_sm80/layout.cuh. Slope: src/cuda/codegen/expression_gradients.hpp.
// All tensors are 16-byte aligned, and so are their strides. Grid: a block of 32 kWarps threads for
// each tile (schedule/key_tiles.cuh), with BackwardSm80Layout<C>::kBytes of dynamic shared memory;
// between backward_one_pass_rows and backward_one_pass_dq, whose dependent it is.
#pragma once

#include "device.cuh"
#include "divide_up.cuh"
#include "kernels/backward_sm80/layout.cuh"
#include "kernels/backward_sm90/dq_order.cuh"
#include "kernels/backward_weights.cuh"
#include "params.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/dependent.cuh"
#include "ptx/reduce.cuh"
#include "schedule/block_list.cuh"
#include "schedule/gradient_tile.cuh"
#include "schedule/key_tiles.cuh"
#include "tile/shared_product.cuh"
#include "tile/special_values.cuh"

namespace attn::device {

template <class C, class Expressions, class Slope>
struct BackwardSm80 {
  using Element = typename C::Element;
  using Stored = typename C::Stored;
  using Layout = BackwardSm80Layout<C>;
  using TileQ = typename Layout::TileQ;
  using TileO = typename Layout::TileO;
  using TileP = typename Layout::TileP;
  using Weights = BackwardWeights<C, Expressions, Slope>;
  static constexpr int kThreads = 32 * C::kWarps;
  static constexpr int kPlace = 64;  // queries of a place (BackwardParams)
  using Order = DqOrder<kPlace, C::kHeadDim, C::kPieceColumns>;
  static_assert(Order::kPieces == Order::kParts);

  // Rows and columns of a warp's sums.
  static constexpr int kScoreRows = C::kBlockN / C::kScoreWarps;
  static constexpr int kMostSharers = C::kWarps / (C::kSplitScores ? 2 : 1) / C::kScoreWarps;
  static constexpr int kSharers = kMostSharers < C::kBlockM / 16 ? kMostSharers : C::kBlockM / 16;
  static constexpr int kScoreColumns = C::kBlockM / kSharers;
  static constexpr int kSumWarps = C::kScoreWarps * kSharers;  // that compute S
  static constexpr int kKeyRows = C::kBlockM / C::kKeyWarps;
  static constexpr int kQueryRows = C::kBlockN / C::kQueryWarps;
  static constexpr int kKeyTurns = Layout::kKeyTurns, kQueryTurns = Layout::kQueryTurns;
  static constexpr __device__ int turns(int chunks, int warps) {
    return divide_up(chunks / 2, warps);
  }
  static constexpr int kDkBlocks = turns(TileQ::kChunks, kKeyTurns);
  static constexpr int kDvBlocks = turns(TileO::kChunks, kKeyTurns);
  static constexpr int kDqBlocks = divide_up<16 * kQueryTurns>(C::kHeadDim);
  // Blocks of 16 that the products of S and dP sum over.
  static constexpr int kSteps = divide_up<16>(C::kHeadDim);
  static constexpr int kStepsV = divide_up<16>(C::kHeadDimV);
  static_assert(kScoreRows % 16 == 0 && kKeyRows % 16 == 0 && kQueryRows % 16 == 0);
  static_assert(kScoreColumns % 16 == 0);
  static_assert(C::kBlockN % kPlace == 0 || kPlace % C::kBlockN == 0);
  static_assert(C::kSplitScores || kSumWarps == C::kWarps);
  // Blocks of dQ's columns of which a warp has sums at a time: with so many registers.
  static constexpr int kDqRegisters = C::kHeadDim <= 256 ? 64 : 32;
  static constexpr int kDqFits = 2 * kDqRegisters / kQueryRows;
  static constexpr int kDqAtOnce = kDqBlocks < kDqFits ? kDqBlocks : kDqFits;
  // With one stage Q and dO of wide heads arrive during dQ.
  static constexpr bool kLoadsEarly = C::kStages == 1 && C::kHeadDim > 256;

  static constexpr int kThreadScores = kScoreRows * kScoreColumns / 32;
  using Scores = float[kScoreRows / 16][kScoreColumns / 16][8];
  using SumsK = float[kKeyRows / 16][kDkBlocks][8];
  using SumsV = float[kKeyRows / 16][kDvBlocks][8];

  const BackwardParams& p;
  const Expressions& e;
  const Slope& slope;
  const GradientTile<C> tile;
  const unsigned shared;  // 128-byte aligned

  static ATTN_DEVICE int warp() { return static_cast<int>(threadIdx.x / 32); }
  static ATTN_DEVICE int lane() { return static_cast<int>(threadIdx.x % 32); }
  static constexpr ATTN_DEVICE int stage_at(int stage) {
    return Layout::kStageAt + stage * Layout::kStage;
  }
  // The first row of the workspace that belongs to a block of queries.
  ATTN_DEVICE long long row_of(int block, int head_q) const {
    const long long pair = static_cast<long long>(tile.sequence.batch) * p.heads_q + head_q;
    return pair * p.query_blocks * kPlace + block * C::kBlockN;
  }

  // ---- copies. Rows past a length are zeros: a weight of 0 would not undo a NaN.

  template <class Tile, int kRows>
  ATTN_DEVICE void load(int at, const TensorRows& rows, int first) const {
    load_tile<Tile, kRows, kThreads>(
        shared + static_cast<unsigned>(at),
        static_cast<const char*>(rows.data) + 2 * (rows.start + first * rows.stride),
        2 * rows.stride, rows.count - first);
  }
  ATTN_DEVICE void load_keys() const {
    load<TileQ, C::kBlockM>(0, tile.of_keys(p.k, p.k_strides, tile.head), tile.first);
    load<TileO, C::kBlockM>(Layout::kV, tile.of_keys(p.v, p.v_strides, tile.head), tile.first);
  }
  ATTN_DEVICE void load_queries(int stage, int block, int head_q) const {
    const int at = stage_at(stage), first = block * C::kBlockN;
    load<TileQ, C::kBlockN>(at, tile.of_queries(p.q, p.q_strides, head_q), first);
    load<TileO, C::kBlockN>(at + Layout::kOutput, tile.of_queries(p.d_o, p.d_o_strides, head_q),
                            first);
    constexpr int kWords = C::kBlockN / 4;  // of 16 bytes, a thread each
    const int word = static_cast<int>(threadIdx.x) % kWords;
    const long long row = row_of(block, head_q) + 4 * word;
    const unsigned to = shared + static_cast<unsigned>(at + 16 * word);
    if (threadIdx.x < kWords) {
      copy_async(to + Layout::kLse, p.lse2 + row, true);
    } else if (threadIdx.x < 2 * kWords) {
      copy_async(to + Layout::kD, p.d + row, true);
    }
  }

  // ---- a block of queries

  // The warp's first row and column of S or dP.
  static ATTN_DEVICE int score_warp() { return C::kSplitScores ? warp() % kSumWarps : warp(); }
  static ATTN_DEVICE int first_row() { return score_warp() % C::kScoreWarps * kScoreRows; }
  static ATTN_DEVICE int first_column() { return score_warp() / C::kScoreWarps * kScoreColumns; }
  // Which of S and dP the warp computes, with kSplitScores.
  static ATTN_DEVICE bool has_s() { return warp() < kSumWarps; }
  static ATTN_DEVICE bool has_dp() { return warp() / kSumWarps == 1; }
  // The thread's first row of S, and its first key.
  static ATTN_DEVICE int score_row() { return first_row() + lane() / 4; }
  ATTN_DEVICE int score_key() const { return tile.first + first_column() + 2 * (lane() % 4); }
  // LSE or D of a row; from: kLse or kD, where it lies in a stage.
  static ATTN_DEVICE float row_term(int stage, int from, int row) {
    extern __shared__ __align__(128) char memory[];
    return reinterpret_cast<const float*>(memory + stage_at(stage) + from)[row];
  }
  // What P of the thread's rows is computed with, where some may be far.
  struct References {
    RowReference rows[C::kFarRows ? kScoreRows / 16 : 1][2];
  };
  ATTN_DEVICE References references(const Weights& weights, int stage, int first_query) const {
    References all{};
    if constexpr (C::kFarRows) {
#pragma unroll
      for (int i = 0; i < kScoreRows / 8; ++i) {
        const int row = score_row() + 8 * i;
        all.rows[i / 2][i % 2] =
            weights.reference(row_term(stage, Layout::kLse, row), first_query + row);
      }
    }
    return all;
  }
  // Of sums[i][j][r], whose row of the block is `row`.
  static ATTN_DEVICE RowReference reference(const References& all, int stage, int i, int r,
                                            int row) {
    if constexpr (C::kFarRows) return all.rows[i][r / 2 % 2];
    return {0, row_term(stage, Layout::kLse, row)};
  }
  // f(i, j, r, row of the block, key) for the part `part` of `parts` of what sums[i][j][r] a thread
  // has.
  template <class F>
  ATTN_DEVICE void for_each_score(int part, int parts, F f) const {
    constexpr int kColumns = kScoreColumns / 16, kAll = kThreadScores;
#pragma unroll
    for (int at = 0; at < kAll; ++at) {
      if (at * parts / kAll != part) continue;
      const int i = at / 8 / kColumns, j = at / 8 % kColumns, r = at % 8;
      f(i, j, r, score_row() + 16 * i + r / 2 % 2 * 8, score_key() + 16 * j + r / 4 * 8 + r % 2);
    }
  }

  // S <- P of what dropout keeps and dP <- dS. Whether some P is 0. kExponentiated: S is P already.
  template <bool kMixed, bool kExponentiated>
  ATTN_DEVICE bool weigh(const Weights& weights, const References& rows, Scores& s, Scores& dp,
                         int stage, int first_query) const {
    unsigned long long kept[kScoreRows / 16];
#pragma unroll
    for (int i = 0; i < kScoreRows / 16; ++i) {
      if constexpr (C::kDropout) {
        kept[i] = weights.template draw<kScoreColumns>(first_query + score_row() + 16 * i,
                                                       score_key() - 2 * (lane() % 4));
      } else {
        kept[i] = ~0ull;
      }
    }
    bool any_zero = false;
    for_each_score(0, 1, [&](int i, int j, int r, int row, int key) {
      float& x = s[i][j][r];
      const int query = first_query + row;
      const float probable =
          kExponentiated ? x
                         : weights.probability(x, reference(rows, stage, i, r, row), query, key);
      any_zero |= probable == 0;
      weights.template weigh<true, true>(probable, x, dp[i][j][r], row_term(stage, Layout::kD, row),
                                         query, key, kMixed, (kept[i] >> (8 * j + r) & 1) != 0);
    });
    return any_zero;
  }

  ATTN_DEVICE void put_weights_at(const Scores& x, int at, int row, int column) const {
    if constexpr (C::kStoreMatrices) {
      put_matrices<Element, TileP>(x, shared, at, row, column);
    } else {
      put_sums<Element, TileP, 16>(x, 1.f, at, row, column);
    }
  }

  // P and dS to shared memory. Whether some P is 0; the same answer in all threads, which have all
  // put theirs there.
  ATTN_DEVICE bool put_weights(int stage, int block, int head_q, bool mixed) const {
    if constexpr (C::kSplitScores) return put_split_weights(stage, block, head_q, mixed);
    const Weights weights{p, e, slope, tile.sequence, head_q};
    // Not first_row() and first_column(): ptxas then made code that was up to 5 % slower.
    const int row = warp() % C::kScoreWarps * kScoreRows, first_query = block * C::kBlockN;
    const int column = warp() / C::kScoreWarps * kScoreColumns;
    const References rows = references(weights, stage, first_query);
    Scores s, dp;
    clear(s);
    clear(dp);
    add_product<Element, kSteps>(
        s, SharedOperand<Element, TileQ, Side::a, false>(shared, stage_at(stage), row),
        SharedOperand<Element, TileQ, Side::b, false>(shared, 0, column));
    // Exponentials run beside the products of dP; a score's slope needs S afterwards.
    constexpr bool kEarly = !Slope::kHasSlope;
    const auto exponentiate = [&](int step) {
      if constexpr (kEarly) {
        for_each_score(step, kStepsV, [&](int i, int j, int r, int of_row, int key) {
          s[i][j][r] = weights.probability(s[i][j][r], reference(rows, stage, i, r, of_row),
                                           first_query + of_row, key);
        });
      }
    };
    add_product<Element, kStepsV>(
        dp,
        SharedOperand<Element, TileO, Side::a, false>(shared, stage_at(stage) + Layout::kOutput,
                                                      row),
        SharedOperand<Element, TileO, Side::b, false>(shared, Layout::kV, column), exponentiate);
    const bool zero = mixed ? weigh<true, kEarly>(weights, rows, s, dp, stage, first_query)
                            : weigh<false, kEarly>(weights, rows, s, dp, stage, first_query);
    put_weights_at(s, Layout::kP, row, column);
    put_weights_at(dp, Layout::kDs, row, column);
    if constexpr (C::kScoreHides) return __syncthreads_or(zero) != 0;
    __syncthreads();
    return false;
  }

  // The same with kSplitScores.
  ATTN_DEVICE bool put_split_weights(int stage, int block, int head_q, bool mixed) const {
    const Weights weights{p, e, slope, tile.sequence, head_q};
    const int row = first_row(), first_query = block * C::kBlockN, column = first_column();
    const References rows = references(weights, stage, first_query);
    // Where P and dS will be, which take as many bytes.
    const int handed = Layout::kP + score_warp() * kThreadScores * 32 * 4;
    constexpr bool kEarly = !Slope::kHasSlope;
    Scores s{}, dp{};
    if (has_s()) {
      add_product<Element, kSteps>(
          s, SharedOperand<Element, TileQ, Side::a, false>(shared, stage_at(stage), row),
          SharedOperand<Element, TileQ, Side::b, false>(shared, 0, column));
      if constexpr (kEarly) {
        for_each_score(0, 1, [&](int i, int j, int r, int of_row, int key) {
          s[i][j][r] = weights.probability(s[i][j][r], reference(rows, stage, i, r, of_row),
                                           first_query + of_row, key);
        });
      }
    } else if (has_dp()) {
      add_product<Element, kStepsV>(
          dp,
          SharedOperand<Element, TileO, Side::a, false>(shared, stage_at(stage) + Layout::kOutput,
                                                        row),
          SharedOperand<Element, TileO, Side::b, false>(shared, Layout::kV, column));
      put_registers(dp, handed);
    }
    __syncthreads();  // dP is here
    if (has_s()) take_registers(dp, handed);
    __syncthreads();  // its place is free for P and dS
    bool zero = false;
    if (has_s()) {
      zero = mixed ? weigh<true, kEarly>(weights, rows, s, dp, stage, first_query)
                   : weigh<false, kEarly>(weights, rows, s, dp, stage, first_query);
      put_weights_at(s, Layout::kP, row, column);
      put_weights_at(dp, Layout::kDs, row, column);
    }
    if constexpr (C::kScoreHides) return __syncthreads_or(zero) != 0;
    __syncthreads();
    return false;
  }

  // kSeen: where a weight is 0, whatever it is multiplied with takes no part.
  template <bool kSeen, int kProductSteps, int kRows, int kColumns, class A, class B>
  static ATTN_DEVICE void add(float (&sums)[kRows][kColumns][8], const A& a, const B& b) {
    if constexpr (kSeen) {
      add_seen_product<Element, kProductSteps>(sums, a, b);
    } else {
      add_product<Element, kProductSteps>(sums, a, b);
    }
  }

  template <bool kSeen>
  ATTN_DEVICE void add_gradients(SumsK& dk, SumsV& dv, int stage) const {
    const int keys = warp() % C::kKeyWarps * kKeyRows, column = warp() / C::kKeyWarps * 16;
    add<kSeen, C::kBlockN / 16>(
        dv, SharedOperand<Element, TileP, Side::a, true>(shared, Layout::kP, keys),
        SharedOperand<Element, TileO, Side::b, true, 16 * kKeyTurns>(
            shared, stage_at(stage) + Layout::kOutput, column));
    add<kSeen, C::kBlockN / 16>(
        dk, SharedOperand<Element, TileP, Side::a, true>(shared, Layout::kDs, keys),
        SharedOperand<Element, TileQ, Side::b, true, 16 * kKeyTurns>(shared, stage_at(stage),
                                                                     column));
  }

  template <bool kSeen>
  ATTN_DEVICE void add_dq(int block, int head_q) const {
    if constexpr (kDqAtOnce == kDqBlocks) {
      add_dq_blocks<kSeen, kDqBlocks>(block, head_q, 0);
    } else {
      constexpr int kRest = kDqBlocks % kDqAtOnce, kWholeRounds = kDqBlocks - kRest;
#pragma unroll 1
      for (int first = 0; first < kWholeRounds; first += kDqAtOnce) {
        add_dq_blocks<kSeen, kDqAtOnce>(block, head_q, first);
      }
      if constexpr (kRest > 0) add_dq_blocks<kSeen, kRest>(block, head_q, kWholeRounds);
    }
  }
  // first: of the kCount blocks of columns.
  template <bool kSeen, int kCount>
  ATTN_DEVICE void add_dq_blocks(int block, int head_q, int first) const {
    const int row = warp() % C::kQueryWarps * kQueryRows, column_warp = warp() / C::kQueryWarps;
    float dq[kQueryRows / 16][kCount][8];
    clear(dq);
    const SharedOperand<Element, TileQ, Side::b, true, 16 * kQueryTurns> keys(shared, 0,
                                                                              16 * column_warp);
    add<kSeen, C::kBlockM / 16>(
        dq, SharedOperand<Element, TileP, Side::a, false>(shared, Layout::kDs, row),
        keys.from_block(first));
    // Rows before the block in its place, of which it is a part where it is smaller.
    const int before = C::kBlockN < kPlace ? block * C::kBlockN % kPlace : 0;
    float* const sums = p.dq_sum + (row_of(block, head_q) - before) * C::kHeadDim + 4 * lane();
#pragma unroll
    for (int i = 0; i < kQueryRows / 16; ++i) {
      const int block16 = (before + row) / 16 + i;  // of rows
#pragma unroll
      for (int at = 0; at < kCount; ++at) {
        const int j = first + at;
        // Blocks of 16 columns, of a part of DqOrder.
        constexpr int kPartBlocks = Order::kMostColumns / 16;
        const int part = j * kQueryTurns / kPartBlocks;
        const int columns = Order::columns(part < Order::kParts ? part : 0);
        const int of_part = j * kQueryTurns % kPartBlocks + column_warp;
        float* const to = sums + block16 / 4 * (kPlace * C::kHeadDim) + Order::kPiece * part +
                          block16 % 4 * (columns / 8 * Order::kWord) + of_part * 2 * Order::kWord;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const float* const x = dq[i][at] + 4 * half;
          constexpr bool kWhole = C::kHeadDim % (16 * kQueryTurns) == 0;
          if (kWhole || 2 * (j * kQueryTurns + column_warp) + half < C::kHeadDim / 8) {
            add_to_memory(to + half * Order::kWord, x[0], x[1], x[2], x[3]);
          }
        }
      }
    }
  }

  // Whether Q, dO or K holds an infinity or NaN; the same answer in all threads.
  ATTN_DEVICE bool any_special(int stage) const {
    const bool special = holds_special<Element, kThreads>(0, C::kBlockM * TileQ::kRowBytes) |
                         holds_special<Element, kThreads>(stage_at(stage), Layout::kLse);
    return __syncthreads_or(special) != 0;
  }

  // ---- the tile

  // Goes through the blocks of a list that is not empty: `blocks` of each head, head after head.
  template <class List>
  ATTN_DEVICE void accumulate(SumsK& dk, SumsV& dv, List& list, int blocks) const {
    const auto head_of = [&](int i) { return tile.head_q(p) + i / blocks; };
    load_keys();
    load_queries(0, list.block() % blocks, head_of(list.block()));
    copy_async_commit();
    int stage = 0;
    while (true) {
      const int block = list.block() % blocks, head = head_of(list.block());
      const bool mixed = list.mixed();
      list.advance();
      const bool ends = !list.more();
      const auto load_next = [&](int to) {
        if (!ends) load_queries(to, list.block() % blocks, head_of(list.block()));
        copy_async_commit();
      };
      copy_async_wait<0>();
      __syncthreads();  // the queries are here; nobody reads the block before any more
      if constexpr (C::kStages == 2) load_next(stage ^ 1);
      const bool careful = put_weights(stage, block, head, mixed) || mixed;
      const auto free_queries = [&] {
        if (ends) return;
        __syncthreads();  // nobody reads the queries any more
        load_next(0);
      };
      if (careful && any_special(stage)) {
        add_gradients<true>(dk, dv, stage);
        if constexpr (kLoadsEarly) free_queries();
        add_dq<true>(block, head);
      } else {
        add_gradients<false>(dk, dv, stage);
        if constexpr (kLoadsEarly) free_queries();
        add_dq<false>(block, head);
      }
      if (ends) break;
      if constexpr (C::kStages == 1 && !kLoadsEarly) {
        __syncthreads();  // nobody reads the queries any more
        load_next(0);
      }
      stage ^= C::kStages - 1;
    }
  }

  // Stores the rows of a gradient that exist, those of 16 bits through the place at `at` of shared
  // memory; those that are not in use become 0.
  template <class Tile, int kBlocks>
  ATTN_DEVICE void store(const float (&sums)[kKeyRows / 16][kBlocks][8], float factor, int at,
                         void* to, const Strides& strides) const {
    if (to == nullptr) return;
    if constexpr (kBytesOf<Stored> == 4) {
      store_f32<Tile>(sums, factor, static_cast<float*>(to), tile.of_keys(to, strides, tile.head));
    } else {
      put_sums<Element, Tile, 16 * kKeyTurns>(sums, factor, at, warp() % C::kKeyWarps * kKeyRows,
                                              warp() / C::kKeyWarps * 16);
      __syncthreads();
      const TensorRows rows = tile.of_keys(to, strides, tile.head);
      store_tile<Tile, C::kBlockM, kThreads>(
          at, static_cast<char*>(to) + 2 * (rows.start + tile.first * rows.stride), 2 * rows.stride,
          tile.rows_present() - tile.first, rows.count - tile.first);
    }
  }
  template <class Tile, int kBlocks>
  ATTN_DEVICE void store_f32(const float (&sums)[kKeyRows / 16][kBlocks][8], float factor,
                             float* to, const TensorRows& rows) const {
    const int row = tile.first + warp() % C::kKeyWarps * kKeyRows + lane() / 4;
    const int column = warp() / C::kKeyWarps * 16 + 2 * (lane() % 4);
#pragma unroll
    for (int i = 0; i < kKeyRows / 16; ++i) {
#pragma unroll
      for (int r = 0; r < 8; r += 2) {
        const int key = row + 16 * i + r / 2 % 2 * 8;
        if (key >= tile.rows_present()) continue;
        const bool used = key < rows.count;
        float* const to_row = to + rows.start + key * rows.stride;
#pragma unroll
        for (int j = 0; j < kBlocks; ++j) {
          const int at = column + 16 * kKeyTurns * j + r / 4 * 8;
          if (at >= 8 * Tile::kUsedChunks) continue;
          const float* const x = &sums[i][j][r];
          *reinterpret_cast<float2*>(to_row + at) =
              used ? make_float2(x[0] * factor, x[1] * factor) : make_float2(0, 0);
        }
      }
    }
  }

  ATTN_DEVICE void run() const {
    SumsK dk;
    SumsV dv;
    clear(dk);
    clear(dv);
    const int blocks = tile.blocks();
    const auto coverage_of = [&](int i) {
      return tile.coverage(e, i % blocks, tile.head_q(p) + i / blocks);
    };
    BlockList list(coverage_of, blocks * tile.heads(p));
    if (list.more()) accumulate(dk, dv, list, blocks);
    __syncthreads();  // nobody reads K and V any more
    store<TileQ>(dk, p.scale, 0, p.dk, p.dk_strides);
    store<TileO>(dv, C::kDropout ? p.dropout_scale : 1.f, Layout::kV, p.dv, p.dv_strides);
  }
};

template <class C, class Expressions, class Slope>
ATTN_DEVICE void backward_sm80(const BackwardParams& p, const Expressions& e, const Slope& slope) {
  static_assert(BackwardSm80Layout<C>::kBytes == C::kSharedBytes);  // that the launch gives
  extern __shared__ __align__(128) char memory[];
  wait_for_dependencies();
  launch_dependents();
  const auto shared = static_cast<unsigned>(__cvta_generic_to_shared(memory));
  const KeyTile of = key_tile_at<C>(p, static_cast<int>(blockIdx.x));
  const GradientTile<C> tile{sequence_of<C>(p, of.batch), of.head_k, of.key_block * C::kBlockM};
  if (tile.first >= tile.rows_present()) return;
  BackwardSm80<C, Expressions, Slope>{p, e, slope, tile, shared}.run();
}

}  // namespace attn::device
