// FlashAttention, algorithm 1 (Dao et al. 2022), in the order of the paper, and algorithm 5, its
// block-sparse form: the outer loop goes over blocks of K and V, the inner one over all queries,
// whose O, l and m are read from memory and written back each time. To be read and to be measured;
// FlashAttention-2's order (forward_simt.cuh, with the same arithmetic) moves less.
//
// A block of 128 threads has one query head of one sequence. K_j and V_j, kStages x 64 keys, stay
// in shared memory as they are stored; Q_i and P pass through it in float32. O_i, l and m lie in
// the workspace in float32: O rounded to 16 bits once a block of keys would not be exact attention
// any more. Lines 2 and 8 of the first block and the last write of O are what differs from the
// paper: O begins as zeros in registers, and goes from registers to its tensor.
//
// Reads of C: what forward_simt.cuh reads but kSplits, kClassified and kGroup, which are off, and
//   kStages                B_c / 64
//   kSkipsEmpty            algorithm 5: tiles that the mask's bounds prove empty are left out
// Grid: a block for each query head of each sequence, with ForwardFlashAttention::kBytes of dynamic
// shared memory.
#pragma once

#include "device.cuh"
#include "kernels/forward_simt.cuh"

namespace attn::device {

template <class C, class Expressions>
struct ForwardFlashAttention {
  using Step = ForwardSimt<C, Expressions>;
  using Layout = typename Step::Layout;
  using Thread = typename Step::Thread;
  using Element = typename C::Element;
  using Storage = typename Scalar<Element>::Storage;
  static constexpr int kPiece = Step::kPiece, kPieces = Step::kPieces, kRows = Step::kRows;
  // Sizes for 64 keys, in elements: K [column][slot], then V [slot][column].
  static constexpr int kOfK = C::kHeadDim * Layout::kSlots, kColumnsV = kPieces * kPiece;
  static constexpr int kOfKeys = kOfK + C::kBlockN * kColumnsV;
  static constexpr int kBytes =
      4 * Layout::kKeysAt + C::kStages * kOfKeys * static_cast<int>(sizeof(Storage));
  static_assert(kBytes == C::kSharedBytes);  // that the launch gives

  const ForwardParams& p;
  const Expressions& e;
  float* const shared;

  ATTN_DEVICE Storage* keys_at(int i) const {
    return reinterpret_cast<Storage*>(shared + Layout::kKeysAt) + i * kOfKeys;
  }

  // Line 6: K_j and V_j, from block0 on.
  ATTN_DEVICE void load_keys(const Step& step, int block0) const {
    __syncthreads();  // nobody reads those of before
#pragma unroll 1
    for (int i = 0; i < C::kStages; ++i) {
      Storage* const k = keys_at(i);
#pragma unroll 1
      for (int column0 = 0; column0 < C::kHeadDim; column0 += kPiece) {
        step.template load_keys<C::kHeadDim, 8>(
            p.k, p.k_strides, block0 + i, column0, [&](int slot, int column, float x) {
              if (column0 + column < C::kHeadDim) {
                k[(column0 + column) * Layout::kSlots + slot] = Scalar<Element>::to(x);
              }
            });
      }
#pragma unroll 1
      for (int column0 = 0; column0 < C::kHeadDimV; column0 += kPiece) {
        step.template load_keys<C::kHeadDimV, 16>(
            p.v, p.v_strides, block0 + i, column0, [&](int slot, int column, float x) {
              k[kOfK + slot * kColumnsV + column0 + column] = Scalar<Element>::to(x);
            });
      }
    }
    __syncthreads();
  }

  // ---- O, l and m of a row in memory

  ATTN_DEVICE long long row_of(const Step& step, int r) const {
    const int row = step.first_row() + r;
    const QueryTile<C>& t = step.tile;
    return t.partial_row(p, t.query_of(row), t.head_of(row));
  }
  ATTN_DEVICE bool exists(const Step& step, int r) const {
    return step.tile.query_of(step.first_row() + r) < step.tile.sequence.rows_q;
  }

