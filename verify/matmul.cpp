#include "verify/matmul.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <random>

#include "attn/error.hpp"
#include "core/block_format.hpp"
#include "core/float8.hpp"
#include "core/matmul.hpp"
#include "core/tensor/element.hpp"
#include "core/tensor/size.hpp"
#include "reference/matmul.hpp"
#include "verify/storage.hpp"

namespace attn::verify {
namespace {

// A matrix of the order with gaps between its rows (columns), in `bytes`, which have room for it
// and no values yet.
Tensor make(char matrix, std::vector<std::byte>& bytes, DType dtype, MatrixOrder order,
            std::int64_t batch, std::int64_t rows, std::int64_t columns, std::int64_t gap) {
  const bool by_rows = order == MatrixOrder::row_major;
  const std::int64_t across = by_rows ? columns : rows;
  const std::int64_t ld = gap < 0 ? (across / -gap + 1) * -gap : across + gap;
  const std::int64_t lines = by_rows ? rows : columns;
  const core::Size size = std::max(core::Size(1), core::Size(batch) * ld * lines) * size_of(dtype);
  try {
    bytes.reserve(size.bytes());
  } catch (const std::exception&) {
    throw Error(ErrorCode::out_of_memory,
                fmt::format("{} [{}, {}, {}] of {} needs {} bytes, which could not be allocated",
                            matrix, batch, rows, columns, name(dtype), to_string(size)));
  }
  Tensor t = tensor(static_cast<void*>(bytes.data()), dtype, {batch, rows, columns});
  t.strides = {ld * lines, by_rows ? ld : 1, by_rows ? 1 : ld};
  return t;
}

template <class Draw>
void fill(const Tensor& t, Float8 float8, const Draw& draw) {
  const core::MatrixView view(t);
  for (std::int64_t p = 0; p < t.shape[0]; ++p) {
    for (std::int64_t i = 0; i < t.shape[1]; ++i) {
      for (std::int64_t j = 0; j < t.shape[2]; ++j) {
        const double x = draw();
        if (float8 == Float8::none) {
          core::store_element(view.at(p, i, j), t.dtype, x);
        } else {
          *view.at(p, i, j) = std::byte{core::float8_bits(x, float8)};
        }
      }
    }
  }
}

// Columns of blocks: random codes under scales of both signs, of q4_1 with a least number about
// which the codes lie on both sides of zero.
template <class Draw, class Bits>
void fill_blocks(const Tensor& t, BlockFormat format, const Draw& draw, Bits& bits) {
  const core::MatrixView view(t);
  const std::int64_t bytes = core::block_bytes(format);
  for (std::int64_t p = 0; p < t.shape[0]; ++p) {
    for (std::int64_t j = 0; j < t.shape[2]; ++j) {
      for (std::int64_t i = 0; i < t.shape[1]; ++i) {
        *view.at(p, i, j) = std::byte{static_cast<unsigned char>(bits())};
      }
      for (std::int64_t i = 0; i < t.shape[1]; i += bytes) {
        const double d = (format == BlockFormat::q8_0 ? 0.01 : 0.2) * draw();
        core::store_element(view.at(p, i, j), DType::f16, d);
        if (format != BlockFormat::q4_1) continue;
        core::store_element(view.at(p, i + 2, j), DType::f16, -7.5 * d + 0.1 * draw());
      }
    }
  }
}

// How many of `columns` diagonals have the share `density` of the blocks. It is one at least,
// unless none are asked for: a product without blocks would be right whatever it computes.
std::int64_t diagonals(double density, std::int64_t columns) {
  const auto count = std::llround(density * static_cast<double>(columns));
  return density > 0 ? std::max<std::int64_t>(1, count) : 0;
}

// Diagonals of blocks, equally far apart, with a gap between its rows. density: the share asked
// for, then the share that the mask has.
Tensor mask_of(const MatmulProblem& p, double& density, std::vector<std::byte>& bytes) {
  const auto blocks = [&](std::int64_t size) { return core::divide_up(size, p.block).value(); };
  const std::int64_t rows = blocks(p.masked == MaskedMatrix::b ? p.k : p.m), columns = blocks(p.n);
  const std::int64_t count = diagonals(density, columns);
  density = columns > 0 ? static_cast<double>(count) / static_cast<double>(columns) : 0;
  bytes.assign(static_cast<std::size_t>(std::max<std::int64_t>(1, rows * (columns + 1))), kPoison);
  Tensor t = tensor(static_cast<void*>(bytes.data()), DType::u8, {rows, columns});
  t.strides[0] = columns + 1;
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t j = 0; j < columns; ++j) {
      const std::int64_t diagonal = (i + columns - j) % columns;
      const bool there = (diagonal + 1) * count / columns > diagonal * count / columns;
      bytes[static_cast<std::size_t>(i * t.strides[0] + j)] = std::byte{there};
    }
  }
  return t;
}

