// Forward pass of heads that are too wide for the registers of one warp's rows: FlashAttention-2,
// algorithm 1.
//
// A block of threads takes one tile of Q. Its warps share S = Q K^T by rows and keys, and O += P V
// by columns: each has 16 rows and some keys of S, and some columns of O. Between them lies P in
// shared memory, and what the warps of a row know of its maximum and sum.
//
// With multi-head latent attention V is the first columns of K (kVInK): it is loaded once.
//
// Kernels derive from ForwardWide and go through the blocks of a tile in an order of their own.
// Place (forward_sm80_wide/layout.cuh) says where tiles lie, and what each warp has.
//
// Reads of C:
//   Element, Output        BFloat16 or Float16; of O that or Float32
//   kHeadDim, kHeadDimV    multiples of 8
//   kBlockM, kWarps        16 rows for each group of warps; kWarps / (kBlockM / 16) warps a group
//   kBlockN                keys of a tile
//   kStages                K, V tiles: 1 to 3
//   kVInK                  V is the first kHeadDimV columns of K, in memory
//   kGroup                 query heads of a K, V head that share a tile; 1: each has its own
//   kPageSize              of paged K and V; 0: not paged
//   kKeyList               keys by list: a tile has rows of one query
//   kHidesKeys             rows of O that are not finite are looked at again
//   kClassified            the mask's words are in memory (kernels/classify.cuh); kParts: 1
//   kPackedQ, kPackedK, kUsedQ, kUsedK, kWide, kSplits, kSink, kDropout, kRngState, kMaskBatches,
//   kMaskHeads, kMaxLogit
// Q, K, V and O are 16-byte aligned, and so are their strides. Grid: p.num_tiles blocks of 32
// kWarps threads with Layout::kBytes of dynamic shared memory.
#pragma once

#include "device.cuh"
#include "divide_up.cuh"
#include "params.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/dependent.cuh"
#include "ptx/special.cuh"
#include "schedule/query_tile.cuh"
#include "softmax/denominator.cuh"
#include "softmax/dropout.cuh"
#include "softmax/lazy.cuh"
#include "softmax/max_logit.cuh"
#include "softmax/visible_row.cuh"
#include "tile/accumulator.cuh"
#include "tile/shared_tile.cuh"

namespace attn::device {

template <class C, class Expressions, class Place_>
struct ForwardWide : Place_ {
  using Place = Place_;
  using Layout = typename Place::Layout;
  using TileK = typename Layout::TileK;
  using TileV = typename Layout::TileV;
  using TileP = typename Layout::TileP;
  using Element = typename C::Element;
  using Output = typename C::Output;
  using Blocks = KeyBlocks<C, Expressions, ForwardWide, true>;
  using Place::column0, Place::group_row, Place::has_scores, Place::key0, Place::lane, Place::o_row,
      Place::place, Place::row_of, Place::warp;
  using Place::kAllColumns, Place::kColumns, Place::kGroupsOfO, Place::kKeys, Place::kWarpsOfGroup;
  // The threads that ask for K and V, from which one on.
  static constexpr int kLoaders = 32 * C::kWarps - Place::kFirstLoader;
  static constexpr float kLog2E = 1.4426950408889634f;
  static constexpr float kNothing = -1;  // in a factor's place: the row is 0 whatever O holds
  static_assert(Layout::kBytes == C::kSharedBytes);  // that the launch gives
  static_assert(C::kStages >= 1 && C::kStages <= 3);

  const ForwardParams& p;
  const Expressions& e;
  const QueryTile<C> tile;
  char* const memory;
  const unsigned shared;  // the same as an address of shared memory, 128-byte aligned

  struct Warp {
    float o[kGroupsOfO][kColumns / 2];
    float s[kKeys / 2];
    LazySoftmax softmax;  // of the rows of S; l: over the keys of this thread
  };

  ATTN_DEVICE KeyRange keys(int) const { return tile.keys(tile.row0, C::kBlockM); }
  ATTN_DEVICE const KeyWord* key_words(int, int window) const { return tile.key_words(p, window); }
  static ATTN_DEVICE int part() { return 0; }

