// Rows of floating numbers become those of caches (attn::quantize): rotation, scale, rounding. Some
// lanes of a warp have a row in registers, and go on with the rows behind it.
//
// Rows that share a scale take three launches: clear_scales; find_scales, which leaves the largest
// scale of the rows in the first one's place; quantize.
// Grid: blocks of kQuantizeThreads, Rows::kLanes lanes for each `rows_together` rows; of
// clear_scales a thread a row.
#pragma once

#include "device.cuh"
#include "kernels/quantize_params.cuh"
#include "tile/cached_row.cuh"

namespace attn::device {

// A row's number along each axis, and where it lies, in elements.
struct QuantizedRow {
  long long index[kQuantizeAxes];
  long long in_block;  // rows of its block before it
  long long x, to, scale;

  ATTN_DEVICE QuantizedRow(const QuantizeParams& p, long long row) : x(0), to(0), scale(0) {
#pragma unroll
    for (int axis = 0; axis < kQuantizeAxes; ++axis) {
      const long long rest = axis + 1 < kQuantizeAxes ? row / p.sizes[axis] : 0;
      index[axis] = row - rest * p.sizes[axis];
      row = rest;
      x += index[axis] * p.x_strides[axis];
      to += index[axis] * p.to_strides[axis];
      scale += index[axis] * p.scale_strides[axis];
    }
    in_block = p.block == 1 ? 0 : index[0] % p.block;
  }
  ATTN_DEVICE void next(const QuantizeParams& p) {
    x += p.x_strides[0];
    to += p.to_strides[0];
    scale += p.scale_strides[0];
    if (++in_block == p.block) in_block = 0;
    ++index[0];
#pragma unroll
    for (int axis = 0; axis + 1 < kQuantizeAxes; ++axis) {
      if (index[axis] < p.sizes[axis]) return;
      index[axis] = 0;
      if (axis == 0) in_block = 0;
      ++index[axis + 1];
      x += p.x_wraps[axis];
      to += p.to_wraps[axis];
      scale += p.scale_wraps[axis];
    }
  }
  // The scale of the first row of its block stands for all.
  ATTN_DEVICE float* shared_scale(const QuantizeParams& p) const {
    return p.scale + scale - in_block * p.scale_strides[0];
  }
  // Whether no row before it has its shared scale.
  ATTN_DEVICE bool is_first(const QuantizeParams& p) const {
    bool first = in_block == 0;
#pragma unroll
    for (int axis = 0; axis < kQuantizeAxes; ++axis) {
      first = first && (p.scale_strides[axis] != 0 || index[axis] == 0);
    }
    return first;
  }
};

// Where a row goes. `inside`: whether it is one.
struct QuantizedPlace {
  bool inside;
  long long to;
  float *own_scale, *shared_scale;
};

// Calls body(row, at) for the rows that this lane shares with others, one after the other. So that
// many loads are on their way at once, kAhead rows are loaded before the first of them is used. All
// lanes of the warp make the same calls; those behind the last row have `at.inside` false.
template <class Rows, class Body>
ATTN_DEVICE void for_rows(const QuantizeParams& p, const Body& body) {
  constexpr int kAhead = Rows::kPackets >= 2 ? 1 : 2;
  const long long thread = blockIdx.x * static_cast<long long>(kQuantizeThreads) + threadIdx.x;
  const long long first = thread / Rows::kLanes * p.rows_together;
  const long long end = min(first + p.rows_together, p.rows);
  Rows rows(static_cast<int>(threadIdx.x % Rows::kLanes));
  if constexpr (Rows::kRotates) rows.negate(p.negated);
  QuantizedRow row(p, min(first, p.rows - 1));
  for (long long i = 0; i < p.rows_together; i += kAhead) {
    typename Rows::Loaded loaded[kAhead];
    QuantizedPlace at[kAhead];
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      at[j] = {first + i + j < end, row.to, p.scale + row.scale, row.shared_scale(p)};
      // Behind the last row it is loaded again: a branch here would wait for each load.
      loaded[j] = rows.load(element<typename Rows::From>(p.x, row.x));
      if (first + i + j + 1 < end) row.next(p);
    }
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      rows.take(loaded[j]);
      if constexpr (Rows::kRotates) rows.rotate();
      body(rows, at[j]);
    }
  }
}

template <class Rows, QuantizeScale kScale>
ATTN_DEVICE void quantize(const QuantizeParams& p) {
  const float* place = nullptr;
  float shared = 1;
  for_rows<Rows>(p, [&](const Rows& row, const QuantizedPlace& at) {
    float scale = 1;
    if constexpr (kScale == QuantizeScale::row) {
      scale = row.own_scale();
      if (scale == no_scale()) scale = 1;
      if (at.inside && row.lane == 0) *at.own_scale = scale;
    } else if constexpr (kScale == QuantizeScale::shared) {
      if (at.inside && at.shared_scale != place) {
        place = at.shared_scale;
        shared = *at.shared_scale;
        if (shared == no_scale()) {
          shared = 1;
          if (row.lane == 0) *at.shared_scale = 1;
        }
      }
      scale = shared;
      if (at.inside && row.lane == 0 && at.own_scale != at.shared_scale) *at.own_scale = scale;
    }
    row.store(p.to, at.to, scale, at.inside);
  });
}

// Rows that share a scale lie behind each other, so that it is written few times.
template <class Rows>
ATTN_DEVICE void find_scales(const QuantizeParams& p) {
  float* place = nullptr;
  float largest = no_scale();
  const auto write = [&] {
    // Scales only grow, so that one that is not larger than what is there need not be written.
    auto* const bits = reinterpret_cast<int*>(place);
    const int mine = __float_as_int(largest);
    if (threadIdx.x % Rows::kLanes == 0 && place != nullptr &&
        mine > *static_cast<volatile int*>(bits)) {
      atomicMax(bits, mine);
    }
  };
  for_rows<Rows>(p, [&](const Rows& row, const QuantizedPlace& at) {
    const float scale = row.own_scale();
    if (!at.inside) return;
    if (at.shared_scale != place) {
      write();
      place = at.shared_scale;
      largest = no_scale();
    }
    largest = fmaxf(largest, scale);
  });
  write();
}

ATTN_DEVICE void clear_scales(const QuantizeParams& p) {
  const long long i = blockIdx.x * static_cast<long long>(kQuantizeThreads) + threadIdx.x;
  if (i >= p.rows) return;
  const QuantizedRow row(p, i);
  if (row.is_first(p)) *row.shared_scale(p) = no_scale();
}

}  // namespace attn::device
