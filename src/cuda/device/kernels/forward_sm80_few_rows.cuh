// Forward pass of a few rows over many keys, as in decoding, on any architecture from sm_80 on:
// Flash-Decoding inside a block of threads. Its warps have the same rows and different keys, so
// that none waits for another until the end, where their parts are merged.
//
// A block of keys is cut into one piece a warp. A warp copies its piece of K and V by cp.async into
// stages of its own, C::kStages blocks ahead, computes S = Q K^T, P and O += P V of it with
// products of one warp, and keeps m, l and O in registers. With few rows all that counts is how
// many bytes are on their way: no barrier of the block stands between a warp's copies.
//
// Reads of C:
//   Element, Output        BFloat16 or Float16; of O that or Float32
//   kHeadDim, kHeadDimV    multiples of 8, up to 256
//   kBlockM                rows: 16 or 32, all those of a K, V head and sequence
//   kBlocksAtOnce          blocks of threads that a multiprocessor holds
//   kWarps, kBlockN        warps, and keys of a block: a multiple of 16 for each warp
//   kStages                pieces of K and V of a warp in shared memory, 2 or more
//   kGroup                 query heads of a K, V head; all share the tile
//   kPageSize              of paged K and V; 0: not paged
//   kKeyList               keys by list: the rows are all those of a K, V head and query
//   CacheK, CacheV, kScaledK, kScaledV   where K or V has a type of its own
//                          (tile/cache_type.cuh), head_dim then a multiple of 16, head_dim_v of 32;
//                          K and V are aligned as their rows are, up to 16 bytes
//   kHidesKeys             rows of O that are not finite are looked at again
//   kClassified            the mask's words are in memory (kernels/classify.cuh); kParts: 1
//   kByLength              a sequence that one split holds is stored whole, and splits past the end
//                          of a sequence do nothing (kernels/combine.cuh)
//   kPackedQ, kPackedK, kUsedQ, kUsedK, kWide, kSplits, kSink, kMaskBatches, kMaskHeads, kMaxLogit
//   kKeepsParts            with kByLength, no sequence is stored whole
// May be launched as a dependent of whatever comes before. Q, K, V and O are 16-byte aligned, and
// so are their strides. Grid: p.num_tiles blocks of 32 kWarps threads with
// ForwardFewRowsLayout<C>::kBytes of dynamic shared memory; or any number of them where sequences
// have lengths of their own (kUsedK, kPackedK): they stay and take piece after piece.
#pragma once

#include "device.cuh"
#include "kernels/forward_sm80_few_rows/layout.cuh"
#include "params.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/dependent.cuh"
#include "ptx/mma.cuh"
#include "ptx/special.cuh"
#include "schedule/dealer.cuh"
#include "schedule/pieces.cuh"
#include "schedule/query_tile.cuh"
#include "softmax/denominator.cuh"
#include "softmax/lazy.cuh"
#include "softmax/max_logit.cuh"
#include "softmax/visible_row.cuh"
#include "tile/accumulator.cuh"
#include "tile/shared_tile.cuh"
#include "tile/warp_values.cuh"

namespace attn::device {

template <class C, class Expressions>
struct ForwardFewRows {
  using Layout = ForwardFewRowsLayout<C>;
  using TileK = typename Layout::TileK;
  using TileV = typename Layout::TileV;
  using Stage = typename Layout::Stage;
  using Element = typename C::Element;
  using Output = typename C::Output;
  using Blocks = KeyBlocks<C, Expressions, ForwardFewRows, C::kClassified>;
  static constexpr int kThreads = 32 * C::kWarps, kKeys = Layout::kKeys;
  static constexpr int kTiles = C::kBlockM / 16;
  static constexpr int kSteps = TileK::kChunks / 2;
  static constexpr float kLog2E = 1.4426950408889634f;
  static constexpr int kBytesK = StorageBytes<C>::kK, kBytesV = StorageBytes<C>::kV;
  // Where sequences have lengths of their own, thread blocks stay, and take long pieces first.
  static constexpr bool kStays = (C::kUsedK || C::kPackedK) && !C::kKeyList;
  static_assert(Layout::kBytes == C::kSharedBytes);  // that the launch gives
  static_assert(kTiles == 1 || kTiles == 2);
  static_assert(kKeys % 16 == 0 && C::kStages >= 2 && !C::kDropout);

  const ForwardParams& p;
  const Expressions& e;
  const QueryTile<C> tile;
  char* const memory;
  const unsigned shared;  // the address of `memory`, 128-byte aligned