  // Numbers of rows: `which` below kWarpsOfGroup is of that warp of the group, kWarpsOfGroup is
  // what O is multiplied by.
  ATTN_DEVICE float& of_row(int row, int which) const {
    return reinterpret_cast<float*>(memory + Layout::kRowsAt)[which * C::kBlockM + row];
  }

  // ---- copies

  ATTN_DEVICE void load_q() const {
    load_tile<TileK, C::kBlockM, kLoaders, Place::kFirstLoader>(
        shared + Layout::kQAt, [&](int row) {
          const int query = tile.query_of(tile.row0 + row), head = tile.head_of(tile.row0 + row);
          const bool exists = query < tile.sequence.length_q;
          return SourceRow{static_cast<const char*>(p.q) +
                               2 * tile.query_row(p.q_strides, exists ? query : 0, head),
                           exists};
        });
  }
  // Rows past the length are zeros: P = 0 would not undo a NaN in V.
  template <class Tile>
  ATTN_DEVICE void load_keys(unsigned to, const char* from, const Strides& strides,
                             int block) const {
    const int first = block * C::kBlockN;
    load_gathered_tile<Tile, C::kBlockN, kLoaders, Place::kFirstLoader>(to, [&](int row) {
      const int key = tile.key_at(p, first + row);
      const bool exists = tile.has_key(p, key);
      return SourceRow{from + 2 * tile.key_row(p, strides, exists ? key : 0), exists};
    });
  }
  ATTN_DEVICE void load_k(int stage, int block) const {
    const char* from = static_cast<const char*>(p.k) + 2 * tile.first_key(p.k_strides, head_k());
    load_keys<TileK>(shared + Layout::kKAt + stage * Layout::kK, from, p.k_strides, block);
  }
  ATTN_DEVICE void load_v(int stage, int block) const {
    if constexpr (!C::kVInK) {
      const char* from = static_cast<const char*>(p.v) + 2 * tile.first_key(p.v_strides, head_k());
      load_keys<TileV>(shared + Layout::kVAt + stage * Layout::kV, from, p.v_strides, block);
    }
  }
  ATTN_DEVICE int head_k() const { return tile.key_head(p); }

  // ---- softmax

  // Calls f(score, query, head, key, step) for each score of the warp, whose key is key + step;
  // step is a constant.
  template <class F>
  ATTN_DEVICE void for_each_score(float (&s)[kKeys / 2], int block, F f) const {
    const int key = block * C::kBlockN + key0() + 2 * (lane() % 4);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = tile.row0 + row_of(group_row(), i);
      const int query = tile.query_of(row), head = tile.head_of(row);
#pragma unroll
      for (int j = 0; j < kKeys / 8; ++j) {
#pragma unroll
        for (int column = 0; column < 2; ++column) {
          f(s[4 * j + 2 * i + column], query, head, key, 8 * j + column);
        }
      }
    }
  }

  // Score and mask.
  ATTN_DEVICE void modify(Warp& w, int block, bool mixed) const {
    if constexpr (Expressions::kHasScore) {
      for_each_score(w.s, block, [&](float& x, int query, int head, int key, int step) {
        x = tile.score(p, e, x, query, head, key, step);
      });
    }
    if (!mixed) return;
    if constexpr (C::kKeyList && !Expressions::kHasMask) return hide_unnamed(w, block);
    for_each_score(w.s, block, [&](float& x, int query, int head, int first, int step) {
      x = tile.sees(p, e, query, head, first + step) ? x : minus_infinity();
    });
  }

