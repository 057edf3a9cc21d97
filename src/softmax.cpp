// Softmax of rows, on a CPU here, on a GPU by its kernel.
#include "attn/softmax.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <string_view>

#include "core/text/enum_names.hpp"
#include "core/validate/argument_check.hpp"
#include "core/validate/enumerator.hpp"
#include "cpu/plan_check.hpp"
#include "cuda/driver/device.hpp"
#include "cuda/driver/pointer.hpp"
#include "cuda/softmax.hpp"

namespace attn {
namespace {

constexpr core::EnumName<SoftmaxAlgorithm> kAlgorithms[] = {
    {SoftmaxAlgorithm::three_pass, "three_pass"}, {SoftmaxAlgorithm::online, "online"}};

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

// The maximum of one row and the sum of exponentials relative to it. Without a finite element m = 0
// and d = 0, so that -inf gives exp(-inf - 0) = 0 and NaN still comes through.
struct Statistics {
  float m = 0;
  float d = 0;

  float softmax(float x) const { return d == 0 ? 0 : std::exp(x - m) / d; }
  float lse() const { return m + std::log(d); }
};

// The k largest so far, largest first; -inf at column -1 where there are fewer.
struct Top {
  std::int64_t k = 0;
  std::array<float, kMostSoftmaxTop> value{};
  std::array<std::int32_t, kMostSoftmaxTop> column{};

