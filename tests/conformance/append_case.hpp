// A call of append_kv with random shapes, options and values, in memory of its own.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "attn/append_kv.hpp"
#include "core/cache_type.hpp"
#include "core/tensor/element.hpp"

namespace attn::testing {

// A tensor with gaps after each row of the last dimension, and the memory that it is a view of.
struct Owned {
  std::vector<std::byte> memory;
  Tensor view;

  Owned() = default;
  Owned(DType dtype, std::vector<std::int64_t> shape, std::int64_t gap = 0) {
    view.dtype = dtype;
    view.rank = static_cast<std::int32_t>(shape.size());
    std::int64_t stride = 1;
    for (std::size_t axis = shape.size(); axis-- > 0;) {
      view.shape[axis] = shape[axis];
      view.strides[axis] = stride;
      stride *= shape[axis];
      if (axis + 1 == shape.size()) stride += gap;
    }
    memory.assign(static_cast<std::size_t>(stride) * size_of(dtype), std::byte{0xa5});
    view.data = memory.data();
  }
  Owned(const Owned& other) : memory(other.memory), view(other.view) { view.data = memory.data(); }
  Owned& operator=(const Owned&) = delete;
  Owned(Owned&& other) noexcept : memory(std::move(other.memory)), view(other.view) {
    view.data = memory.data();
  }
  Owned& operator=(Owned&& other) noexcept {
    memory = std::move(other.memory);
    view = other.view;
    view.data = memory.data();
    return *this;
  }
  std::byte* at(std::initializer_list<std::int64_t> index) const {
    return static_cast<std::byte*>(view.data) +
           view.offset(index) * static_cast<std::int64_t>(size_of(view.dtype));
  }
};

// A row that a call must write: which new row, of which sequence, and where it goes in the caches
// (-1: nowhere).
struct ExpectedRow {
  std::int64_t sequence = 0, index = 0;  // index: within the sequence
  std::int64_t block = -1, in_block = 0;
  std::int64_t rope_position = 0;
  std::int64_t row = 0;  // of packed tensors
};

class AppendCase {
 public:
  explicit AppendCase(std::uint64_t seed) : random_(seed) { draw(); }

  AppendProblem problem;
  AppendInputs in;
  AppendOutputs out;
  std::vector<ExpectedRow> expected;
  bool packed = false, paged = false;
  Owned q, k, v, to_q, to_k, to_v, scale_k, scale_v;

  std::int64_t in_seqlen() const { return seqlen_; }
  std::string text() const {
    return to_string(in.q) + ' ' + to_string(in.k) + ' ' + to_string(in.v) + " to " +
           to_string(out.k) + ' ' + to_string(out.v) + " types " +
           std::string(name(problem.type_k)) + ' ' + std::string(name(problem.type_v)) +
           (problem.ring ? " ring" : "") + (in.seqused.given() ? " seqused" : "") +
           (paged ? " paged" : "") + (problem.norm ? " norm" : "") + ' ' +
           std::string(name(problem.rope_pairs)) + ' ' + to_string(in.inv_freq) + ' ' +
           to_string(in.cos) + (problem.hadamard ? " hadamard" : "") +
           (problem.hadamard_v ? " hadamard_v" : "");
  }

 private:
  // A position or page of no row that is written.
  static constexpr std::int32_t kNeverRead = 1 << 30;

  std::int64_t below(std::int64_t count) {
    return std::uniform_int_distribution<std::int64_t>(0, count - 1)(random_);
  }
  bool chance(int percent) { return below(100) < percent; }
  template <class T, std::size_t n>
  T one_of(const T (&all)[n]) {
    return all[below(static_cast<std::int64_t>(n))];
  }

