// attn::merge: partial results over disjoint keys become one, in double, on the calling thread or a
// GPU.
#include "cuda/merge.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <limits>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "attn/run.hpp"
#include "core/tensor/element.hpp"
#include "core/validate/argument_check.hpp"
#include "cuda/driver/device.hpp"
#include "cuda/driver/pointer.hpp"

namespace attn {
namespace {

using core::ArgumentCheck;

// O [batch, seqlen_q, heads_q, head_dim_v] with LSE [batch, heads_q, seqlen_q], or packed O
// [total_q, heads_q, head_dim_v] with LSE [heads_q, total_q]. Packed is read as a batch of one.
struct Sizes {
  bool packed = false;
  std::int64_t batch = 0, seqlen_q = 0, heads_q = 0, head_dim_v = 0;

  core::Shape o() const {
    if (packed) return {seqlen_q, heads_q, head_dim_v};
    return {batch, seqlen_q, heads_q, head_dim_v};
  }
  core::Shape lse() const {
    if (packed) return {heads_q, seqlen_q};
    return {batch, heads_q, seqlen_q};
  }
};

Sizes sizes_of(const Tensor& o) {
  if (o.rank == 3) return {true, 1, o.shape[0], o.shape[1], o.shape[2]};
  return {false, o.shape[0], o.shape[1], o.shape[2], o.shape[3]};
}

// Where a tensor holds row (b, i, h) of O, or that element of LSE.
struct Places {
  std::byte* base;
  DType dtype;
  std::int64_t batch, query, head;  // bytes from one to the next
  std::int64_t column = 0;          // elements, of O

  static Places of_o(const Tensor& o) {
    const std::array<std::int64_t, kMaxRank>& s = o.strides;
    return o.rank == 3 ? Places(o, 0, s[0], s[1], s[2]) : Places(o, s[0], s[1], s[2], s[3]);
  }
  static Places of_lse(const Tensor& lse) {
    const std::array<std::int64_t, kMaxRank>& s = lse.strides;
    return lse.rank == 2 ? Places(lse, 0, s[1], s[0], 0) : Places(lse, s[0], s[2], s[1], 0);
  }
  std::byte* at(std::int64_t b, std::int64_t i, std::int64_t h) const {
    return base + b * batch + i * query + h * head;
  }

