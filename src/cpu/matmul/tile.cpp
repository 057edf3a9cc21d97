#include "cpu/matmul/tile.hpp"

#include <algorithm>
#include <cstring>

#include "core/block_format.hpp"
#include "core/tensor/element.hpp"

namespace attn::cpu {

MaskedSizes::MaskedSizes(const MatmulProblem& problem) {
  const bool swapped = problem.order_c == MatrixOrder::column_major;
  // The mask of B is one of A where these change places.
  const bool of_b = problem.masked == MaskedMatrix::b, of_c = problem.masked == MaskedMatrix::c;
  const auto block = [&](bool masked, std::int64_t size) {
    return std::max<std::int64_t>(1, masked ? std::min(problem.block, size) : size);
  };
  m = swapped ? problem.n : problem.m;
  n = swapped ? problem.m : problem.n;
  block_m = block(of_c || (of_b && swapped), m);
  block_n = block(of_c || (of_b && !swapped), n);
  block_k = block(of_b, problem.k);
}

Cut cut(std::int64_t total, std::int64_t block, std::int64_t most, std::int64_t step) {
  const std::int64_t parts = std::max<std::int64_t>(1, (block + most - 1) / most);
  const std::int64_t part = std::max(step, round_up((block + parts - 1) / parts, step));
  return {total, block, (block + part - 1) / part, static_cast<int>(part)};
}

OperandBlock block_of_a(const Product& p, std::int64_t batch, std::int64_t row, std::int64_t step,
                        int rows, int depth) {
  return {.at = p.a.at(batch, row, step),
          .lane_stride = p.a.row_stride,
          .step_stride = p.a.column_stride,
          .lanes = rows,
          .depth = depth,
          .dtype = p.a.dtype};
}
OperandBlock block_of_b(const Product& p, std::int64_t batch, std::int64_t step,
                        std::int64_t column, int columns, int depth) {
  // Blocks are bytes of a column.
  const std::int64_t row = p.format_b == BlockFormat::none ? step : row_size(p.format_b, step);
  return {.at = p.b.at(batch, row, column),
          .lane_stride = p.b.column_stride,
          .step_stride = p.b.row_stride,
          .lanes = columns,
          .depth = depth,
          .dtype = p.b.dtype,
          .format = p.format_b};
}

bool start_sums(const Product& p, const Tile& t, std::int64_t rows, int ld, float* sums) {
  if (!p.accumulate) return false;
  std::fill_n(sums, rows * ld, 0.0F);
  const auto bytes = static_cast<std::ptrdiff_t>(size_of(p.c.dtype));
  for (int i = 0; i < t.rows; ++i) {
    const std::byte* at = p.c.at(t.batch, t.row + i, t.column);
    float* row = sums + std::ptrdiff_t{i} * ld;
    if (p.c.dtype == DType::f32) {
      std::memcpy(row, at, static_cast<std::size_t>(t.columns) * sizeof(float));
    } else {
      for (int j = 0; j < t.columns; ++j) {
        row[j] = static_cast<float>(core::load_element(at + j * bytes, p.c.dtype));
      }
    }
  }
  return true;
}

OutputBlock output_of(const Product& p, const Tile& t, float* bias) {
  OutputBlock out{.at = p.c.at(t.batch, t.row, t.column),
                  .row_bytes = p.c.row_stride * static_cast<std::ptrdiff_t>(size_of(p.c.dtype)),
                  .rows = t.rows,
                  .columns = t.columns,
                  .dtype = p.c.dtype,
                  .activation = p.activation};
  if (p.bias == nullptr) return out;
  if (p.bias_of_rows) {
    out.bias_of_rows = p.bias + t.row * p.bias_stride;
    out.row_bias_stride = p.bias_stride;
  } else {
    for (int j = 0; j < t.columns; ++j) bias[j] = p.bias_at(0, t.column + j);
    std::fill(bias + t.columns, bias + round_up(t.columns, 16), 0.0F);
    out.bias_of_columns = bias;
  }
  return out;
}

}  // namespace attn::cpu
