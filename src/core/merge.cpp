// attn::merge: partial results over disjoint keys become one, in double, on the calling thread.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "attn/run.hpp"
#include "core/tensor/element.hpp"
#include "core/validate/argument_check.hpp"

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

std::byte* element(const Tensor& t, std::int64_t offset) {
  return static_cast<std::byte*>(t.data) + offset * static_cast<std::int64_t>(size_of(t.dtype));
}

std::byte* o_element(const Tensor& o, std::int64_t b, std::int64_t i, std::int64_t h,
                     std::int64_t c) {
  return element(o, o.rank == 3 ? o.offset({i, h, c}) : o.offset({b, i, h, c}));
}

std::byte* lse_element(const Tensor& lse, std::int64_t b, std::int64_t i, std::int64_t h) {
  return element(lse, lse.rank == 2 ? lse.offset({h, i}) : lse.offset({b, h, i}));
}

void check_outputs(const ArgumentCheck& check, const std::string& name, const Outputs& outputs,
                   const Sizes& shape, bool lse_needed) {
  if (!is_floating(outputs.o.dtype)) {
    check.refuse(
        fmt::format("{}.o is {}; accepted are f32, bf16, f16 and f64", name, to_string(outputs.o)));
  }
  check.tensor(name + ".o", outputs.o, outputs.o.dtype, shape.o());
  if (lse_needed || outputs.lse.given()) {
    const DType dtype = outputs.o.dtype == DType::f64 ? DType::f64 : DType::f32;
    check.tensor(name + ".lse", outputs.lse, dtype, shape.lse());
  }
}

// Each element is read from all parts before it is written, so the result may be a part.
bool same_tensor(const Tensor& a, const Tensor& b) {
  if (a.data != b.data || a.dtype != b.dtype) return false;
  for (std::int32_t k = 0; k < a.rank; ++k) {
    if (a.shape[k] > 1 && a.strides[k] != b.strides[k]) return false;
  }
  return true;
}

Sizes check_arguments(const std::vector<Outputs>& parts, const Outputs& result) {
  const ArgumentCheck check;
  if (parts.empty()) check.refuse("parts is empty; accepted is at least one part");
  const Tensor& first = parts[0].o;
  if (first.rank != 3 && first.rank != 4) {
    check.refuse(fmt::format("parts[0].o is {}; accepted are rank 4 (dense) and 3 (packed)",
                             to_string(first)));
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
  return shape;
}

// weights[p] <- exp(LSE_p - LSE) of one row; returns LSE. Parts that attend to nothing get 0.
double weigh(std::vector<double>& weights) {
  const auto attends = [](double lse) { return !(std::isinf(lse) && lse < 0); };
  if (std::ranges::count_if(weights, attends) == 1) {
    // A part alone is the result, also where its LSE is infinite or NaN, as a sink without keys.
    const double lse = *std::ranges::find_if(weights, attends);
    for (double& weight : weights) weight = attends(weight) ? 1 : 0;
    return lse;
  }
  double maximum = -std::numeric_limits<double>::infinity();
  for (const double lse : weights) {
    if (lse > maximum) maximum = lse;
  }
  if (std::isinf(maximum) && maximum < 0) maximum = 0;  // exp(-inf - 0) is 0, and NaN stays NaN
  double sum = 0;
  for (const double lse : weights) sum += std::exp(lse - maximum);
  // Divided by the sum: exp(LSE_p - LSE) would lose log(sum) where LSE is large.
  for (double& lse : weights) lse = sum == 0 ? 0 : std::exp(lse - maximum) / sum;
  return maximum + std::log(sum);
}

}  // namespace

void merge(const std::vector<Outputs>& parts, const Outputs& result) {
  const Sizes shape = check_arguments(parts, result);
  std::vector<double> weights(parts.size());
  for (std::int64_t b = 0; b < shape.batch; ++b) {
    for (std::int64_t h = 0; h < shape.heads_q; ++h) {
      for (std::int64_t i = 0; i < shape.seqlen_q; ++i) {
        for (std::size_t p = 0; p < parts.size(); ++p) {
          const Tensor& lse = parts[p].lse;
          weights[p] = core::load_element(lse_element(lse, b, i, h), lse.dtype);
        }
        const double lse = weigh(weights);
        for (std::int64_t c = 0; c < shape.head_dim_v; ++c) {
          double sum = 0;
          for (std::size_t p = 0; p < parts.size(); ++p) {
            if (weights[p] == 0) continue;  // a part without keys may leave O undefined
            const Tensor& o = parts[p].o;
            sum += weights[p] * core::load_element(o_element(o, b, i, h, c), o.dtype);
          }
          core::store_element(o_element(result.o, b, i, h, c), result.o.dtype, sum);
        }
        if (result.lse.given()) {
          core::store_element(lse_element(result.lse, b, i, h), result.lse.dtype, lse);
        }
      }
    }
  }
}

}  // namespace attn
