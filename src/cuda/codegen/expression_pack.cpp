#include "cuda/codegen/expression_pack.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <utility>

#include "attn/error.hpp"
#include "core/expr/bindings.hpp"
#include "core/expr/build.hpp"
#include "cuda/codegen/divisor.hpp"
#include "cuda/codegen/expression_buffers.hpp"
#include "cuda/codegen/expression_factors.hpp"
#include "cuda/codegen/expression_text.hpp"
#include "cuda/codegen/expression_vectors.hpp"
#include "cuda/device/expr/small_tanh.cuh"

namespace attn::cuda {
namespace {

constexpr std::size_t kMaxBuffers = 32;

// Mirrors attn::device::BufferView in src/cuda/device/expr/buffer.cuh.
struct BufferView {
  const void* data = nullptr;
  std::uint32_t last[kMaxRank] = {};
  std::int64_t strides[kMaxRank] = {};  // bytes
};
static_assert(sizeof(BufferView) == 56 && alignof(BufferView) == 8);

// Mirrors attn::device::Scalar there.
struct alignas(8) FloatScalar {
  float value = 0;
};
struct alignas(8) IntScalar : Divisor {};

std::size_t bytes_of(const expr::Buffer& buffer) {
  if (!expr::is_scalar(buffer)) return sizeof(BufferView);
  return buffer.tensor().dtype == DType::i32 ? sizeof(IntScalar) : sizeof(FloatScalar);
}

constexpr std::uint32_t kAnyIndex = ~0U;

BufferView view_of(const Tensor& tensor) {
  BufferView view;
  if (tensor.size() == 0) return view;
  view.data = tensor.data;
  for (std::int32_t d = 0; d < tensor.rank; ++d) {
    const auto at = static_cast<std::size_t>(d);
    const bool single = tensor.shape[at] == 1;
    // Indices are below 2^31, so a longer dimension needs no larger bound.
    view.last[at] = single ? kAnyIndex
                           : static_cast<std::uint32_t>(std::clamp<std::int64_t>(
                                 tensor.shape[at] - 1, 0, std::int64_t{kAnyIndex} - 1));
    view.strides[at] =
        single ? 0 : tensor.strides[at] * static_cast<std::int64_t>(size_of(tensor.dtype));
  }
  return view;
}

// A number for each multiple of q.k, four for each polynomial.
std::size_t count_numbers(const ScoreFactors& factors) {
  std::size_t count = factors.multiples.size();
  for (const ExponentTerm& term : factors.exponent) count += term.polynomial == 0 ? 0 : 4;
  return count;
}

// Views, then numbers. The struct is aligned to 8 bytes, and never empty.
std::size_t struct_bytes(std::size_t of_views, std::size_t numbers) {
  return (std::max<std::size_t>(of_views + numbers * sizeof(float), 1) + 7) / 8 * 8;
}

// factor * tanh(multiple * dot) is dot times this polynomial of dot.
device::SmallTanh small_tanh(double multiple, double factor, int precise_math) {
  const device::SmallTanh tanh =
      precise_math == 0 ? device::SmallTanhOf<0>::kValue : device::SmallTanhOf<1>::kValue;
  const double scale = multiple * factor;
  const double of_p = tanh.rest == 0 ? scale : std::sqrt(scale);  // p, or p^2
  const device::SmallTanh scaled{static_cast<float>(tanh.first * of_p),
                                 static_cast<float>(tanh.second * multiple * multiple * of_p),
                                 static_cast<float>(tanh.rest * scale),
                                 static_cast<float>(tanh.least * of_p)};
  // softmax_scale may be negative, 0, or far from 1. Then no score is small.
  if (scale > 0 && std::isnormal(scaled.first) && std::isnormal(scaled.second)) return scaled;
  return {0, 0, 0, std::numeric_limits<float>::infinity()};
}

// A finite scalar leaves the number finite, so that a score of 0 stays 0.
float scaled_number(const ScaledNumber& of, const Tensor& scalar) {
  float value = 0;
  std::memcpy(&value, scalar.data, sizeof(value));
  const double number = of.divides ? of.base / value : of.base * value;
  constexpr double kMost = std::numeric_limits<float>::max();
  const bool is_finite = std::isfinite(value) && !(of.divides && value == 0);
  return static_cast<float>(is_finite ? std::clamp(number, -kMost, kMost) : number);
}

}  // namespace

std::vector<std::shared_ptr<const expr::Buffer>> expression_buffers(const expr::Expr& mask,
                                                                    const expr::Expr& score) {
  auto found = expr::buffers(mask);
  for (const auto& buffer : expr::buffers(score)) {
    const auto same = std::find_if(found.begin(), found.end(), [&](const auto& other) {
      return other->name() == buffer->name();
    });
    if (same == found.end()) {
      found.push_back(buffer);
      continue;
    }
    const Tensor& a = (*same)->tensor();
    const Tensor& b = buffer->tensor();
    if (!expr::same_tensor(a, b)) {
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("buffer '{}' is {} in mask and {} in score; accepted is one tensor "
                              "for each name",
                              buffer->name(), to_string(a), to_string(b)));
    }
  }
  if (found.size() > kMaxBuffers) {
    throw Error(ErrorCode::unsupported,
                fmt::format("mask and score read {} buffers; at most {} are accepted on CUDA",
                            found.size(), kMaxBuffers));
  }
  return found;
}

