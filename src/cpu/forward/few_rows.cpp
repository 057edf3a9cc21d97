#include "cpu/forward/few_rows.hpp"

#include <algorithm>
#include <limits>

#include "core/tensor/element.hpp"
#include "cpu/nonfinite.hpp"

namespace attn::cpu {
namespace {

// Asks for the rows of keys [begin, end) of all heads.
void prefetch(const core::Rows& rows, std::int64_t begin, std::int64_t end, int head_first,
              int heads, std::size_t row_bytes) {
  for (std::int64_t j = begin; j < end; ++j) {
    for (int h = 0; h < heads; ++h) {
      const std::byte* row = rows.row(j, head_first + h);
      for (std::size_t i = 0; i < row_bytes; i += kAlignment) __builtin_prefetch(row + i, 0, 2);
    }
  }
}

void start(const Attention& a, const core::Sequence& sequence, int head_k, HeadState& state) {
  const auto count = static_cast<int>(a.rows(sequence));
  a.describe_query_block(sequence, head_k, 0, count, state.block);
  const std::byte* row[kMaxRows];
  for (int r = 0; r < count; ++r)
    row[r] = sequence.q.row(state.block.query[r], state.block.head[r]);
  a.ops.pack_k(row, count, a.dim, a.problem.dtype, state.q);
  for (int i = 0; i < count * leading_dim(a.dim); ++i) state.q[i] *= a.q_scale();
  std::fill_n(state.o, count * leading_dim(a.dim_v), 0.0f);
}

// What stands in for a value that is set apart (nonfinite.hpp).
alignas(kAlignment) constexpr std::byte kZeroRow[512 * sizeof(float)] = {};

// Whether some score of the tile is -inf.
bool hides_keys(const Attention& a, const float* s, int keys, int count) {
  bool hides = false;
  for (int j = 0; j < keys; ++j) {
    for (int r = 0; r < count; ++r) {
      hides |= s[j * a.ops.rows + r] == -std::numeric_limits<float>::infinity();
    }
  }
  return hides;
}

// o[r] += weight[r] v where the weight is not 0.
void add_value(const Attention& a, const float* weight, int count, const std::byte* v, float* o) {
  const auto size = static_cast<std::ptrdiff_t>(size_of(a.problem.dtype));
  for (int r = 0; r < count; ++r) {
    if (weight[r] == 0) continue;
    for (int d = 0; d < a.dim_v; ++d) {
      o[r * leading_dim(a.dim_v) + d] +=
          weight[r] * static_cast<float>(core::load_element(v + d * size, a.problem.dtype));
    }
  }
}

}  // namespace

void FewRowsScratch::carve(Carver& c) {
  tile.carve(c);
  c.take(head, static_cast<std::size_t>(heads));
  for (std::int64_t h = 0; h < heads; ++h) {
    float* q = nullptr;
    float* o = nullptr;
    c.take(q, static_cast<std::size_t>(kMaxDecodeRows * leading_dim(dim)));
    c.take(o, static_cast<std::size_t>(kMaxDecodeRows * leading_dim(dim_v)));
    if (head != nullptr) {
      head[h].q = q;
      head[h].o = o;
    }
  }
}

std::int64_t most_heads_per_group(const Problem& p) {
  const std::int64_t block_bytes = std::int64_t{kBlockK} * (p.head_dim + p.head_dim_v) *
                                   static_cast<std::int64_t>(size_of(p.dtype));
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
  TileScratch& t = s.tile;
  const DType dtype = a.problem.dtype;
  // The first block; later ones are asked for while the one before computes.
  const std::int64_t first_end = std::min<std::int64_t>(range.begin + kBlockK, range.end);
  prefetch(sequence.k, range.begin, first_end, head_first, heads,
           static_cast<std::size_t>(a.dim) * size_of(dtype));
  prefetch(sequence.v, range.begin, first_end, head_first, heads,
           static_cast<std::size_t>(a.dim_v) * size_of(dtype));
  for (int h = 0; h < heads; ++h) start(a, sequence, head_first + h, s.head[h]);
  std::fill_n(t.s, kBlockK * a.ops.rows, 0.0f);  // lanes without a row
  expr::Tile rows = s.head[0].block.tile;
  rows.head_max = s.head[heads - 1].block.tile.head_max;

  for_visible_blocks(
      a, rows, range.begin, range.end, [&](int key0, int keys, expr::Coverage coverage) {
        const std::int64_t next = key0 + keys;
        for (int h = 0; h < heads; ++h) {
          HeadState& state = s.head[h];
          QueryBlock& block = state.block;
          const std::byte* k[kBlockK];
          const std::byte* v[kBlockK];
          const std::byte* next_k[kBlockK];
          const std::byte* next_v[kBlockK];
          for (int j = 0; j < keys; ++j) {
            k[j] = sequence.k.row(key0 + j, head_first + h);
            v[j] = sequence.v.row(key0 + j, head_first + h);
            // The rows of the next block, all heads of a key after each other as they lie in
            // memory: each head asks for a share. The strides defeat the hardware prefetcher.
            const int row = h * keys + j;
            const std::int64_t key = next + row / heads;
            const int head = head_first + row % heads;
            next_k[j] = key < range.end ? sequence.k.row(key, head) : k[j];
            next_v[j] = key < range.end ? sequence.v.row(key, head) : v[j];
          }
          a.ops.decode_scores(state.q, block.count, k, next_k, keys, a.dim, dtype, t.s);
          a.modify(block, key0, keys, coverage, t);
          a.ops.row_max(t.s, keys, t.row_max);
          const bool hides = coverage == expr::Coverage::mixed ||
                             (a.has_score() && hides_keys(a, t.s, keys, block.count));
          a.ops.softmax(t.s, keys, a.c(), t.row_max, a.keep(block, key0, keys, t), block.m, block.l,
                        t.alpha, t.s);
          const std::uint64_t apart = hides ? a.ops.nonfinite_rows(v, keys, a.dim_v, dtype) : 0;
          for_each_bit(apart, keys, [&](int j) { v[j] = kZeroRow; });
          a.ops.decode_accumulate(t.s, block.count, v, next_v, keys, a.dim_v, dtype, t.alpha,
                                  state.o);
          for_each_bit(apart, keys, [&](int j) {
            add_value(a, t.s + j * a.ops.rows, block.count,
                      sequence.v.row(key0 + j, head_first + h), state.o);
          });
        }
      });
}

void transpose_few_rows(const Attention& a, const HeadState& head, float* o_t) {
  const int rows = a.ops.rows;
  const int ld = leading_dim(a.dim_v);
  for (int d = 0; d < a.dim_v; ++d) {
    for (int r = 0; r < rows; ++r)
      o_t[d * rows + r] = r < head.block.count ? head.o[r * ld + d] : 0.0f;
  }
}

}  // namespace attn::cpu
