// Packing for f32 operands: rows of any layout and dtype into contiguous tiles, and O^T back into
// rows.
#pragma once

#include "cpu/kernels/convert.hpp"
#include "cpu/tile_ops.hpp"

namespace attn::cpu::ATTN_ISA {

// out[leading_dim(dim)] <- scale * row, zero past dim.
ATTN_INLINE void pack_row_f32(const std::byte* row, int dim, CacheType source, float scale,
                              float* out) {
  const int ld = leading_dim(dim);
  const F factor = set1(scale);
  int i = 0;
  if (row != nullptr) {
    for (; i + kLanes <= dim; i += kLanes) store(out + i, load_row(row, i, source) * factor);
    if (i < dim) {
      store(out + i, load_row_part(row, i, dim - i, source) * factor);
      i += kLanes;
    }
  }
  for (; i < ld; i += kLanes) store(out + i, F{});
}

// Transposes kCount vectors in place: the numbers of all, one vector after the other, become
// [lane][vector]. It is made of interleaves of halves: log2(kCount) rounds of kCount shuffles.
template <int kCount>
ATTN_INLINE void transpose(F (&x)[kCount]) {
  I low, high;
  for (int i = 0; i < kLanes; ++i) {
    low[i] = i / 2 + (i % 2) * kLanes;
    high[i] = low[i] + kLanes / 2;
  }
#pragma GCC unroll 8
  for (int round = 1; round < kCount; round *= 2) {
    F y[kCount];
#pragma GCC unroll 16
    for (int i = 0; i < kCount / 2; ++i) {
      y[2 * i] = shuffle(x[i], x[i + kCount / 2], low);
      y[2 * i + 1] = shuffle(x[i], x[i + kCount / 2], high);
    }
#pragma GCC unroll 16
    for (int i = 0; i < kCount; ++i) x[i] = y[i];
  }
}

static inline void pack_q_f32(const std::byte* const* row, int count, int dim, CacheType source,
                              const float* scales, float scale, void* q_t) {
  float* out = static_cast<float*>(q_t);
  for (int r0 = 0; r0 < kRows; r0 += kLanes) {
    if (r0 >= count) {
      for (int d = 0; d < dim; ++d) store(out + d * kRows + r0, F{});
      continue;
    }
    for (int d0 = 0; d0 < dim; d0 += kLanes) {
      const int width = dim - d0 < kLanes ? dim - d0 : kLanes;
      F x[kLanes];
      for (int r = 0; r < kLanes; ++r) {
        const std::byte* p = r0 + r < count ? row[r0 + r] : nullptr;
        x[r] = F{};
        if (p == nullptr) continue;
        x[r] = width == kLanes ? load_row(p, d0, source) : load_row_part(p, d0, width, source);
        if (scales != nullptr) x[r] = x[r] * set1(scales[r0 + r]);
        x[r] = x[r] * set1(scale);
      }
      transpose(x);
      for (int d = 0; d < width; ++d) store(out + (d0 + d) * kRows + r0, x[d]);
    }
  }
}

static void pack_rows_f32(const std::byte* const* row, int keys, int dim, CacheType source,
                          const float* scale, void* out) {
  const int ld = leading_dim(dim);
  const auto row_bytes = static_cast<std::size_t>(core::row_bytes(source, dim));
  for (int j = 0; j < keys; ++j) {
    if (j + kRowsAhead < keys && row[j + kRowsAhead] != nullptr) {
      prefetch_row(row[j + kRowsAhead], row_bytes);
    }
    pack_row_f32(row[j], dim, source, scale == nullptr ? 1.0f : scale[j],
                 static_cast<float*>(out) + j * ld);
  }
}

static inline void pack_weighted_rows_f32(const std::byte* const* row, int count, int dim,
                                          DType source, void* x) {
  pack_rows_f32(row, count, dim, core::cache_type(source), nullptr, x);
}

static inline void unpack_o(const float* o_t, int dim, const float* factor, DType target,
                            std::byte* const* row, int count) {
  for (int r0 = 0; r0 < count; r0 += kLanes) {
    const F scale = load(factor + r0);
    for (int d0 = 0; d0 < dim; d0 += kLanes) {
      const int width = dim - d0 < kLanes ? dim - d0 : kLanes;
      F x[kLanes];
      for (int d = 0; d < kLanes; ++d) {
        x[d] = d < width ? load(o_t + (d0 + d) * kRows + r0) * scale : F{};
      }
      transpose(x);
      for (int r = 0; r < kLanes && r0 + r < count; ++r) {
        if (row[r0 + r] != nullptr) store_row(row[r0 + r], d0, width, target, x[r]);
      }
    }
  }
}

static inline void store_row_f32(const float* x, int dim, float factor, DType target,
                                 std::byte* row) {
  for (int d = 0; d < dim; d += kLanes) {
    store_row(row, d, dim - d < kLanes ? dim - d : kLanes, target, load(x + d) * set1(factor));
  }
}

}  // namespace attn::cpu::ATTN_ISA