  struct Warp {
    unsigned q[kTiles][kSteps][4];
    float o[kTiles][C::kHeadDimV / 2];
    float s[kTiles][kKeys / 2];
    LazySoftmax softmax[kTiles];
    unsigned k_lane, v_lane;  // where this lane reads its operands (SharedTile::lane), in stage 0
  };
  struct alignas(16) Four {
    float x[4];
  };
  // Of a row, as one warp has it: what its exponents are taken against, in base 2, their sum, and
  // with a score the largest, from which exponents are taken where r is far (softmax/online.cuh).
  struct alignas(16) Sums {
    float r, l, m;
  };
  static ATTN_DEVICE bool is_far_row(float r) { return Expressions::kHasScore && is_far(r); }

  static ATTN_DEVICE int lane() { return static_cast<int>(threadIdx.x % 32); }
  static ATTN_DEVICE int warp() { return static_cast<int>(threadIdx.x / 32); }
  ATTN_DEVICE KeyRange keys(int) const { return tile.keys(tile.row0, C::kBlockM); }
  ATTN_DEVICE const KeyWord* key_words(int, int window) const { return tile.key_words(p, window); }
  static ATTN_DEVICE int part() { return 0; }

  // ---- copies

  // Q as operands, straight from memory: rows that do not exist are zeros.
  ATTN_DEVICE void load_q(Warp& w) const {
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int row = tile.row0 + 16 * m + lane() / 4 + 8 * i;
        const int query = tile.query_of(row), head = tile.head_of(row);
        const bool exists = query < tile.sequence.length_q;
        const unsigned* from =
            reinterpret_cast<const unsigned*>(
                static_cast<const char*>(p.q) +
                2 * tile.query_row(p.q_strides, exists ? query : 0, exists ? head : 0)) +
            (kIsCached<C> ? lane() % 4 * (C::kHeadDim / 8) : lane() % 4);
#pragma unroll
        for (int step = 0; step < kSteps; ++step) {
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            if constexpr (kIsCached<C>) {  // in the order of CachedKeys
              w.q[m][step][2 * half + i] = exists ? from[2 * step + half] : 0u;
              continue;
            }
            const bool inside = 16 * step + 8 * half < C::kHeadDim;
            w.q[m][step][2 * half + i] = exists && inside ? from[8 * step + 4 * half] : 0u;
          }
        }
      }
    }
  }
  // The first of this warp's keys of a block.
  static ATTN_DEVICE int first_key(int block) { return block * C::kBlockN + warp() * kKeys; }
  // One key of the block that comes next, of a list, and its page, a key a lane: looked up a block
  // ahead, since the copies cannot be asked for before they are here. -1: none.
  struct Found {
    int key, page;
  };
  ATTN_DEVICE Found next_found(const Blocks& list) const {
    Found found{-1, -1};
    if constexpr (C::kPageSize > 0 || C::kKeyList) {
      if (!list.more()) return found;
      const int key = tile.key_at(p, first_key(list.block()) + lane() % kKeys);
      if (!tile.is_key(key)) return found;
      found.key = key;
      if constexpr (C::kPageSize > 0) found.page = static_cast<int>(tile.page_of(p, key));
    }
    return found;
  }
  // Where row `row` of the warp's keys lies. Rows past the length are zeros: P = 0 would not undo a
  // NaN in V. All lanes call it.
  template <int kBytes = 2>
  ATTN_DEVICE SourceRow source_row(const char* from, const Strides& strides, int key0,
                                   const Found& found, int row) const {
    const int key = C::kKeyList ? __shfl_sync(~0u, found.key, row) : key0 + row;
    bool exists = tile.is_key(key);
    long long at = key * strides.row;
    if constexpr (C::kPageSize > 0) {
      const int own = __shfl_sync(~0u, found.page, row);
      exists = exists && static_cast<unsigned>(own) < static_cast<unsigned>(p.num_pages);
      at = own * strides.batch + key % C::kPageSize * strides.row;
    }
    return SourceRow{from + (exists ? kBytes * at : 0), exists};
  }
  template <class Tile>
  ATTN_DEVICE void load_keys(unsigned to, const char* from, const Strides& strides, int key0,
                             const Found& found) const {
    load_warp_tile<Tile, kKeys>(
        to, [&](int row) { return source_row(from, strides, key0, found, row); });
  }
  // Asks for this warp's keys of the next block, and for V of them, and goes on to the one after.
  struct Copies {
    Blocks list;
    Found found;
    const char *k, *v;
  };
  ATTN_DEVICE void load_next(Copies& next, int stage) const {
    if (next.list.more()) {
      const int key0 = first_key(next.list.block());
      const Found found = next.found;
      next.list.advance(*this, 0);
      next.found = next_found(next.list);
      const unsigned to =
          shared + static_cast<unsigned>(warp() * Layout::kWarpBytes + stage * Stage::kBytes);
      if constexpr (kIsCached<C>) {
        Stage::load(*this, to, next.k, next.v, key0, found);
      } else {
        load_keys<TileK>(to, next.k, p.k_strides, key0, found);
        load_keys<TileV>(to + Stage::kVAt, next.v, p.v_strides, key0, found);
      }
    }
    copy_async_commit();
  }

  // ---- a block of keys

  ATTN_DEVICE void multiply_qk(Warp& w, unsigned stage) const {
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
#pragma unroll
      for (int i = 0; i < kKeys / 2; ++i) w.s[m][i] = 0;
    }
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
#pragma unroll
      for (int j = 0; j < kKeys / 16; ++j) {
        unsigned k[4];
        load_matrices(k, TileK::further(w.k_lane + stage, 16 * j, 2 * step));
#pragma unroll
        for (int m = 0; m < kTiles; ++m) {
          multiply(Element{}, w.s[m] + 8 * j, w.q[m][step], k[0], k[1]);
          multiply(Element{}, w.s[m] + 8 * j + 4, w.q[m][step], k[2], k[3]);
        }
      }
    }
  }

  // Calls f(score, query, head, key, step) for each score of 16 rows, whose key is key + step; step
  // is a constant.
  template <class F>
  ATTN_DEVICE void for_each_score(float (&s)[kKeys / 2], int m, int block, F f) const {
    const int key = first_key(block) + 2 * (lane() % 4);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = tile.row0 + 16 * m + lane() / 4 + 8 * i;
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

  // Makes P of a block as operands, and multiplies O where the references moved.
  ATTN_DEVICE void softmax(Warp& w, unsigned (&p16)[kTiles][kKeys / 4], int block, bool mixed,
                           unsigned stage) const {
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
      if constexpr (kIsCached<C>) {
        if constexpr (C::kScaledK) {
          Stage::multiply_scales(w.s[m], Stage::scales_k(stage_at(stage)));
        }
      }
      if constexpr (Expressions::kHasScore) {
        for_each_score(w.s[m], m, block, [&](float& x, int query, int head, int key, int step) {
          x = tile.score(p, e, x, query, head, key, step);
        });
      }
      if (mixed) {
        for_each_score(w.s[m], m, block, [&](float& x, int query, int head, int first, int step) {
          x = tile.sees(p, e, query, head, first + step) ? x : minus_infinity();
        });
      }
      float alpha[2];
      const float c = Expressions::kHasScore ? Expressions::kScoreFactor * kLog2E : p.scale_log2;
      if (w.softmax[m].template exponentiate<Expressions::kHasScore, C::kMaxLogit>(w.s[m], c,
                                                                                   alpha)) {
#pragma unroll
        for (int i = 0; i < C::kHeadDimV / 2; ++i) w.o[m][i] *= alpha[i / 2 % 2];
      }
      if constexpr (kIsCached<C>) {
        if constexpr (Stage::kScalesP) {
          Stage::multiply_scales(w.s[m], Stage::scales_v(stage_at(stage)));
        }
      }
      to_operand<Element>(w.s[m], p16[m]);
    }
  }

  // The address of this warp's part of a stage.
  ATTN_DEVICE const char* stage_at(unsigned stage) const {
    return memory + warp() * Layout::kWarpBytes + stage;
  }

  // Goes through the blocks of keys of the tile.
  ATTN_DEVICE void attend(Warp& w) const {
    const int head = tile.key_head(p);
    Blocks list(*this, 0);
    Copies next{list, next_found(list),
                static_cast<const char*>(p.k) + kBytesK * tile.first_key(p.k_strides, head),
                static_cast<const char*>(p.v) + kBytesV * tile.first_key(p.v_strides, head)};
#pragma unroll
    for (int stage = 0; stage < C::kStages - 1; ++stage) load_next(next, stage);
    load_q(w);
    int stage = 0, free = C::kStages - 1;
#pragma unroll 1
    while (list.more()) {
      const int block = list.block();
      const bool mixed = list.mixed();
      list.advance(*this, 0);
      copy_async_wait<C::kStages - 2>();
      __syncwarp();  // the block is here, and the stage before it is no longer read
      load_next(next, free);
      const auto at = static_cast<unsigned>(stage * Stage::kBytes);
      unsigned p16[kTiles][kKeys / 4];
      if constexpr (kIsCached<C>) {
        Stage::multiply_qk(w.s, w.q, stage_at(at));
        softmax(w, p16, block, mixed, at);
        Stage::multiply_pv(w.o, p16, stage_at(at));
      } else {
        multiply_qk(w, at);
        softmax(w, p16, block, mixed, at);
        multiply_values<Element, TileV>(w.o, p16, w.v_lane + at);
      }
      free = stage;
      stage = stage + 1 == C::kStages ? 0 : stage + 1;
    }
    copy_async_wait<0>();
  }

  // ---- the end: O = sum of 2^(r_w - r) O_w over the warps, and l alike

  ATTN_DEVICE float* part_row(int of_warp, int row) const {
    return reinterpret_cast<float*>(memory + (of_warp * C::kBlockM + row) * Layout::kRowBytes);
  }
  ATTN_DEVICE Sums* sums(int of_warp, int row) const {
    return reinterpret_cast<Sums*>(memory + Layout::kSumsAt) + of_warp * C::kBlockM + row;
  }
  ATTN_DEVICE bool row_exists(int row) const {
    return tile.query_of(tile.row0 + row) < min(tile.sequence.rows_q, p.seqlen_q);
  }

  ATTN_DEVICE void put(const Warp& w) const {
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float l = quad_sum(w.softmax[m].l[i]);
        const int row = 16 * m + lane() / 4 + 8 * i;
        if (!row_exists(row)) continue;
        raise_row<Expressions>(p, tile, tile.row0 + row, w.softmax[m].top[i], l);
        if (lane() % 4 == 0) *sums(warp(), row) = {w.softmax[m].r[i], l, w.softmax[m].m[i]};
        if constexpr (kIsCached<C>) {  // in the order of CachedKeys
#pragma unroll
          for (int c = 0; c < 2; ++c) {
            Four* to = reinterpret_cast<Four*>(part_row(warp(), row) +
                                               (2 * (lane() % 4) + c) * (C::kHeadDimV / 8));
#pragma unroll
            for (int j = 0; j < C::kHeadDimV / 8; j += 4) {
              const float* x = w.o[m] + 4 * j + 2 * i + c;
              to[j / 4] = {x[0], x[4], x[8], x[12]};
            }
          }
          continue;
        }
        float2* o = reinterpret_cast<float2*>(part_row(warp(), row)) + lane() % 4;
#pragma unroll
        for (int j = 0; j < C::kHeadDimV / 8; ++j) {
          o[4 * j] = {w.o[m][4 * j + 2 * i], w.o[m][4 * j + 2 * i + 1]};
        }
      }
    }
  }

  // Merges and stores four columns of a row; whole: this split has all keys. Returns 0 where they
  // are finite, else NaN.
  ATTN_DEVICE float merge(int row, int column, bool whole) const {
    const int query = tile.query_of(tile.row0 + row), head = tile.head_of(tile.row0 + row);
    const bool used = query < tile.sequence.length_q;
    float r = minus_infinity(), m = r;
#pragma unroll
    for (int i = 0; i < C::kWarps; ++i) {
      r = fmaxf(r, sums(i, row)->r);
      m = fmaxf(m, sums(i, row)->m);
    }
    constexpr float c = Expressions::kHasScore ? Expressions::kScoreFactor : 0.f;
    float l = 0;
    Four o{};
#pragma unroll
    for (int i = 0; i < C::kWarps; ++i) {
      const Sums part = *sums(i, row);
      const bool far = is_far_row(r) || is_far_row(part.r);
      const float distance = far ? (part.m - m) * (c * kLog2E) : part.r - r;
      const float share = part.r == minus_infinity() ? 0.f : exp2_approximate(distance);
      const Four x = *reinterpret_cast<const Four*>(part_row(i, row) + column);
      l = fmaf(share, part.l, l);
#pragma unroll
      for (int k = 0; k < 4; ++k) o.x[k] = fmaf(share, x.x[k], o.x[k]);
    }
    // The sink is added once to a row: where keys are split, by the first split.
    float sink = minus_infinity();
    if constexpr (C::kSink) {
      if (!C::kSplits || tile.split == 0) sink = p.sink[head];
    }
    const Denominator d = denominator<C::kSink, true, C::kSplits>(
        natural_top<Expressions::kHasScore>(r, m, Expressions::kScoreFactor), l, sink);
    const float lse = used ? d.lse : minus_infinity();
    // Rows that see nothing are 0 whatever V holds.
    const bool empty = !used || l == 0;
#pragma unroll
    for (int k = 0; k < 4; ++k) o.x[k] = empty ? 0.f : o.x[k] * d.inverse;
    if (C::kSplits && !whole) {
      const long long part = tile.partial_row(p, query, head);
      *reinterpret_cast<Four*>(p.partial_o + part * C::kHeadDimV + column) = o;
      if (column == 0) p.partial_lse[part] = used ? d.part : nothing_seen();
    } else {
      store_four<Output>(element<Output>(p.o, tile.query_row(p.o_strides, query, head) + column),
                         o.x);
      if (p.lse != nullptr && column == 0) {
        p.lse[tile.query_row(p.lse_strides, query, head)] = lse;
      }
    }
    return zero_if_finite(o.x);
  }

  // Computes rows again that are not finite (visible_row.cuh).
  template <class Stored>
  ATTN_DEVICE void mend() const {
    constexpr int kRows = C::kBlockM / C::kWarps;
    const QueryTile<Stored> same{tile.sequence, tile.head, tile.split, tile.row0,
                                 tile.begin,    tile.end,  tile.whole};
    write_visible_rows<Stored>(p, e, same, tile.row0 + warp() * kRows, kRows);
  }

  ATTN_DEVICE void finish(const Warp& w, bool whole) const {
    __syncthreads();  // nobody reads K and V any more
    put(w);
    __syncthreads();
    constexpr int kFours = C::kHeadDimV / 4;
    float zero = 0;
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x); i < C::kBlockM * kFours; i += kThreads) {
      const int row = i / kFours;
      if (row_exists(row)) zero += merge(row, 4 * (i % kFours), whole);
    }
    if constexpr (C::kHidesKeys) {
      if (__syncthreads_or(zero != 0)) {
        if constexpr (C::kByLength) {
          if (whole) return mend<Unsplit<C>>();
        }
        mend<C>();
      }
    }
  }

  // near_end() is called once, when all keys of the tile are read.
  template <class F>
  ATTN_DEVICE void run(F near_end) const {
    const bool whole = !C::kSplits || (C::kByLength && !C::kKeepsParts && tile.whole);
    if (C::kByLength && tile.split > 0 && tile.begin >= tile.end) {
      near_end();
      return;
    }
    Warp w;
    const int l = lane();
    const unsigned own = shared + static_cast<unsigned>(warp() * Layout::kWarpBytes);
    w.k_lane = TileK::lane(own, l / 16 * 8 + l % 8, l / 8 % 2);
    w.v_lane = TileV::lane(own + Stage::kVAt, l % 16, l / 16);
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
#pragma unroll
      for (int i = 0; i < C::kHeadDimV / 2; ++i) w.o[m][i] = 0;
    }
    attend(w);
    near_end();
    finish(w, whole);
  }
};

