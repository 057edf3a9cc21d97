// O of single rows once more, from the keys alone that they see.
//
// A key that the mask hides has P = 0, but where its row of V holds a NaN or an infinity the
// product is NaN all the same. The main loops multiply whatever they are given. What came of it is
// looked at once a tile: a row of O that is not finite is computed again, key by key. One that sees
// such a key comes out as it was; that costs ten times the tile's time, and nothing where O is
// finite. Example: a causal mask and a NaN in the last row of V, which only the last query sees.
#pragma once

#include "device.cuh"
#include "divide_up.cuh"
#include "params.cuh"
#include "schedule/query_tile.cuh"
#include "softmax/denominator.cuh"
#include "softmax/dropout.cuh"
#include "tile/accumulator.cuh"
#include "tile/cache_type.cuh"
#include "tile/scalar.cuh"

namespace attn::device {

// Parts of split keys are stored in float32.
template <bool kSplits, class Element>
struct StoredAs {
  using Type = Element;
};
template <class Element>
struct StoredAs<true, Element> {
  using Type = Float32;
};

// A warp computes a row: a lane has a key of 32 for S, and columns lane, lane + 32, ... for O.
template <class C, class Expressions>
struct VisibleRow {
  using Element = typename C::Element;
  using Storage = typename Scalar<Element>::Storage;
  using QueryElement = typename OperandsOf<C>::Query;
  using QueryStorage = typename Scalar<QueryElement>::Storage;
  using StoredElement = typename StoredAs<C::kSplits, typename C::Output>::Type;
  using Stored = typename Scalar<StoredElement>::Storage;
  static constexpr int kColumns = divide_up<32>(C::kHeadDimV);  // of a lane
  static constexpr float kLog2E = 1.4426950408889634f;

  const ForwardParams& p;
  const Expressions& e;
  const QueryTile<C> tile;

  static ATTN_DEVICE int lane() { return static_cast<int>(threadIdx.x % 32); }
  static ATTN_DEVICE float warp_max(float x) {
#pragma unroll
    for (int i = 1; i < 32; i *= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, i));
    return x;
  }
  static ATTN_DEVICE float warp_sum(float x) {
#pragma unroll
    for (int i = 1; i < 32; i *= 2) x += __shfl_xor_sync(~0u, x, i);
    return x;
  }

