#include "cpu/forward/few_rows.hpp"

#include <algorithm>
#include <limits>

#include "core/cached_rows.hpp"
#include "cpu/nonfinite.hpp"

namespace attn::cpu {
namespace {

bool has_bf16_operands(const Attention& a) { return a.ops.operand == DType::bf16; }

// A thread's state of the verbs of bf16 operands, for blocks of `count` rows.
class DecodeState {
 public:
  DecodeState(const Attention& a, int count) : leave_(a.ops.decode.leave) {
    if (a.ops.decode.enter != nullptr) a.ops.decode.enter(count);
  }
  ~DecodeState() {
    if (leave_ != nullptr) leave_();
  }
  DecodeState(const DecodeState&) = delete;
  DecodeState& operator=(const DecodeState&) = delete;

 private:
  void (*leave_)();
};

void start(const Attention& a, const core::Sequence& sequence, int head_k, HeadState& state) {
  const auto count = static_cast<int>(a.rows(sequence));
  a.describe_query_block(sequence, head_k, 0, count, state.block);
  const std::byte* row[kMaxRows];
  for (int r = 0; r < count; ++r)
    row[r] = sequence.q.row(state.block.query[r], state.block.head[r]);
  std::fill_n(state.o, count * leading_dim(a.dim_v), 0.0f);
  std::fill_n(state.s, kBlockK * kMaxDecodeRows, 0.0f);  // lanes without a row
  if (has_bf16_operands(a)) return a.ops.decode.pack_q(row, count, a.dim, state.q);
  float scale[kMaxRows];
  a.ops.pack_k(row, count, a.dim, a.type_q, a.scales_of_q(sequence, state.block, scale), state.q);
  for (int i = 0; i < count * leading_dim(a.dim); ++i) state.q[i] *= a.q_scale();
}

// Scores or P of a block times the scales of K or V, which multiply all elements of a row: so they
// need not multiply each. keep_zeros: 0, as of a key that a row does not see, whatever the scale.
void scale_scores(const Attention& a, const Tensor& scales, const core::Sequence& sequence,
                  int head_k, int key0, int keys, bool keep_zeros, HeadState& state) {
  float scale[kBlockK];
  if (a.scales(scales, sequence, head_k, key0, keys, scale) == nullptr) return;
  const int stride = decode_row_stride(state.block.count);
  for (int j = 0; j < keys; ++j) {
    for (int r = 0; r < state.block.count; ++r) {
      float& x = state.s[j * stride + r];
      if (x != 0 || !keep_zeros) x *= scale[j];
    }
  }
}

// What stands in for a value that is set apart (nonfinite.hpp).
alignas(kAlignment) constexpr std::byte kZeroRow[kMaxHeadDim * sizeof(float)] = {};

// Whether some score of the tile is -inf.
bool hides_keys(const float* s, int keys, int count) {
  const int stride = decode_row_stride(count);
  bool hides = false;
  for (int j = 0; j < keys; ++j) {
    for (int r = 0; r < count; ++r) {
      hides |= s[j * stride + r] == -std::numeric_limits<float>::infinity();
    }
  }
  return hides;
}

// Expression and mask over the scores of a head, by way of the tile that they take.
void modify(const Attention& a, int key0, int keys, expr::Coverage coverage, HeadState& state,
            TileScratch& t) {
  const int stride = decode_row_stride(state.block.count);
  for (int j = 0; j < keys; ++j) std::copy_n(state.s + j * stride, stride, t.s + j * a.ops.rows);
  a.modify(state.block, key0, keys, coverage, t);
  for (int j = 0; j < keys; ++j) std::copy_n(t.s + j * a.ops.rows, stride, state.s + j * stride);
}

// Scores of a block to P, with m, l and alpha. again: O was not finite (nonfinite.hpp).
void soften(const Attention& a, int key0, int keys, expr::Coverage coverage, bool again,
            HeadState& state, TileScratch& t) {
  QueryBlock& block = state.block;
  if (may_hide(a, coverage)) modify(a, key0, keys, coverage, state, t);
  state.hides_keys = coverage == expr::Coverage::mixed ||
                     ((a.has_score() || again) && hides_keys(state.s, keys, block.count));
  a.ops.decode_softmax(state.s, block.count, keys, a.c(), a.keep(block, key0, keys, t), block.m,
                       block.l, state.alpha);
}

// o[r] += weight[r] v where the weight is not 0.
void add_value(const Attention& a, const float* weight, int count, const std::byte* v, float* o) {
  for (int r = 0; r < count; ++r) {
    if (weight[r] == 0) continue;
    for (int d = 0; d < a.dim_v; ++d) {
      o[r * leading_dim(a.dim_v) + d] +=
          weight[r] * static_cast<float>(core::cached_element(v, d, a.type_v));
    }
  }
}

// o <- alpha o + P V of a head for `keys` <= kDecodeKeys keys; p: their P.
void accumulate(const Attention& a, const std::byte* const* v, const std::byte* const* ahead,
                int keys, const float* p, const float* alpha, HeadState& state) {
  const int count = state.block.count;
  if (!state.hides_keys) {
    return a.ops.decode_accumulate(p, count, v, ahead, keys, a.dim_v, a.type_v, alpha, state.o);
  }
  const std::uint64_t apart = a.ops.nonfinite_rows(v, keys, a.dim_v, a.type_v);
  const std::byte* finite[kDecodeKeys];
  std::copy_n(v, keys, finite);
  for_each_bit(apart, keys, [&](int j) { finite[j] = kZeroRow; });
  a.ops.decode_accumulate(p, count, finite, ahead, keys, a.dim_v, a.type_v, alpha, state.o);
  for_each_bit(apart, keys, [&](int j) {
    add_value(a, p + j * decode_row_stride(count), count, v[j], state.o);
  });
}

// The same with bf16 operands of keys [key, key + n) of a block of `keys`: the products come where
// kStagedKeys keys are there. row_of_v(j): that of its key j.
template <class RowOfV>
void accumulate_pairs(const Attention& a, const std::byte* const* v, const std::byte* const* ahead,
                      int key, int n, int keys, const float* ones, const RowOfV& row_of_v,
                      HeadState& state) {
  const std::byte* row[kDecodeKeys];
  std::copy_n(v, n, row);
  if (key == 0) state.v_apart = 0;
  if (state.hides_keys) {
    const std::uint64_t apart = a.ops.nonfinite_rows(v, n, a.dim_v, a.type_v);
    for_each_bit(apart, n, [&](int j) { row[j] = kZeroRow; });
    state.v_apart |= apart << key;
  }
  const auto stage = [&](int at, int count) {
    a.ops.decode.stage_values(row, ahead, count, a.dim_v, a.type_v,
                              state.v + at % kStagedKeys / 2 * a.dim_v);
  };
  stage(key, n);
  const int end = key + n;
  if (end < keys && end % kStagedKeys != 0) return;
  const int first = key / kStagedKeys * kStagedKeys;
  for (int at = key + kDecodeKeys; at < first + kStagedKeys; at += kDecodeKeys) stage(at, 0);
  const int count = state.block.count, stride = decode_row_stride(count);
  a.ops.decode.accumulate(state.s + first * stride, count, state.v, end - first, a.dim_v,
                          first == 0 ? state.alpha : ones, state.o);
  for_each_bit(state.v_apart, end, [&](int j) {
    if (j >= first) add_value(a, state.s + j * stride, count, row_of_v(j), state.o);
  });
}

// Rows are asked for this long before they are used, into L1: at a quarter of this they come late
// (docs/log/cpu.md), and a quarter of an L1 of 32 KB stays there until then.
constexpr std::int64_t kAheadBytes = std::int64_t{8} << 10;
constexpr int kMostAhead = kBlockK;  // keys

// The addresses of the rows of a block of keys, of the first head, and of those that follow.
class BlockRows {
 public:
  // Rows [first, first + keys) of `rows`, then those from `next` on of `after`, before `end`.
  BlockRows(const core::Rows& rows, int head, std::int64_t first, int keys, const core::Rows& after,
            std::int64_t next, std::int64_t end)
      : keys_(keys), head_stride_(rows.head_stride), after_stride_(after.head_stride) {
    for (int j = 0; j < keys; ++j) row_[j] = rows.row(first + j, head);
    for (int j = 0; j < kMostAhead; ++j) {
      row_[keys + j] = next + j < end ? after.row(next + j, head) : row_[keys + j - 1];
    }
  }