 private:
  Places(const Tensor& t, std::int64_t b, std::int64_t i, std::int64_t h, std::int64_t c)
      : base(static_cast<std::byte*>(t.data)), dtype(t.dtype), column(c) {
    const auto bytes = static_cast<std::int64_t>(size_of(t.dtype));
    batch = b * bytes;
    query = i * bytes;
    head = h * bytes;
  }
};

void check_outputs(const ArgumentCheck& check, const std::string& name, const Outputs& outputs,
                   const Sizes& shape, bool lse_needed) {
  const DType dtype = outputs.o.dtype;
  if (!is_floating(dtype) || (dtype == DType::f64 && !check.readable())) {
    check.refuse(fmt::format("{}.o is {}; accepted are f32, bf16, f16 and on a CPU f64", name,
                             to_string(outputs.o)));
  }
  check.tensor(name + ".o", outputs.o, dtype, shape.o());
  if (lse_needed || outputs.lse.given()) {
    check.tensor(name + ".lse", outputs.lse, dtype == DType::f64 ? DType::f64 : DType::f32,
                 shape.lse());
  }
  check.not_given(name + ".max_logit", outputs.max_logit,
                  "O and LSE alone are merged: take the largest of the parts");
}

// Each row is read from all parts before it is written, so the result may be a part.
bool same_tensor(const Tensor& a, const Tensor& b) {
  if (a.data != b.data || a.dtype != b.dtype) return false;
  for (std::int32_t k = 0; k < a.rank; ++k) {
    if (a.shape[k] > 1 && a.strides[k] != b.strides[k]) return false;
  }
  return true;
}

Sizes check_arguments(const std::vector<Outputs>& parts, const Outputs& result) {
  if (parts.empty()) ArgumentCheck().refuse("parts is empty; accepted is at least one part");
  const Tensor& first = parts[0].o;
  const ArgumentCheck check(nullptr, first.device);
  if (first.rank != 3 && first.rank != 4) {
    check.refuse(fmt::format("parts[0].o is {}; accepted are rank 4 (dense) and 3 (packed)",
                             to_string(first)));
  }
  const bool on_gpu = first.device.type == DeviceType::cuda;
  if (on_gpu && parts.size() > cuda::kMostMergedParts) {
    check.refuse(fmt::format("parts has {} elements; accepted on a GPU are up to {}", parts.size(),
                             cuda::kMostMergedParts));
  }
  const Sizes shape = sizes_of(first);
  std::deque<std::string> names;
  std::vector<core::NamedTensor> inputs;
  const auto add_input = [&](std::string name, const Tensor& part, const Tensor& of_result) {
    if (same_tensor(part, of_result)) return;
    inputs.push_back({names.emplace_back(std::move(name)), part});
  };
  for (std::size_t p = 0; p < parts.size(); ++p) {
    const std::string name = fmt::format("parts[{}]", p);
    check_outputs(check, name, parts[p], shape, true);
    add_input(name + ".o", parts[p].o, result.o);
    add_input(name + ".lse", parts[p].lse, result.lse);
  }
  check_outputs(check, "result", result, shape, false);
  const core::NamedTensor outputs[] = {{"result.o", result.o}, {"result.lse", result.lse}};
  check.disjoint(outputs, inputs);
  if (on_gpu) {
    const cuda::ContextGuard guard(first.device.index);
    cuda::check_memory(check, outputs, first.device.index);
    cuda::check_memory(check, inputs, first.device.index);
  }
  return shape;
}

// weights[p] <- exp(LSE_p - LSE) of one row; returns LSE. Parts that attend to nothing get 0.
double weigh(std::vector<double>& weights) {
  constexpr double kNothing = -std::numeric_limits<double>::infinity();
  double maximum = kNothing, last = kNothing;
  std::size_t attending = 0;
  for (const double lse : weights) {
    if (lse == kNothing) continue;
    ++attending;
    last = lse;
    if (lse > maximum) maximum = lse;
  }
  if (attending == 1) {
    // A part alone is the result, also where its LSE is infinite or NaN, as a sink without keys.
    for (double& weight : weights) weight = weight == kNothing ? 0 : 1;
    return last;
  }
  if (std::isinf(maximum) && maximum < 0) maximum = 0;  // exp(-inf - 0) is 0, and NaN stays NaN
  double sum = 0;
  for (double& weight : weights) sum += weight = std::exp(weight - maximum);
  // Divided by the sum: exp(LSE_p - LSE) would lose log(sum) where LSE is large.
  for (double& weight : weights) weight = sum == 0 ? 0 : weight / sum;
  return maximum + std::log(sum);
}

// Calls body(T{}) for the type of the elements of a floating dtype.
template <class Body>
void with_element_type(DType dtype, const Body& body) {
  switch (dtype) {
    case DType::f64:
      return body(double{});
    case DType::bf16:
      return body(bfloat16{});
    case DType::f16:
      return body(float16{});
    case DType::f32:
    case DType::i64:
    case DType::i32:
    case DType::u8:
      break;
  }
  body(float{});
}

double widen(double x) { return x; }
double widen(float x) { return x; }
double widen(bfloat16 x) {  // in place, so that a loop of it can be made vectors
  return std::bit_cast<float>(static_cast<std::uint32_t>(x.bits) << 16);
}
double widen(float16 x) { return static_cast<float>(x); }

// Calls body(stride in bytes) where elements are neighbours with a constant, so that compilers make
// vectors of its loop.
template <class T, class Body>
void with_stride(std::int64_t stride, const Body& body) {
  if (stride == 1) {
    body(std::integral_constant<std::ptrdiff_t, sizeof(T)>());
  } else {
    body(stride * static_cast<std::ptrdiff_t>(sizeof(T)));
  }
}

// sum[c] <- (add ? sum[c] : 0) + weight * row[c].
void add_row(bool add, double weight, const std::byte* row, std::int64_t stride, DType dtype,
             std::vector<double>& sum) {
  with_element_type(dtype, [&](auto element) {
    using T = decltype(element);
    with_stride<T>(stride, [&](auto bytes) {
      const auto value = [row, bytes](std::size_t c) {
        T x;
        std::memcpy(&x, row + static_cast<std::ptrdiff_t>(c) * bytes, sizeof(x));
        return widen(x);
      };
      double* const to = sum.data();
      const std::size_t columns = sum.size();
      if (add) {
        for (std::size_t c = 0; c < columns; ++c) to[c] += weight * value(c);
      } else {
        for (std::size_t c = 0; c < columns; ++c) to[c] = 0.0 + weight * value(c);
      }
    });
  });
}

void store_row(const std::vector<double>& sum, std::byte* row, std::int64_t stride, DType dtype) {
  with_element_type(dtype, [&](auto element) {
    using T = decltype(element);
    using Wide = std::conditional_t<std::is_same_v<T, double>, double, float>;
    with_stride<T>(stride, [&](auto bytes) {
      const double* const from = sum.data();
      const std::size_t columns = sum.size();
      for (std::size_t c = 0; c < columns; ++c) {
        const T x(static_cast<Wide>(from[c]));
        std::memcpy(row + static_cast<std::ptrdiff_t>(c) * bytes, &x, sizeof(x));
      }
    });
  });
}

}  // namespace

void merge(const std::vector<Outputs>& parts, const Outputs& result, const Context& context) {
  const Sizes shape = check_arguments(parts, result);
  if (result.o.device.type == DeviceType::cuda) return cuda::merge(parts, result, context);
  std::vector<Places> o, lse;
  for (const Outputs& part : parts) {
    o.push_back(Places::of_o(part.o));
    lse.push_back(Places::of_lse(part.lse));
  }
  const Places to = Places::of_o(result.o), to_lse = Places::of_lse(result.lse);
  std::vector<double> weights(parts.size()), sum(static_cast<std::size_t>(shape.head_dim_v));
  for (std::int64_t b = 0; b < shape.batch; ++b) {
    for (std::int64_t i = 0; i < shape.seqlen_q; ++i) {
      for (std::int64_t h = 0; h < shape.heads_q; ++h) {
        for (std::size_t p = 0; p < parts.size(); ++p) {
          weights[p] = core::load_element(lse[p].at(b, i, h), lse[p].dtype);
        }
        const double merged = weigh(weights);
        bool add = false;
        for (std::size_t p = 0; p < parts.size(); ++p) {
          if (weights[p] == 0) continue;  // a part without keys may leave O undefined
          add_row(std::exchange(add, true), weights[p], o[p].at(b, i, h), o[p].column, o[p].dtype,
                  sum);
        }
        if (!add) std::ranges::fill(sum, 0.0);
        store_row(sum, to.at(b, i, h), to.column, to.dtype);
        if (result.lse.given()) {
          core::store_element(to_lse.at(b, i, h), to_lse.dtype, merged);
        }
      }
    }
  }
}

}  // namespace attn