const Tensor& described(const expr::Buffer& buffer, const expr::Bindings& bindings) {
  const Tensor* tensor = &buffer.tensor();
  for (const auto& [name, bound] : bindings) {
    if (name == buffer.name()) tensor = &bound;
  }
  return *tensor;
}

bool last_is_contiguous(const Tensor& tensor) {
  const auto last = static_cast<std::size_t>(tensor.rank) - 1;
  return tensor.strides[last] == 1 && tensor.shape[last] != 1;
}

int elements_at_once(const Tensor& tensor) {
  const std::size_t size = size_of(tensor.dtype);
  if (!last_is_contiguous(tensor) || size < 2 || size > 4) return 1;
  // What all of these are multiples of, so are the first and the last byte of each row.
  const auto last = static_cast<std::size_t>(tensor.rank) - 1;
  auto bytes = static_cast<std::uint64_t>(tensor.shape[last]) * size |
               reinterpret_cast<std::uintptr_t>(tensor.data);
  for (std::size_t d = 0; d < last; ++d) {
    if (tensor.shape[d] != 1) bytes |= static_cast<std::uint64_t>(tensor.strides[d]) * size;
  }
  if (size == 2 && bytes % 16 == 0) return 8;
  return bytes % (2 * size) == 0 ? 2 : 1;
}

std::size_t buffers_bytes(const std::vector<std::shared_ptr<const expr::Buffer>>& buffers) {
  std::size_t bytes = 0;
  for (const auto& buffer : buffers) bytes += bytes_of(*buffer);
  return bytes;
}

ExpressionPack::ExpressionPack(std::vector<std::shared_ptr<const expr::Buffer>> buffers,
                               std::vector<float> numbers, const expr::Expr& score,
                               std::vector<ScaledNumber> scaled)
    : buffers_(std::move(buffers)),
      vectors_(buffers_.size()),
      numbers_(std::move(numbers)),
      scaled_(std::move(scaled)),
      size_(struct_bytes(buffers_bytes(buffers_), numbers_.size())) {
  if (score.empty()) return;
  const expr::Program program = compile(score);
  for (std::size_t i = 0; i < buffers_.size(); ++i) {
    vectors_[i] = may_load_vectors(program, *buffers_[i]);
  }
}