  // Hides entries of a list that name no key. The warp looks them up together, one a lane, and each
  // thread has a bit of each: the keys themselves would be as many registers.
  ATTN_DEVICE void hide_unnamed(Warp& w, int block) const {
    constexpr int kWords = divide_up<32>(kKeys);
    const int first = block * C::kBlockN + key0();
    unsigned named[kWords];
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      const bool is_key = tile.is_key(tile.key_at(p, first + 32 * i + lane()));
      named[i] = __ballot_sync(~0u, is_key) >> 2 * (lane() % 4);
    }
    for_each_score(w.s, block, [&](float& x, int, int, int, int step) {
      x = named[step / 32] >> step % 32 & 1 ? x : minus_infinity();
    });
  }

  // S <- P, from the maxima of all warps of the group; true where O must be multiplied.
  ATTN_DEVICE bool exponentiate(Warp& w) const {
    float largest[2], alpha[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = row_of(group_row(), i);
      largest[i] = of_row(row, 0);
#pragma unroll
      for (int other = 1; other < kWarpsOfGroup; ++other) {
        largest[i] = fmaxf(largest[i], of_row(row, other));
      }
    }
    const float c = Expressions::kHasScore ? Expressions::kScoreFactor * kLog2E : p.scale_log2;
    const bool raised = w.softmax.template exponentiate_below<Expressions::kHasScore, C::kMaxLogit>(
        w.s, c, largest, alpha);
    if (place() == 0 && lane() % 4 == 0) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        of_row(row_of(group_row(), i), kWarpsOfGroup) = raised ? alpha[i] : 1.f;
      }
    }
    return raised;
  }

  ATTN_DEVICE void drop_elements(Warp& w, int block) const {
    const auto dropout = dropout_of<C::kRngState>(p, tile.sequence.batch);
    const auto batch = static_cast<unsigned>(tile.sequence.batch * p.heads_q);
    for_each_score(w.s, block, [&](float& x, int query, int head, int key, int step) {
      const DropoutRow<C::kRngState> row(dropout, batch + static_cast<unsigned>(head),
                                         static_cast<unsigned>(query));
      if (!row.keeps(key + step)) x = 0;
    });
  }

  // P of the warp to shared memory.
  ATTN_DEVICE void store_p(const Warp& w) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = row_of(group_row(), i);