// NaN where the mask has no block.
void leave_out(const Tensor& t, const core::BlockMaskView& mask) {
  const core::MatrixView view(t);
  for (std::int64_t p = 0; p < t.shape[0]; ++p) {
    for (std::int64_t i = 0; i < t.shape[1]; ++i) {
      for (std::int64_t j = 0; j < t.shape[2]; ++j) {
        if (!mask.has(i, j)) std::fill_n(view.at(p, i, j), size_of(t.dtype), kPoison);
      }
    }
  }
}

// The largest relative error of rounding, and the smallest normal number.
struct Rounding {
  double relative, smallest;
};
Rounding rounding_of(DType dtype) {
  if (dtype == DType::bf16) return {0x1p-8, 0x1p-126};
  if (dtype == DType::f16) return {0x1p-11, 0x1p-14};
  return {0x1p-24, 0x1p-126};
}

}  // namespace

MatmulProblem varied_problem(const std::array<std::int64_t, 4>& shape, DType dtype, int variant) {
  const auto order = [&](int bit) {
    return (variant >> bit & 1) != 0 ? MatrixOrder::column_major : MatrixOrder::row_major;
  };
  MatmulProblem p{.batch = shape[0], .m = shape[1], .n = shape[2], .k = shape[3], .dtype = dtype};
  p.output = variant % 3 == 0 ? DType::f32 : dtype;
  p.order_a = order(0);
  p.order_b = order(1);
  p.order_c = order(2);
  p.bias = variant % 2 == 1;
  p.activation = static_cast<Activation>(variant % 5);
  return p;
}

MatmulData::MatmulData(const MatmulProblem& p, std::uint64_t seed, std::int64_t gap, double density)
    : problem(p), density(p.masked == MaskedMatrix::none ? 1 : density) {
  inputs.a = make('A', bytes_a, p.dtype, p.order_a, p.batch, p.m, p.k, gap);
  const bool blocks = p.format_b != BlockFormat::none;
  inputs.b = make('B', bytes_b, p.type_of_b(), p.order_b, p.batch,
                  blocks ? row_size(p.format_b, p.k) : p.k, p.n, gap);
  c = make('C', bytes_c, p.output, p.order_c, p.batch, p.m, p.n, gap);
  // Pages are touched when there is room for all three.
  for (std::vector<std::byte>* bytes : {&bytes_a, &bytes_b, &bytes_c}) {
    bytes->assign(bytes->capacity(), kPoison);
  }
  // Sums of twelve 16-bit numbers are close to normal and a hundred times as fast to draw.
  std::mt19937_64 random(seed);
  const auto normal = [&] {
    const std::uint64_t x = random(), y = random(), z = random();
    double sum = -6;
    for (int i = 0; i < 64; i += 16) {
      for (const std::uint64_t word : {x, y, z}) {
        sum += static_cast<double>(word >> i & 0xffff) / 65536;
      }
    }
    return sum;
  };
  fill(inputs.a, p.float8, [&] { return 0.25 + normal(); });
  if (blocks) {
    fill_blocks(inputs.b, p.format_b, normal, random);
  } else {
    fill(inputs.b, p.float8, normal);
  }
  if (p.accumulate) {
    fill(c, p.float8, [&] { return 8 * normal(); });
    bytes_before = bytes_c;
  }
  if (p.masked != MaskedMatrix::none) {
    inputs.block_mask = mask_of(p, this->density, bytes_mask);
    if (p.masked == MaskedMatrix::b) leave_out(inputs.b, core::BlockMaskView(p, inputs));
  }
  if (p.scaled) {
    bytes_scales.resize(2 * size_of(DType::f32));
    for (std::size_t i = 0; i < 2; ++i) {
      std::byte* at = bytes_scales.data() + i * size_of(DType::f32);
      core::store_element(at, DType::f32, 1.5 + 0.1 * normal());
      (i == 0 ? inputs.scale_a : inputs.scale_b) = tensor(static_cast<void*>(at), DType::f32, {1});
    }
  }
  if (p.bias) {
    const DType dtype = p.dtype == DType::f64 ? DType::f64 : DType::f32;
    bytes_bias.resize(static_cast<std::size_t>(std::max<std::int64_t>(1, p.n)) * size_of(dtype));
    inputs.bias = tensor(static_cast<void*>(bytes_bias.data()), dtype, {p.n});
    for (std::int64_t j = 0; j < p.n; ++j) {
      core::store_element(bytes_bias.data() + static_cast<std::size_t>(j) * size_of(dtype), dtype,
                          4 * normal());
    }
  }
}