void ExpressionPack::pack(const expr::Bindings& bindings, std::byte* to) const {
  const std::byte* const end = to + size_;
  for (const auto& buffer : buffers_) {
    const Tensor& tensor = expr::resolve(*buffer, bindings, DeviceType::cuda);
    const std::size_t bytes = bytes_of(*buffer);
    if (expr::is_scalar(*buffer)) {
      std::memset(to, 0, bytes);
      if (tensor.dtype == DType::f32) {
        std::memcpy(to, tensor.data, sizeof(float));
      } else {
        std::int32_t value = 0;
        std::memcpy(&value, tensor.data, sizeof(value));
        const Divisor divisor = divisor_of(value);
        std::memcpy(to, &divisor, sizeof(divisor));
      }
    } else {
      const BufferView view = view_of(tensor);
      std::memcpy(to, &view, sizeof(view));
    }
    to += bytes;
  }
  std::ranges::copy(std::as_bytes(std::span(numbers_)), to);
  for (const ScaledNumber& of : scaled_) {
    const float number =
        scaled_number(of, expr::resolve(*buffers_[of.scalar], bindings, DeviceType::cuda));
    std::memcpy(to + of.number * sizeof(float), &number, sizeof(number));
  }
  to += numbers_.size() * sizeof(float);
  std::memset(to, 0, static_cast<std::size_t>(end - to));
}

std::vector<std::byte> ExpressionPack::packed(const expr::Bindings& bindings) const {
  std::vector<std::byte> bytes(size_);
  pack(bindings, bytes.data());
  return bytes;
}

// A scalar is given by its value, whatever its tensor.
PrintedTensor ExpressionPack::printed_of(std::size_t i, const expr::Bindings& bindings) const {
  if (expr::is_scalar(*buffers_[i])) return {};
  const Tensor& tensor = described(*buffers_[i], bindings);
  return {tensor.dtype, last_is_contiguous(tensor), vectors_[i] ? elements_at_once(tensor) : 1};
}

PrintedBuffers ExpressionPack::printed(const expr::Bindings& bindings) const {
  PrintedBuffers result;
  for (std::size_t i = 0; i < buffers_.size(); ++i) {
    result.emplace_back(buffers_[i]->name(), printed_of(i, bindings));
  }
  return result;
}

bool ExpressionPack::prints(const PrintedBuffers& printed, const expr::Bindings& bindings) const {
  if (printed.size() != buffers_.size()) return false;
  for (std::size_t i = 0; i < buffers_.size(); ++i) {
    if (printed[i].second != printed_of(i, bindings)) return false;
  }
  return true;
}

ExpressionPack buffers_pack(const expr::Expr& mask, const expr::Expr& score) {
  return ExpressionPack(expression_buffers(mask, score), {}, score);
}

ExpressionPack expression_pack(const expr::Expr& mask, const expr::Expr& score,
                               double softmax_scale, int precise_math) {
  const ScoreFactors factors = score_factors(score);
  auto buffers = expression_buffers(mask, score);
  std::vector<float> numbers;
  std::vector<ScaledNumber> scaled;
  for (const ScoreMultiple& c : factors.multiples) {
    if (!c.scalar.empty()) {
      const auto at =
          std::ranges::find(buffers, c.scalar, [](const auto& buffer) { return buffer->name(); });
      scaled.push_back({numbers.size(), softmax_scale * c.factor,
                        static_cast<std::size_t>(at - buffers.begin()), c.divides});
    }
    numbers.push_back(static_cast<float>(softmax_scale * c.factor));
  }
  for (const ExponentTerm& term : factors.exponent) {
    if (term.polynomial == 0) continue;
    const auto tanh = small_tanh(softmax_scale * term.polynomial, term.factor, precise_math);
    numbers.insert(numbers.end(), {tanh.first, tanh.second, tanh.rest, tanh.least});
  }
  return ExpressionPack(std::move(buffers), std::move(numbers), score, std::move(scaled));
}

std::size_t expressions_bytes(const expr::Expr& mask, const expr::Expr& score) {
  return struct_bytes(buffers_bytes(expression_buffers(mask, score)),
                      count_numbers(score_factors(score)));
}

}  // namespace attn::cuda