  // Line 8. O, which is normalised there, comes as l O; l is the sum of what threads of a row have.
  ATTN_DEVICE void load_rows(const Step& step, Thread& t, RowSums (&before)[kRows]) const {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (!exists(step, r)) continue;
      const long long row = row_of(step, r);
      const RowSums sums = before[r] = p.row_sums[row];
      t.m[r] = sums.m;
      t.l[r] = Step::member() == 0 ? sums.l : 0;
#pragma unroll
      for (int piece = 0; piece < kPieces; ++piece) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int column = piece * kPiece + 4 * Step::member() + i;
          if (C::kHeadDimV % kPiece != 0 && column >= C::kHeadDimV) continue;
          t.o[piece][r][i] = sums.l * p.row_o[row * C::kHeadDimV + column];
        }
      }
    }
  }

  // Lines 12 and 13. A row whose keys of the block weigh nothing keeps its O: l (1 / l) would wear
  // it down by an ulp. `weights` are sums of P over the thread's keys of the block: l itself may
  // stay as it is, as 1 + 3e-8 does, where O moves.
  ATTN_DEVICE void store_rows(const Step& step, const Thread& t, const RowSums (&before)[kRows],
                              const float (&weights)[kRows]) const {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const float l = Step::group_sum(t.l[r]), weight = Step::group_sum(weights[r]);
      if (!exists(step, r) || (weight == 0 && before[r].l == l && before[r].m == t.m[r])) continue;
      const long long row = row_of(step, r);
      const float inverse = l == 0 ? 0 : 1 / l;
#pragma unroll
      for (int piece = 0; piece < kPieces; ++piece) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int column = piece * kPiece + 4 * Step::member() + i;
          if (C::kHeadDimV % kPiece != 0 && column >= C::kHeadDimV) continue;
          p.row_o[row * C::kHeadDimV + column] = inverse * t.o[piece][r][i];
        }
      }
      if (Step::member() == 0) p.row_sums[row] = {t.m[r], l};
    }
  }

  // ---- the loops

  // Whether the tile sees a key of the block of 64.
  ATTN_DEVICE bool sees(const Step& step, int block) const {
    if (block * C::kBlockN >= step.tile.sequence.length_k) return false;
    if constexpr (!C::kSkipsEmpty || !Expressions::kHasMask) return true;
    const KeyRange keys = step.tile.keys(step.tile.row0, C::kBlockM);
    return block_coverage<C>(e, keys, keys.shared, block * C::kBlockN) != Coverage::empty;
  }

  // Lines 8 to 13: O_i, l_i and m_i meet K_j and V_j.
  ATTN_DEVICE void update(const Step& step, int block0, bool first, bool last) const {
    unsigned seen = 0;
#pragma unroll 1
    for (int i = 0; i < C::kStages; ++i) seen |= (sees(step, block0 + i) ? 1u : 0u) << i;
    // The first block of keys makes the rows of the workspace and the last one those of O.
    if (seen == 0 && !first && !last) return;
    Thread t;
    Step::clear(t);
    RowSums before[kRows];
    float weights[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      before[r] = {0, -1};  // no row's
      weights[r] = 0;
    }
    if (!first) load_rows(step, t, before);
    __syncthreads();  // nobody reads Q of the tile before
    step.load_q();
    __syncthreads();
    const int rows = Step::group() * kRows;
#pragma unroll 1
    for (int i = 0; i < C::kStages; ++i) {
      if ((seen >> i & 1) == 0) continue;
      const int block = block0 + i;
      const Storage* const k = keys_at(i);
      Step::clear_s(t);
      Step::template multiply<Layout::kRows, Layout::kSlots, Element>(
          t.s, shared + rows, k + 4 * Step::member(), C::kHeadDim);
      const bool inside = (block + 1) * C::kBlockN <= step.tile.sequence.length_k;
      step.change_scores(t, block, Expressions::kHasMask || !inside);
      step.softmax(t, block);
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
#pragma unroll
        for (int i = 0; i < 4; ++i) weights[r] += fabsf(t.s[r][i]);
      }
      __syncwarp();  // P of the block before was read: by threads of the same warp
      step.store_p(t);
      __syncwarp();
#pragma unroll
      for (int piece = 0; piece < kPieces; ++piece) {
        Step::template multiply<Layout::kRows, kColumnsV, Element>(
            t.o[piece], shared + Layout::kPAt + rows,
            k + kOfK + piece * kPiece + 4 * Step::member(), C::kBlockN);
      }
    }
    if (last) {
      step.finish(t);
    } else {
      store_rows(step, t, before, weights);
    }
  }

  ATTN_DEVICE void run(int batch, int head) const {
    const Step any{p, e, QueryTile<C>::of(p, {0, head, batch, 0}), shared};
    const int blocks = any.tile.end;  // of 64 keys; without any, O is zeros
#pragma unroll 1
    for (int block = 0; block == 0 || block < blocks; block += C::kStages) {
      load_keys(any, block);
#pragma unroll 1
      for (int m = 0; m * C::kBlockM < any.tile.sequence.rows_q; ++m) {
        const Step step{p, e, QueryTile<C>::of(p, {m, head, batch, 0}), shared};
        update(step, block, block == 0, block + C::kStages >= blocks);
      }
    }
  }
};

template <class C, class Expressions>
ATTN_DEVICE void forward_flash_attention(const ForwardParams& p, const Expressions& e) {
  const int pair = static_cast<int>(blockIdx.x);
  ForwardFlashAttention<C, Expressions>{p, e, shared_memory()}.run(pair / p.heads_q,
                                                                   pair % p.heads_q);
}

}  // namespace attn::device
