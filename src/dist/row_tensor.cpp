#include "dist/row_tensor.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <utility>

#include "core/tensor/element.hpp"

namespace attn::dist {
namespace {

Tensor shaped(std::byte* data, DType dtype, std::int64_t sequences, std::int64_t rows,
              std::int64_t heads, std::int64_t dim) {
  if (sequences == 0) return tensor(data, dtype, {rows, heads, dim});
  return tensor(data, dtype, {sequences, rows, heads, dim});
}

// A tensor without the axis of sequences, of which a packed one has none.
struct View {
  explicit View(const Tensor& t)
      : data(static_cast<std::byte*>(t.data)), size(static_cast<std::int64_t>(size_of(t.dtype))) {
    const auto first = static_cast<std::size_t>(t.rank - 3);
    sequences = t.rank == 4 ? t.shape[0] : 1;
    sequence_stride = t.rank == 4 ? t.strides[0] * size : 0;
    rows = t.shape[first];
    heads = t.shape[first + 1];
    dim = t.shape[first + 2];
    row_stride = t.strides[first] * size;
    head_stride = t.strides[first + 1] * size;
  }
  std::byte* at(std::int64_t b, std::int64_t row, std::int64_t head) const {
    return data + b * sequence_stride + row * row_stride + head * head_stride;
  }

  std::byte* data;
  std::int64_t size;
  std::int64_t sequences = 1, rows = 0, heads = 0, dim = 0;
  std::int64_t sequence_stride = 0, row_stride = 0, head_stride = 0;
};

// Calls visit(row of `to`, row of `from`) for each head of each row that both have.
template <class Visit>
void for_common(const RowTensor& from, const RowTensor& to, const Visit& visit) {
  const View source(from.tensor), target(to.tensor);
  for (const Rows& rows : common(from.rows, to.rows)) {
    const std::int64_t there = rows_before(from.rows, rows.begin);
    const std::int64_t here = rows_before(to.rows, rows.begin);
    for (std::int64_t b = 0; b < source.sequences; ++b) {
      for (std::int64_t i = 0; i < rows.end - rows.begin; ++i) {
        for (std::int64_t h = 0; h < source.heads; ++h) {
          visit(target.at(b, here + i, h), source.at(b, there + i, h));
        }
      }
    }
  }
}

template <class Real>
void add(const RowTensor& from, const RowTensor& to) {
  const std::int64_t dim = View(to.tensor).dim;
  for_common(from, to, [&](std::byte* target, const std::byte* source) {
    auto* const sums = reinterpret_cast<Real*>(target);
    const auto* const terms = reinterpret_cast<const Real*>(source);
    for (std::int64_t c = 0; c < dim; ++c) sums[c] += terms[c];
  });
}

}  // namespace

RowMemory::RowMemory(std::int64_t sequences, const RowList& rows, std::int64_t heads,
                     const KeyShapes& shapes) {
  const std::int64_t lines = sequences == 0 ? 1 : sequences;
  const auto elements = static_cast<std::size_t>(lines * count(rows) * heads);
  // Wide elements first, so that all are aligned.
  std::array<std::pair<RowShape, RowTensor*>, 4> all{
      {{shapes.k, &k}, {shapes.v, &v}, {shapes.scale_k, &scale_k}, {shapes.scale_v, &scale_v}}};
  std::ranges::stable_sort(all, std::greater(),
                           [](const auto& one) { return size_of(one.first.dtype); });
  const auto bytes_of = [&](const RowShape& shape) {
    return elements * static_cast<std::size_t>(shape.dim) * size_of(shape.dtype);
  };
  for (const auto& one : all) bytes_ += bytes_of(one.first);
  memory_.reset(new std::byte[std::max<std::size_t>(bytes_, 1)]);
  std::byte* next = memory_.get();
  for (const auto& [shape, to] : all) {
    if (shape.dim == 0) continue;
    *to = {shaped(next, shape.dtype, sequences, count(rows), heads, shape.dim), rows};
    next += bytes_of(shape);
  }
}

void RowMemory::clear() { std::memset(memory_.get(), 0, bytes_); }

void copy_rows(const RowTensor& from, const RowTensor& to) {
  const View view(from.tensor);
  const auto bytes = static_cast<std::size_t>(view.dim * view.size);
  for_common(from, to, [&](std::byte* target, const std::byte* source) {
    std::memcpy(target, source, bytes);
  });
}

void copy_keys(const RowMemory& from, const RowMemory& to) {
  copy_rows(from.k, to.k);
  copy_rows(from.v, to.v);
  if (from.scale_k.tensor.given()) copy_rows(from.scale_k, to.scale_k);
  if (from.scale_v.tensor.given()) copy_rows(from.scale_v, to.scale_v);
}

void add_rows(const RowTensor& from, const RowTensor& to) {
  to.tensor.dtype == DType::f64 ? add<double>(from, to) : add<float>(from, to);
}

void convert_rows(const RowTensor& from, const Tensor& to) {
  const View source(from.tensor), target(to);
  for (std::int64_t b = 0; b < source.sequences; ++b) {
    for (std::int64_t i = 0; i < source.rows; ++i) {
      for (std::int64_t h = 0; h < source.heads; ++h) {
        for (std::int64_t c = 0; c < source.dim; ++c) {
          core::store_element(
              target.at(b, i, h) + c * target.size, to.dtype,
              core::load_element(source.at(b, i, h) + c * source.size, from.tensor.dtype));
        }
      }
    }
  }
}

}  // namespace attn::dist