template <class C, class Expressions>
ATTN_DEVICE void forward_sm80_few_rows(const ForwardParams& p, const Expressions& e) {
  extern __shared__ __align__(128) char memory[];
  const auto shared = static_cast<unsigned>(__cvta_generic_to_shared(memory));
  using Kernel = ForwardFewRows<C, Expressions>;
  // It is launched while what comes before it ends, which may have written any of its operands.
  // What merges its results is launched in turn once all of its blocks of threads are under way.
  wait_for_dependencies();
  if constexpr (C::kSplits) launch_dependents();
  if constexpr (Kernel::kStays) {
    using Order = PieceOrder<C, Kernel::kThreads>;
    static_assert(Order::kBytes <= Kernel::Layout::kBytes);
    const Order order(p, memory);
    TileDealer dealer(p.counter);
    const bool deals = threadIdx.x == 0;
    int index = deals ? dealer.next() : 0;
#pragma unroll 1
    for (;;) {
      const OutputTile piece = order.find(index);
      if (piece.split < 0) break;
      // The next one is drawn while this one ends: drawn earlier it might begin late.
      Kernel{p, e, QueryTile<C>::of(p, piece, order.least()), memory, shared}.run(
          [&] { index = deals ? dealer.next() : 0; });
      __syncthreads();
    }
    if (deals) dealer.finish();
  } else {
    Kernel{p, e, QueryTile<C>::at(p, block_index_anew()), memory, shared}.run([] {});
  }
}

}  // namespace attn::device