  void fill(Owned& t, double magnitude = 1) {
    std::normal_distribution<double> normal;
    for (std::size_t i = 0; i + size_of(t.view.dtype) <= t.memory.size();
         i += size_of(t.view.dtype)) {
      core::store_element(t.memory.data() + i, t.view.dtype, magnitude * normal(random_));
    }
  }
  // int32 or int64.
  Owned integers(const std::vector<std::int32_t>& values, std::vector<std::int64_t> shape) {
    Owned t(chance(50) ? DType::i64 : DType::i32, std::move(shape));
    for (std::size_t i = 0; i < values.size(); ++i) {
      const std::int64_t wide = values[i];
      const std::size_t bytes = size_of(t.view.dtype);
      const void* const from = bytes == 8 ? static_cast<const void*>(&wide) : &values[i];
      std::memcpy(t.memory.data() + i * bytes, from, bytes);
    }
    return t;
  }

  void draw();
  void draw_sequences();
  void draw_places();
  void draw_rope();
  Owned rows(std::int64_t heads, std::int64_t dim) {
    const auto dtype = one_of({DType::f32, DType::bf16, DType::f16});
    const std::int64_t gap = chance(30) ? 8 : 0;
    Owned t = packed ? Owned(dtype, {total_, heads, dim}, gap)
                     : Owned(dtype, {batch_, seqlen_, heads, dim}, gap);
    fill(t, chance(20) ? 30 : 1);
    return t;
  }
  Owned result_like(const Tensor& t) {
    std::vector<std::int64_t> shape(t.shape.begin(), t.shape.begin() + t.rank);
    return {one_of({DType::f32, DType::bf16, DType::f16}), shape, chance(30) ? 8 : 0};
  }
  // The cache of K or V, and its scales.
  void draw_cache(CacheType& type, const Tensor& from, Owned& to, Owned& scale, Tensor& scale_in,
                  Tensor& scale_out);