  // Calls visit(head, key, n, row, ahead) for kDecodeKeys keys after kDecodeKeys keys (`n` of them
  // at the end) and for each of `heads` heads: as they lie in memory, if heads lie side by side.
  // ahead[j]: rows, of row_bytes bytes, that are visited kAheadBytes later.
  template <class Visit>
  void visit(int heads, std::int64_t row_bytes, const Visit& visit) const {
    const std::int64_t most = std::int64_t{heads} * (kMostAhead / kDecodeKeys - 1);
    const auto visits = static_cast<int>(
        std::clamp<std::int64_t>(kAheadBytes / (kDecodeKeys * row_bytes), 1, most));
    int ahead_key = visits / heads * kDecodeKeys;
    int ahead_head = visits % heads;
    for (int key = 0; key < keys_; key += kDecodeKeys) {
      const int n = std::min(kDecodeKeys, keys_ - key);
      for (int h = 0; h < heads; ++h) {
        const std::int64_t ahead_offset =
            ahead_head * (ahead_key < keys_ ? head_stride_ : after_stride_);
        const std::byte* row[kDecodeKeys];
        const std::byte* ahead[kDecodeKeys];
        for (int j = 0; j < kDecodeKeys; ++j) {
          row[j] = row_[key + j] + h * head_stride_;
          ahead[j] = row_[ahead_key + j] + ahead_offset;
        }
        visit(h, key, n, row, ahead);
        if (++ahead_head == heads) {
          ahead_head = 0;
          ahead_key += kDecodeKeys;
        }
      }
    }
  }