void MatmulData::poison() { std::fill(bytes_c.begin(), bytes_c.end(), kPoison); }

std::string MatmulData::damage() const {
  std::vector<bool> written(bytes_c.size(), false);
  const core::MatrixView view(c);
  const core::BlockMaskView mask(problem, inputs);
  for (std::int64_t p = 0; p < problem.batch; ++p) {
    for (std::int64_t i = 0; i < problem.m; ++i) {
      for (std::int64_t j = 0; j < problem.n; ++j) {
        if (mask.of == core::BlockMaskView::Of::c && !mask.has(i, j)) continue;
        const auto at = static_cast<std::size_t>(view.at(p, i, j) - bytes_c.data());
        std::fill_n(written.begin() + static_cast<std::ptrdiff_t>(at), size_of(c.dtype), true);
      }
    }
  }
  for (std::size_t i = 0; i < bytes_c.size(); ++i) {
    if (!written[i] && bytes_c[i] != kPoison) {
      return fmt::format(
          "byte {} of C's memory, between its rows or of a block left out, was written", i);
    }
  }
  return {};
}

MatmulCheck check_matmul(const MatmulData& data, std::int64_t samples) {
  const MatmulProblem& p = data.problem;
  const core::MatrixView view(data.c);
  const Rounding rounding = rounding_of(p.output);
  constexpr double kSlope = 1.13, kLambda = 4;
  // Sums of what a mask leaves have fewer terms; the bound of all of them holds.
  const double share = kSlope * kLambda * std::sqrt(static_cast<double>(p.k) + 2) * 0x1p-24;
  const core::BlockMaskView mask(p, data.inputs);
  const auto before = [&](std::int64_t b, std::int64_t i, std::int64_t j) {
    core::MatrixView held = view;
    held.data =
        const_cast<std::byte*>(data.bytes_before.data()) + (view.data - data.bytes_c.data());
    return reference::before(held, b, i, j);
  };
  MatmulCheck check;
  const auto look = [&](std::int64_t b, std::int64_t i, std::int64_t j, reference::Element e) {
    if (mask.of == core::BlockMaskView::Of::c && !mask.has(i, j)) return;
    const double got = core::load_element(view.at(b, i, j), p.output);
    const double allowed = share * e.magnitude + rounding.relative * std::abs(e.value) +
                           rounding.relative * rounding.smallest;
    double difference = std::abs(got - e.value);
    if (p.float8 != Float8::none) {
      difference = std::min(
          difference, std::abs(got - reference::matmul_element_float8(p, data.inputs, b, i, j)));
    }
    double error = difference / allowed;
    if (std::isnan(error)) error = INFINITY;
    ++check.checked;
    if (error > check.worst || check.where.empty()) {
      check.worst = error;
      check.where = fmt::format("C[{}, {}, {}] is {}, the reference {}", b, i, j, got, e.value);
    }
  };
  const std::int64_t size = p.batch * p.m * p.n;
  constexpr double kAllFlops = 0x1p26;
  if (size == 0) return check;
  if (p.flops() <= kAllFlops || size <= samples) {
    std::vector<reference::Element> row(static_cast<std::size_t>(p.n));
    for (std::int64_t at = 0; at < p.batch * p.m; ++at) {
      for (std::int64_t j = 0; p.accumulate && j < p.n; ++j) {
        row[static_cast<std::size_t>(j)] = before(at / p.m, at % p.m, j);
      }
      reference::matmul_row(p, data.inputs, at / p.m, at % p.m, 0, row);
      for (std::int64_t j = 0; j < p.n; ++j) {
        look(at / p.m, at % p.m, j, row[static_cast<std::size_t>(j)]);
      }
    }
    return check;
  }
  std::mt19937_64 random(1);
  for (std::int64_t s = 0; s < samples; ++s) {
    const auto below = [&](std::int64_t n) {
      return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(n));
    };
    // Every fourth one lies in the last row, every fourth in the last column.
    const std::int64_t b = below(p.batch), i = s % 4 == 1 ? p.m - 1 : below(p.m),
                       j = s % 4 == 2 ? p.n - 1 : below(p.n);
    reference::Element e = p.accumulate ? before(b, i, j) : reference::Element{};
    reference::matmul_row(p, data.inputs, b, i, j, {&e, 1});
    look(b, i, j, e);
  }
  return check;
}

}  // namespace attn::verify