  explicit Top(std::int64_t count) : k(count) {
    value.fill(kMinusInfinity);
    column.fill(-1);
  }
  void add(float x, std::int64_t j) {
    auto place = static_cast<std::size_t>(k - 1);
    if (!(x > value[place])) return;
    for (; place > 0 && x > value[place - 1]; --place) {
      value[place] = value[place - 1];
      column[place] = column[place - 1];
    }
    value[place] = x;
    column[place] = static_cast<std::int32_t>(j);
  }
};

// Safe softmax (Milakov and Gimelshein 2018, algorithm 2), the first two passes.
Statistics two_passes(const float* x, std::int64_t columns) {
  float m = kMinusInfinity;
  for (std::int64_t j = 0; j < columns; ++j) {
    if (x[j] > m) m = x[j];
  }
  if (m == kMinusInfinity) m = 0;
  double d = 0;
  for (std::int64_t j = 0; j < columns; ++j) d += std::exp(x[j] - m);
  return {m, static_cast<float>(d)};
}

// Online softmax (the same paper, algorithm 3), the first pass: the sum is rescaled when the
// maximum moves, by exp(m_before - m). see(x, j) is called for every element on the way.
template <class See>
Statistics one_pass(const float* x, std::int64_t columns, See see) {
  float m = kMinusInfinity;
  double d = 0;
  for (std::int64_t j = 0; j < columns; ++j) {
    if (x[j] == kMinusInfinity) continue;  // adds nothing; -inf - -inf would be NaN
    const float m_before = m;
    if (x[j] > m) m = x[j];
    d = d * std::exp(m_before - m) + std::exp(x[j] - m);
    see(x[j], j);
  }
  if (m == kMinusInfinity) m = 0;
  return {m, static_cast<float>(d)};
}

void softmax_row(const float* x, float* y, std::int64_t columns, const Statistics& s) {
  for (std::int64_t j = 0; j < columns; ++j) y[j] = s.softmax(x[j]);
}

// Algorithm 4; or the largest elements in a pass of their own.
Statistics top_of_row(const float* x, std::int64_t columns, SoftmaxAlgorithm algorithm, Top& top) {
  const auto add = [&](float element, std::int64_t j) { top.add(element, j); };
  if (algorithm == SoftmaxAlgorithm::online) return one_pass(x, columns, add);
  const Statistics s = two_passes(x, columns);
  for (std::int64_t j = 0; j < columns; ++j) add(x[j], j);
  return s;
}

float* row_of(const Tensor& t, std::int64_t i) {
  return static_cast<float*>(t.data) + i * t.strides[0];
}
const float* row_of_x(const Tensor& x, std::int64_t i) {
  return static_cast<const float*>(x.data) + i * x.strides[0];
}

// Calls run(row) for every row, some at a time, so that a task is worth being one.
void for_each_row(const Tensor& x, const Context& context,
                  const std::function<void(std::int64_t row)>& run) {
  constexpr std::int64_t kElements = 4096;
  const std::int64_t rows = x.shape[0];
  const std::int64_t together = std::max<std::int64_t>(1, kElements / (x.shape[1] + 1));
  cpu::executor_of(context)->parallel_for(
      (rows + together - 1) / together, [&](std::int64_t task, int) {
        const std::int64_t first = task * together, last = std::min(rows, first + together);
        for (std::int64_t row = first; row < last; ++row) run(row);
      });
}

// x and lse; x has rows of 2^31 - 1 columns at most where columns are counted in 32 bits.
void check_arguments(const core::ArgumentCheck& check, const Tensor& x, const Tensor& lse,
                     SoftmaxAlgorithm algorithm, bool counts_columns) {
  core::check_enumerator(check, "algorithm", algorithm, "SoftmaxAlgorithm");
  check.tensor("x", x, DType::f32, {core::kAnySize, core::kAnySize});
  check.contiguous_rows("x", x);
  if (counts_columns && x.shape[1] > INT32_MAX) {
    check.refuse(fmt::format("x is {}; accepted are less than 2^31 columns", to_string(x)));
  }
  if (lse.given()) check.tensor("lse", lse, DType::f32, {x.shape[0]});
}

void softmax_on_gpu(const core::ArgumentCheck& check, std::span<const core::NamedTensor> tensors,
                    const cuda::SoftmaxCall& call, const Context& context) {
  const int device = call.x.device.index;
  const cuda::ContextGuard guard(device);
  cuda::check_memory(check, tensors, device);
  cuda::softmax(call, context);
}

}  // namespace

std::string_view name(SoftmaxAlgorithm algorithm) noexcept {
  return core::name_of(kAlgorithms, algorithm);
}

void softmax(const Tensor& x, const Tensor& y, const Tensor& lse, SoftmaxAlgorithm algorithm,
             const Context& context) {
  const core::ArgumentCheck check(nullptr, x.device);
  const bool gpu = x.device.type == DeviceType::cuda;
  check_arguments(check, x, lse, algorithm, gpu);
  check.tensor("y", y, DType::f32, {x.shape[0], x.shape[1]});
  check.contiguous_rows("y", y);
  const bool in_place = x.data == y.data && (x.shape[0] <= 1 || x.strides[0] == y.strides[0]);
  const core::NamedTensor tensors[] = {{"x", x}, {"y", y}, {"lse", lse}};
  const auto read = std::span(tensors).first(1), written = std::span(tensors).last(2);
  // Where y is x, only LSE has to lie apart from x.
  check.disjoint(written, read.first(in_place ? 0 : 1));
  check.disjoint(written.last(1), read);
  if (gpu) return softmax_on_gpu(check, tensors, {x, y, {}, {}, lse, algorithm}, context);
  for_each_row(x, context, [&](std::int64_t i) {
    const float* row = row_of_x(x, i);
    const Statistics s = algorithm == SoftmaxAlgorithm::three_pass
                             ? two_passes(row, x.shape[1])
                             : one_pass(row, x.shape[1], [](float, std::int64_t) {});
    softmax_row(row, row_of(y, i), x.shape[1], s);
    if (lse.given()) *row_of(lse, i) = s.lse();
  });
}

void softmax_top(const Tensor& x, const Tensor& values, const Tensor& columns, const Tensor& lse,
                 SoftmaxAlgorithm algorithm, const Context& context) {
  const core::ArgumentCheck check(nullptr, x.device);
  check_arguments(check, x, lse, algorithm, true);
  check.tensor("values", values, DType::f32, {x.shape[0], core::kAnySize});
  const std::int64_t k = values.shape[1];
  if (k < 1 || k > kMostSoftmaxTop) {
    check.refuse(fmt::format("values is {}; accepted are 1 to {} columns", to_string(values),
                             kMostSoftmaxTop));
  }
  check.tensor("columns", columns, DType::i32, {x.shape[0], k});
  const core::NamedTensor tensors[] = {
      {"x", x}, {"values", values}, {"columns", columns}, {"lse", lse}};
  check.disjoint(std::span(tensors).last(3), std::span(tensors).first(1));
  if (x.device.type == DeviceType::cuda) {
    return softmax_on_gpu(check, tensors, {x, {}, values, columns, lse, algorithm}, context);
  }
  for_each_row(x, context, [&](std::int64_t i) {
    Top top(k);
    const Statistics s = top_of_row(row_of_x(x, i), x.shape[1], algorithm, top);
    for (std::int64_t j = 0; j < k; ++j) {
      const auto at = static_cast<std::size_t>(j);
      row_of(values, i)[j * values.strides[1]] = s.softmax(top.value[at]);
      static_cast<std::int32_t*>(columns.data)[columns.offset({i, j})] = top.column[at];
    }
    if (lse.given()) *row_of(lse, i) = s.lse();
  });
}

}  // namespace attn