  std::mt19937_64 random_;
  std::int64_t batch_ = 0, seqlen_ = 0, total_ = 0, blocks_ = 0, block_rows_ = 0, width_ = 0;
  std::vector<std::int64_t> lengths_, used_;  // rows of a sequence with padding, and without
  Owned cu_seqlens_, seqused_, cache_seqlens_, positions_, rope_positions_, table_, inv_freq_, cos_,
      sin_, weight_q_, weight_k_, given_k_, given_v_;
};

inline void AppendCase::draw_sequences() {
  batch_ = 1 + below(4);
  packed = chance(50);
  seqlen_ = chance(50) ? 1 + below(3) : 1 + below(24);
  std::vector<std::int32_t> starts{0};
  for (std::int64_t b = 0; b < batch_; ++b) {
    lengths_.push_back(packed ? below(seqlen_ + 1) : seqlen_);
    starts.push_back(starts.back() + static_cast<std::int32_t>(lengths_.back()));
  }
  total_ = starts.back() + (packed ? below(3) : 0);  // rows of no sequence
  if (packed) {
    cu_seqlens_ = integers(starts, {batch_ + 1});
    in.cu_seqlens = cu_seqlens_.view;
  }
  used_ = lengths_;
  if (!chance(40)) return;
  std::vector<std::int32_t> counts;
  for (std::int64_t& used : used_) {
    used = below(used + 1);
    counts.push_back(static_cast<std::int32_t>(used));
  }
  seqused_ = integers(counts, {batch_});
  in.seqused = seqused_.view;
}

// Positions, the table of pages, and what has to come out of them.
inline void AppendCase::draw_places() {
  paged = chance(50);
  problem.ring = chance(30);
  block_rows_ = paged ? 1 + below(9) : 1 + below(60);
  width_ = paged ? 1 + below(8) : 1;
  if (!problem.ring) {
    width_ = std::max(width_, paged ? seqlen_ / block_rows_ + 1 : 1);
    block_rows_ = paged ? block_rows_ : std::max(block_rows_, seqlen_);
  }
  const std::int64_t capacity = block_rows_ * width_;
  blocks_ = paged ? batch_ * width_ + below(5) : batch_;
  std::vector<std::int32_t> pages;
  if (paged) {
    for (std::int64_t i = 0; i < blocks_; ++i) pages.push_back(static_cast<std::int32_t>(i));
    std::shuffle(pages.begin(), pages.end(), random_);
    pages.resize(static_cast<std::size_t>(batch_ * width_));
  }
  const bool follow = chance(60);
  std::vector<std::int32_t> starts, of_rows;
  std::vector<bool> named(static_cast<std::size_t>(batch_ * width_), false);
  for (std::int64_t b = 0, row = 0; b < batch_; ++b) {
    const std::int64_t length = lengths_[static_cast<std::size_t>(b)];
    const std::int64_t used = used_[static_cast<std::size_t>(b)];
    const std::int64_t start = problem.ring ? below(3 * capacity + 1) : below(capacity - used + 1);
    starts.push_back(static_cast<std::int32_t>(start));
    // Or a few of the positions from there on, in any order.
    std::vector<std::int64_t> order;
    for (std::int64_t p = 0; p < std::min(capacity, problem.ring ? capacity : capacity - start);
         ++p) {
      order.push_back(start + p);
    }
    std::shuffle(order.begin(), order.end(), random_);
    for (std::int64_t i = 0; i < length; ++i, ++row) {
      ExpectedRow r{.sequence = b, .index = i, .row = row};
      std::int64_t position = start + i;
      if (i >= used) {
        of_rows.push_back(kNeverRead);
        continue;
      }
      if (!follow) {
        const bool none = i >= std::ssize(order) || chance(15);
        position = none ? -1 - below(3) : order[static_cast<std::size_t>(i)];
        of_rows.push_back(static_cast<std::int32_t>(position));
        if (none) continue;
      }
      r.rope_position = position;
      const bool stays = !(follow && problem.ring) || i >= used - capacity;
      if (stays) {
        const std::int64_t place = position % capacity, page = place / block_rows_;
        r.in_block = place % block_rows_;
        r.block = paged ? pages[static_cast<std::size_t>(b * width_ + page)] : b;
        named[static_cast<std::size_t>(b * width_ + page)] = true;
      }
      expected.push_back(r);
    }
  }
  if (follow) {
    cache_seqlens_ = integers(starts, {batch_});
    in.cache_seqlens = cache_seqlens_.view;
  } else {
    of_rows.resize(static_cast<std::size_t>(packed ? total_ : batch_ * seqlen_), -1);
    positions_ = packed ? integers(of_rows, {total_}) : integers(of_rows, {batch_, seqlen_});
    in.positions = positions_.view;
  }
  if (paged) {
    for (std::size_t i = 0; i < named.size(); ++i) {  // pages without a new row may be anything
      if (!named[i] && chance(50)) pages[i] = chance(50) ? -1 : kNeverRead;
    }
    table_ = integers(pages, {batch_, width_});
    in.page_table = table_.view;
  }
}

inline void AppendCase::draw_rope() {
  if (chance(25)) return;
  problem.rope_pairs = chance(50) ? RopePairs::halves : RopePairs::interleaved;
  const Tensor& of = in.q.given() ? in.q : in.k;
  const std::int64_t most = of.shape[static_cast<std::size_t>(of.rank - 1)] / 2;
  if (most == 0) return;
  const std::int64_t pairs = chance(50) ? most : 1 + below(most);
  if (chance(40)) {
    std::vector<std::int32_t> positions(
        static_cast<std::size_t>(packed ? total_ : batch_ * seqlen_), kNeverRead);
    for (ExpectedRow& r : expected) {
      r.rope_position = below(200);
      positions[static_cast<std::size_t>(packed ? r.row : r.sequence * seqlen_ + r.index)] =
          static_cast<std::int32_t>(r.rope_position);
    }
    rope_positions_ =
        packed ? integers(positions, {total_}) : integers(positions, {batch_, seqlen_});
    in.rope_positions = rope_positions_.view;
  }
  if (chance(50)) {
    inv_freq_ = Owned(DType::f32, {pairs});
    for (std::int64_t i = 0; i < pairs; ++i) {
      core::store_element(inv_freq_.at({i}), DType::f32,
                          std::pow(10000.0, -static_cast<double>(i) / static_cast<double>(pairs)));
    }
    in.inv_freq = inv_freq_.view;
    return;
  }
  std::int64_t positions = 200;
  for (const ExpectedRow& r : expected) positions = std::max(positions, r.rope_position + 1);
  cos_ = Owned(DType::f32, {positions, pairs}, 3);
  sin_ = Owned(DType::f32, {positions, pairs});
  fill(cos_);
  fill(sin_);
  in.cos = cos_.view;
  in.sin = sin_.view;
}

inline void AppendCase::draw_cache(CacheType& type, const Tensor& from, Owned& to, Owned& scale,
                                   Tensor& scale_in, Tensor& scale_out) {
  const std::int64_t dim = from.shape[static_cast<std::size_t>(from.rank - 1)];
  const std::int64_t heads = from.shape[static_cast<std::size_t>(from.rank - 2)];
  do {
    type =
        one_of({CacheType::as_q, CacheType::f32, CacheType::bf16, CacheType::f16, CacheType::e4m3,
                CacheType::e5m2, CacheType::i8, CacheType::q8_0, CacheType::q4_0});
  } while (core::is_blocked(type) && dim % core::kCacheBlock != 0);
  const DType stored = type == CacheType::as_q ? from.dtype : storage_dtype(type);
  to = Owned(stored, {blocks_, block_rows_, heads, row_size(type, dim)}, chance(30) ? 5 : 0);
  if (!core::is_scaled(type) || chance(20)) return;
  if (chance(60)) {
    scale = Owned(DType::f32, {blocks_, block_rows_, heads});
    scale_out = scale.view;
    return;
  }
  scale = Owned(DType::f32, {chance(50) ? 1 : heads});
  for (std::int64_t i = 0; i < scale.view.shape[0]; ++i) {
    core::store_element(scale.at({i}), DType::f32, 0.01 * static_cast<double>(1 + below(9)));
  }
  scale_in = scale.view;
}

inline void AppendCase::draw() {
  draw_sequences();
  draw_places();
  const std::int64_t dim = one_of({8, 20, 32, 64, 96, 128, 130, 1, 7, 576});
  const std::int64_t heads = 1 + below(3);
  const std::int64_t given = below(8);  // mostly all of them
  if (given != 1 && given != 2) {
    q = rows(1 + below(6), dim);
    in.q = q.view;
    to_q = result_like(q.view);
    out.q = to_q.view;
  }
  if (given != 2) {
    k = rows(heads, dim);
    in.k = k.view;
    draw_cache(problem.type_k, k.view, to_k, scale_k, in.scale_k, out.scale_k);
    out.k = to_k.view;
  }
  if (given != 3) {
    v = rows(heads, chance(70) ? dim : 32);
    in.v = v.view;
    draw_cache(problem.type_v, v.view, to_v, scale_v, in.scale_v, out.scale_v);
    out.v = to_v.view;
  }
  if (given != 2) draw_rope();
  problem.norm = chance(40);
  problem.norm_eps = chance(50) ? 1e-6 : 0.1;
  if (problem.norm && chance(70)) {
    for (const auto& [of, weight, to] : {std::tuple(&in.q, &weight_q_, &in.norm_weight_q),
                                         std::tuple(&in.k, &weight_k_, &in.norm_weight_k)}) {
      if (!of->given()) continue;
      *weight = Owned(one_of({DType::f32, DType::bf16, DType::f16}), {dim});
      fill(*weight);
      *to = weight->view;
    }
  }
  problem.hadamard = chance(30);
  problem.hadamard_v = chance(30);
}

}  // namespace attn::testing