  // Whether what is stored of the row is.
  ATTN_DEVICE bool is_finite(int row) const {
    const Stored* const from = stored(tile.query_of(row), tile.head_of(row));
    float o[kColumns];
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      o[i] = inside(i) ? Scalar<StoredElement>::from(from[32 * i + lane()]) : 0.f;
    }
    return __all_sync(~0u, zero_if_finite(o) == 0);
  }

  // Writes the row to where the tile's results go. All threads of a warp must call, with the same
  // row.
  ATTN_DEVICE void write(int row) const {
    const Sequence& q = tile.sequence;
    const int query = tile.query_of(row), head = tile.head_of(row);
    const int end = min(tile.end * C::kBlockN, C::kKeyList ? p.list_length : q.length_k);
    const float c = Expressions::kHasScore ? Expressions::kScoreFactor * kLog2E : p.scale_log2;
    const QueryStorage* const from =
        element<QueryElement>(p.q, tile.query_row(p.q_strides, query, head));
    const long long k = tile.first_key(p.k_strides, tile.key_head(p));
    const long long v = tile.first_key(p.v_strides, tile.key_head(p));
    float top = minus_infinity(), l = 0;
    float o[kColumns];
#pragma unroll
    for (int i = 0; i < kColumns; ++i) o[i] = 0;
      // First the largest score, then the sums.
#pragma unroll 1
    for (int pass = 0; pass < 2; ++pass) {
#pragma unroll 1
      for (int key0 = tile.begin * C::kBlockN; key0 < end; key0 += 32) {
        const int key = tile.key_at(p, key0 + lane());
        bool seen = key0 + lane() < end && (!C::kKeyList || tile.is_key(key)) &&
                    is_visible(query, key, head);
        float s = minus_infinity();
        if (seen) {
          if constexpr (kIsCached<C>) {
            s = multiply_cached(from, k + tile.key_row(p, p.k_strides, key), key) *
                scale_of_query(head);
          } else {
            s = multiply_qk(from, element<Element>(p.k, k + tile.key_row(p, p.k_strides, key)));
          }
          if constexpr (Expressions::kHasScore) {
            s = e.score(s, query, key, q.batch, head, q.length_q, q.length_k);
          }
        }
        seen = seen && s != minus_infinity();  // such a score is as good as hidden
        if (pass == 0) {
          top = fmaxf(top, s);
          continue;
        }
        const float weight = seen ? exp2f((s - top) * c) : 0.f;
        l += weight;
        const float kept = is_kept(query, head, key) ? weight : 0.f;
        unsigned left = __ballot_sync(~0u, seen);
        while (left != 0) {
          const int other = 31 - __clz(static_cast<int>(left));
          left ^= 1u << other;
          if constexpr (kIsCached<C>) {
            add_cached(o, __shfl_sync(~0u, kept, other), v, tile.key_at(p, key0 + other));
          } else {
            add(o, __shfl_sync(~0u, kept, other),
                element<Element>(p.v,
                                 v + tile.key_row(p, p.v_strides, tile.key_at(p, key0 + other))));
          }
        }
      }
      if (pass == 0) {
        top = warp_max(top);
        if (top == minus_infinity()) top = 0;  // nothing is seen
      }
    }
    store(o, query, head, top, warp_sum(l));
  }

 private:
  ATTN_DEVICE bool is_visible(int query, int key, int head) const {
    if constexpr (!Expressions::kHasMask) return true;
    const Sequence& q = tile.sequence;
    return e.mask(query, key, q.batch, head, q.length_q, q.length_k);
  }
  ATTN_DEVICE float scale_of_query(int head) const {
    if constexpr (!C::kFloat8) return 1.f;
    const auto& params = static_cast<const CachedForwardParams&>(p);
    if (params.scale_q == nullptr) return 1.f;
    const Strides& s = params.scale_q_strides;
    return cache_scale(params.scale_q[tile.sequence.batch * s.batch + head * s.head]);
  }
  static ATTN_DEVICE float multiply_qk(const Storage* q, const Storage* k) {
    float s = 0;
#pragma unroll 1
    for (int i = 0; i < C::kHeadDim; ++i) {
      s = fmaf(Scalar<Element>::from(q[i]), Scalar<Element>::from(k[i]), s);
    }
    return s;
  }
  // The same with K in a type of its own. at: where the key's row starts, in elements.
  ATTN_DEVICE float multiply_cached(const QueryStorage* q, long long at, int key) const {
    using K = typename C::CacheK;
    const auto& params = static_cast<const CachedForwardParams&>(p);
    const char* const k = static_cast<const char*>(p.k) + K::kStorageBytes * at;
    float s = 0;
#pragma unroll 1
    for (int i = 0; i < C::kHeadDim; ++i) {
      s = fmaf(Scalar<QueryElement>::from(q[i]), K::element(k, i), s);
    }
    return s * scale_of_key<C::kScaledK>(p, tile, params.scale_k, params.scale_k_strides, key);
  }
  ATTN_DEVICE bool is_kept(int query, int head, int key) const {
    if constexpr (!C::kDropout) return true;
    const auto dropout = dropout_of<C::kRngState>(p, tile.sequence.batch);
    const auto pair = static_cast<unsigned>(tile.sequence.batch * p.heads_q + head);
    return DropoutRow(dropout, pair, static_cast<unsigned>(query)).keeps(key);
  }
  static ATTN_DEVICE bool inside(int i) {
    return C::kHeadDimV % 32 == 0 || 32 * i + lane() < C::kHeadDimV;
  }
  static ATTN_DEVICE void add(float (&o)[kColumns], float weight, const Storage* v) {
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      if (inside(i)) o[i] = fmaf(weight, Scalar<Element>::from(v[32 * i + lane()]), o[i]);
    }
  }
  // first: where rows of V start, in elements.
  ATTN_DEVICE void add_cached(float (&o)[kColumns], float weight, long long first, int key) const {
    using V = typename C::CacheV;
    const auto& params = static_cast<const CachedForwardParams&>(p);
    const char* const v = static_cast<const char*>(p.v) +
                          V::kStorageBytes * (first + tile.key_row(p, p.v_strides, key));
    weight *= scale_of_key<C::kScaledV>(p, tile, params.scale_v, params.scale_v_strides, key);
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      if (inside(i)) o[i] = fmaf(weight, V::element(v, 32 * i + lane()), o[i]);
    }
  }
  ATTN_DEVICE void store(const float (&o)[kColumns], int query, int head, float top,
                         float l) const {
    float sink = minus_infinity();
    if constexpr (C::kSink) {
      if (!C::kSplits || tile.split == 0) sink = p.sink[head];
    }
    const TwoFloats m = product(top, Expressions::kHasScore ? Expressions::kScoreFactor : p.scale);
    const Denominator end = denominator<C::kSink, false, false>(m, l, sink);
    float factor = end.inverse;
    if constexpr (C::kDropout) factor *= p.dropout_scale;
    Stored* const to = stored(query, head);
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      if (inside(i)) to[32 * i + lane()] = Scalar<StoredElement>::to(o[i] * factor);
    }
  }
  // The address that the row is stored to.
  ATTN_DEVICE Stored* stored(int query, int head) const {
    if constexpr (C::kSplits) {
      return p.partial_o + tile.partial_row(p, query, head) * C::kHeadDimV;
    } else {
      return element<StoredElement>(p.o, tile.query_row(p.o_strides, query, head));
    }
  }
};

// Writes again those of the rows [row0, row0 + count), which the threads of this warp have stored,
// that are in use and not finite.
template <class C, class Expressions>
ATTN_DEVICE void write_visible_rows(const ForwardParams& p, const Expressions& e,
                                    const QueryTile<C>& tile, int row0, int count) {
  const VisibleRow<C, Expressions> again{p, e, tile};
  __syncwarp();  // what others have stored is read
#pragma unroll 1
  for (int row = max(row0, 0); row < row0 + count; ++row) {
    if (tile.query_of(row) >= tile.sequence.length_q) return;
    if (!again.is_finite(row)) again.write(row);
  }
}

}  // namespace attn::device