 private:
  int keys_;
  std::int64_t head_stride_, after_stride_;
  const std::byte* row_[kBlockK + kMostAhead];
};

bool has_finite_output(const Attention& a, const HeadState& state) {
  const std::byte* row[kMaxDecodeRows];
  for (int r = 0; r < state.block.count; ++r) {
    row[r] = reinterpret_cast<const std::byte*>(state.o + r * leading_dim(a.dim_v));
  }
  return a.ops.nonfinite_rows(row, state.block.count, a.dim_v, CacheType::f32) == 0;
}

void attend_keys(const Attention& a, const core::Sequence& sequence, int head_first, int heads,
                 const KeyRange& range, bool again, FewRowsScratch& s) {
  // The alpha of all keys of a block but the first ones, whose own alpha rescales the sums so far.
  constexpr float kOnes[kMaxDecodeRows] = {1, 1, 1, 1, 1, 1, 1, 1};
  TileScratch& t = s.tile;
  const bool pairs = has_bf16_operands(a);
  const DecodeState decode_state(a, static_cast<int>(a.rows(sequence)));
  for (int h = 0; h < heads; ++h) start(a, sequence, head_first + h, s.head[h]);
  std::fill_n(t.s, kBlockK * a.ops.rows, 0.0f);  // lanes without a row
  expr::Tile rows = s.head[0].block.tile;
  rows.head_max = s.head[heads - 1].block.tile.head_max;

  for_visible_blocks(
      a, rows, range.begin, range.end, [&](int key0, int keys, expr::Coverage coverage) {
        const core::Rows& k = sequence.k;
        const core::Rows& v = sequence.v;
        const BlockRows k_rows(k, head_first, key0, keys, v, key0, range.end);
        k_rows.visit(
            heads, core::row_bytes(a.type_k, a.dim),
            [&](int h, int key, int n, const std::byte* const* row, const std::byte* const* ahead) {
              const HeadState& state = s.head[h];
              const int count = state.block.count;
              float* const scores = state.s + key * decode_row_stride(count);
              if (pairs) {
                a.ops.decode.scores(state.q, count, row, ahead, n, a.dim, a.type_k, scores);
              } else {
                a.ops.decode_scores(state.q, count, row, ahead, n, a.dim, a.type_k, scores);
              }
            });
        for (int h = 0; h < heads; ++h) {
          const int head = head_first + h;
          HeadState& state = s.head[h];
          scale_scores(a, a.inputs.scale_k, sequence, head, key0, keys, false, state);
          soften(a, key0, keys, coverage, again, state, t);
          scale_scores(a, a.inputs.scale_v, sequence, head, key0, keys, state.hides_keys, state);
        }
        const BlockRows v_rows(v, head_first, key0, keys, k, key0 + keys, range.end);
        v_rows.visit(
            heads, core::row_bytes(a.type_v, a.dim_v),
            [&](int h, int key, int n, const std::byte* const* row, const std::byte* const* ahead) {
              HeadState& state = s.head[h];
              if (pairs) {
                const auto row_of_v = [&](int j) { return v.row(key0 + j, head_first + h); };
                return accumulate_pairs(a, row, ahead, key, n, keys, kOnes, row_of_v, state);
              }
              accumulate(a, row, ahead, n, state.s + key * decode_row_stride(state.block.count),
                         key == 0 ? state.alpha : kOnes, state);
            });
      });
}

}  // namespace

void FewRowsScratch::carve(Carver& c) {
  tile.carve(c);
  c.take(head, static_cast<std::size_t>(heads));
  for (std::int64_t h = 0; h < heads; ++h) {
    float* q = nullptr;
    float* o = nullptr;
    float* scores = nullptr;
    float* alpha = nullptr;
    c.take(q, static_cast<std::size_t>(kMaxDecodeRows * leading_dim(dim)));
    c.take(o, static_cast<std::size_t>(kMaxDecodeRows * leading_dim(dim_v)));
    c.take(scores, static_cast<std::size_t>(kBlockK) * kMaxDecodeRows);
    c.take(alpha, static_cast<std::size_t>(kMaxRows));
    std::uint32_t* v = nullptr;
    if (tile.operand == DType::bf16) {
      c.take(v, static_cast<std::size_t>(kStagedKeys) / 2 * static_cast<std::size_t>(dim_v));
    }
    if (head != nullptr) {
      head[h].q = q;
      head[h].o = o;
      head[h].s = scores;
      head[h].alpha = alpha;
      head[h].v = v;
    }
  }
}

std::int64_t most_heads_per_group(const Problem& p) {
  const std::int64_t block_bytes = kBlockK * (core::row_bytes(core::type_of_k(p), p.head_dim) +
                                              core::row_bytes(core::type_of_v(p), p.head_dim_v));
  return std::clamp<std::int64_t>(kHeadGroupBytes / block_bytes, 1, p.heads_k);
}

std::int64_t heads_per_group(const Attention& a) {
  const core::Rows& k = a.sequences.front().k;
  return k.head_stride >= k.row_stride ? 1 : most_heads_per_group(a.problem);
}

FewRowsScratch few_rows_scratch(const Attention& a) {
  FewRowsScratch s;
  s.dim = a.dim;
  s.dim_v = a.dim_v;
  s.heads = heads_per_group(a);
  s.tile = a.tile_scratch();
  return s;
}

void attend_few_rows(const Attention& a, const core::Sequence& sequence, int head_first, int heads,
                     const KeyRange& range, FewRowsScratch& s) {
  attend_keys(a, sequence, head_first, heads, range, false, s);
  const bool finite = std::all_of(
      s.head, s.head + heads, [&](const HeadState& state) { return has_finite_output(a, state); });
  if (!finite && !a.has_score()) attend_keys(a, sequence, head_first, heads, range, true, s);
}

void save_few_rows(const Attention& a, const HeadState& head, const Partial& partial) {
  const int count = head.block.count;
  const int rows = partial_rows(a.problem, a.ops.rows);
  const int ld = leading_dim(a.dim_v);
  std::copy_n(head.block.m, rows, partial.m);
  std::copy_n(head.block.l, rows, partial.l);
  for (int d = 0; d < a.dim_v; ++d) {
    for (int r = 0; r < rows; ++r)
      partial.o_t[d * rows + r] = r < count ? head.o[r * ld + d] : 0.0f;
  }
}

}  // namespace attn::cpu