#pragma unroll
      for (int j = 0; j < kKeys / 8; ++j) {
        const int at = Layout::kPAt + TileP::offset(row, key0() / 8 + j) + 4 * (lane() % 4);
        *reinterpret_cast<unsigned*>(memory + at) =
            Element::pack(w.s[4 * j + 2 * i], w.s[4 * j + 2 * i + 1]);
      }
    }
  }

  ATTN_DEVICE void multiply_o(Warp& w) const {
#pragma unroll
    for (int m = 0; m < kGroupsOfO; ++m) {
      const float alpha[2] = {of_row(row_of(o_row(m), 0), kWarpsOfGroup),
                              of_row(row_of(o_row(m), 1), kWarpsOfGroup)};
#pragma unroll
      for (int i = 0; i < kColumns / 2; ++i) w.o[m][i] *= alpha[i / 2 % 2];
    }
  }

  // ---- the tile

  // The maximum of each row of S that the warp has, for all warps that share the row.
  ATTN_DEVICE void store_maxima(const Warp& w) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float largest = row_maximum(w.s, i);
      if (lane() % 4 == 0) of_row(row_of(group_row(), i), place()) = largest;
    }
  }

  // LSE, and the factors of O in the place of alpha, from the sums of all warps of a group.
  ATTN_DEVICE void finish_rows(const Warp& w) const {
    float l[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      l[i] = quad_sum(w.softmax.l[i]);
      if (has_scores() && lane() % 4 == 0) of_row(row_of(group_row(), i), place()) = l[i];
    }
    __syncthreads();
    if (place() != 0 || lane() % 4 != 0) return;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int in_tile = row_of(group_row(), i), row = tile.row0 + in_tile;
      const int query = tile.query_of(row), head = tile.head_of(row);
      const bool exists = query < tile.sequence.rows_q;
      const bool used = query < tile.sequence.length_q;
#pragma unroll
      for (int other = 1; other < kWarpsOfGroup; ++other) l[i] += of_row(in_tile, other);
      // The sink is added once to a row: where keys are split, by the first split.
      float sink = minus_infinity();
      if constexpr (C::kSink) {
        if (exists && (!C::kSplits || tile.split == 0)) sink = p.sink[head];
      }
      const TwoFloats top = natural_top<Expressions::kHasScore>(w.softmax.r[i], w.softmax.m[i],
                                                                Expressions::kScoreFactor);
      const Denominator d = denominator<C::kSink, true, C::kSplits>(top, l[i], sink);
      const float lse = used ? d.lse : minus_infinity();
      const float factor = C::kDropout ? d.inverse * p.dropout_scale : d.inverse;
      of_row(in_tile, kWarpsOfGroup) = !used || l[i] == 0 ? kNothing : factor;
      if (!exists) continue;
      raise_row<Expressions>(p, tile, row, w.softmax.top[i], l[i]);
      if constexpr (C::kSplits) {
        p.partial_lse[tile.partial_row(p, query, head)] = used ? d.part : nothing_seen();
      } else if (p.lse != nullptr) {
        p.lse[tile.query_row(p.lse_strides, query, head)] = lse;
      }
    }
  }

  // Stores O / l of row i of two of a group of 16 rows.
  ATTN_DEVICE void store_o(Warp& w, int m, int i) const {
    const int in_tile = row_of(o_row(m), i), row = tile.row0 + in_tile;
    const int query = tile.query_of(row), head = tile.head_of(row);
    const bool exists = query < tile.sequence.rows_q;
    const float known = of_row(in_tile, kWarpsOfGroup);
    const bool nothing = known == kNothing;
    const float factor = nothing ? 0 : known;
#pragma unroll
    for (int j = 0; j < kColumns / 8; ++j) {
      if (nothing || (!kAllColumns && column0() + 8 * j >= C::kHeadDimV)) {
        w.o[m][4 * j + 2 * i] = 0;
        w.o[m][4 * j + 2 * i + 1] = 0;
      }
    }
    if constexpr (C::kSplits) {
      float* to = p.partial_o + tile.partial_row(p, query, head) * C::kHeadDimV + column0();
      store_pairs<float2>(w.o[m], i, to, exists,
                          [&](float a, float b) { return make_float2(a * factor, b * factor); });
    } else {
      auto* const to = element<Output>(p.o, tile.query_row(p.o_strides, query, head) + column0());
      if constexpr (kAllColumns) {
        store_row<Output, kColumns>(w.o[m], i, factor, to, exists);
      } else if constexpr (kBytesOf<Output> == 4) {
        store_pairs<float2>(w.o[m], i, to, exists,
                            [&](float a, float b) { return make_float2(a * factor, b * factor); });
      } else {
        store_pairs<unsigned>(w.o[m], i, to, exists, [&](float a, float b) {
          return Output::pack(a * factor, b * factor);
        });
      }
    }
  }
  // Stores neighbouring columns as one Pair each.
  template <class Pair, class F>
  static ATTN_DEVICE void store_pairs(const float (&o)[kColumns / 2], int i, void* to, bool exists,
                                      F pair) {
    if (!exists) return;
#pragma unroll
    for (int j = 0; j < kColumns / 8; ++j) {
      if (!kAllColumns && column0() + 8 * j >= C::kHeadDimV) break;
      static_cast<Pair*>(to)[4 * j + lane() % 4] = pair(o[4 * j + 2 * i], o[4 * j + 2 * i + 1]);
    }
  }

  // Kernel: the one that derives from this. Its attend(warp, list) goes through the blocks of keys
  // of a list that is not empty.
  template <class Kernel>
  ATTN_DEVICE void run() const {
    if constexpr (C::kClassified) wait_for_dependencies();
    Warp w;
#pragma unroll
    for (int m = 0; m < kGroupsOfO; ++m) {
#pragma unroll
      for (int i = 0; i < kColumns / 2; ++i) w.o[m][i] = 0;
    }
    Blocks list(*this, 0);
    if (list.more()) static_cast<const Kernel*>(this)->attend(w, list);
    if constexpr (C::kSplits) launch_dependents();
    __syncthreads();  // nobody reads numbers of rows any more
    finish_rows(w);
    __syncthreads();
#pragma unroll
    for (int m = 0; m < kGroupsOfO; ++m) {
      store_o(w, m, 0);
      store_o(w, m, 1);
    }
    if constexpr (C::kHidesKeys) {
      float zero = 0;
#pragma unroll
      for (int m = 0; m < kGroupsOfO; ++m) zero += zero_if_finite(w.o[m]);
      if (__syncthreads_or(!(zero == 0))) {
        constexpr int kRows = C::kBlockM / C::kWarps;
        write_visible_rows<C>(p, e, tile, tile.row0 + warp() * kRows, kRows);
      }
    }
  }
};

}  // namespace attn::device
