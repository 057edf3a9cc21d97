#include "verify/expectation.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <list>
#include <utility>

#include "core/cache_type.hpp"
#include "reference/reference.hpp"
#include "verify/error_scale.hpp"
#include "verify/score_error.hpp"

namespace attn::verify {
namespace {

using reference::DropoutPlaces;
using reference::Order;
using reference::Precision;
using reference::VisibleKeys;

// The yardsticks that a result is measured by; the largest error of them counts. 16-bit problems: S
// and P rounded, P alone, or both held in float, as all are common. In float several orders of
// operations.
struct Yardstick {
  Precision precision;
  Order order;
  bool forward_only = false;
  bool stored_o = false;  // backward has D from the exact O, rounded once to the problem's type
};
std::vector<Yardstick> yardsticks(DType dtype, std::int64_t orders) {
  std::vector<Yardstick> out;
  const bool f32 = dtype == DType::f32;
  if (!f32) {
    out = {{Precision::problem, {.turn = 0}},
           {Precision::f32, {.turn = 4}},
           {Precision::fused, {.turn = 2}}};
    // Of rows with few keys; problems of millions of scores have enough rows to measure by.
    if (orders > 1) {
      out.push_back({Precision::f32, {.turn = 6}, false, true});
      out.push_back({Precision::fused, {.turn = 6}, false, true});
    }
  }
  for (std::int64_t i = 0; i < orders; ++i) {
    const Order order{
        .turn = static_cast<int>(i * 8 / orders), .scale_q = !f32, .heads_inside = i % 2 == 1};
    out.push_back({Precision::f32, order, !f32});
  }
  return out;
}

std::vector<Yardstick> tensor_core_yardsticks(const Problem& p) {
  std::vector<Yardstick> out;
  if (p.dtype == DType::bf16 || p.dtype == DType::f16) {
    out.push_back({Precision::tensor_core, {.turn = 4}});
  }
  if (core::is_float8(p)) out.push_back({Precision::tensor_core_8, {.turn = 4}});
  return out;
}

// Whether scores may be off by as much as rounding them to the type of the problem: GPUs compute
// functions in the scores of 16-bit problems by short forms (src/cuda/device/expr/fast.cuh).
bool may_round_scores(const Problem& p) {
  if (p.dtype == DType::f32 || p.score.empty()) return false;
  constexpr expr::Op kFunctions[] = {expr::Op::exp, expr::Op::log, expr::Op::tanh, expr::Op::sqrt};
  return std::ranges::any_of(kFunctions, [&](expr::Op op) { return depends_on(p.score, op); });
}

constexpr const char* kMaxLogit = "max_logit";

// Whether a yardstick says how large the maximum of a tensor's errors may be, or those of its
// elements. rounds: may_round_scores(). LSE and the largest scores are float in every problem: else
// rounded scores are no excuse.
bool measures_maximum(const Yardstick& yardstick, const std::string& tensor, bool rounds) {
  if (tensor == "lse" || tensor == kMaxLogit)
    return rounds || yardstick.precision != Precision::problem;
  return !yardstick.forward_only;
}
bool measures_elements(const Yardstick& yardstick, const std::string& tensor, bool rounds) {
  const bool measures = rounds || yardstick.precision != Precision::problem;
  return tensor == "lse" ? measures : measures && !yardstick.forward_only;
}

struct Named {
  std::string name;
  Tensor tensor;
};
std::vector<Named> list(const Outputs& outputs) {
  return {{"o", outputs.o}, {"lse", outputs.lse}, {kMaxLogit, outputs.max_logit}};
}
std::vector<Named> list(const Gradients& gradients) {
  std::vector<Named> out{
      {"dq", gradients.dq}, {"dk", gradients.dk}, {"dv", gradients.dv}, {"dsink", gradients.dsink}};
  for (const auto& [name, tensor] : gradients.buffers) out.push_back({"d" + name, tensor});
  return out;
}

// dsink and the gradients of buffers.
bool is_sum_over_rows(const std::string& name) {
  return name != "o" && name != "lse" && name != kMaxLogit && name != "dq" && name != "dk" &&
         name != "dv";
}
// What numbers on the way to a result lose at least. Sums over rows are sums of D, which has lost
// what O and P lose when they are rounded to 16 bits, any error up to half a unit being as likely;
// in float its sums (q.k, O, dO.O) lose a few roundings, of which two are taken.
Roundoff roundoff(const Problem& problem, const std::string& name) {
  const bool f64 = problem.dtype == DType::f64;
  const double arithmetic = half_ulp(f64 ? DType::f64 : DType::f32, 1);
  if (!is_sum_over_rows(name)) return {arithmetic, arithmetic};
  if (f64 || problem.dtype == DType::f32) return {2 * arithmetic, 2 * arithmetic};
  const double rounding = half_ulp(problem.dtype, 1);
  return {rounding, rounding / std::sqrt(3.0)};
}

// Tensors for what the reference computes. NaN, so that what it does not write is seen.
class Memory {
 public:
  // dtype: f64, or of fewer bits.
  Tensor like(const Tensor& t, DType dtype = DType::f64) {
    if (!t.given()) return {};
    std::vector<double>& values =
        blocks_.emplace_back(static_cast<std::size_t>(std::max<std::int64_t>(t.size(), 1)),
                             std::numeric_limits<double>::quiet_NaN());
    Tensor out = t;
    out.data = values.data();
    out.dtype = dtype;
    std::int64_t stride = 1;
    for (auto axis = static_cast<std::size_t>(t.rank); axis-- > 0;) {
      out.strides[axis] = stride;
      stride *= std::max<std::int64_t>(t.shape[axis], 1);
    }
    return out;
  }
  Outputs like(const Outputs& outputs) {
    return {.o = like(outputs.o), .lse = like(outputs.lse), .max_logit = like(outputs.max_logit)};
  }
  Gradients like(const Gradients& gradients) {
    Gradients out{.dq = like(gradients.dq),
                  .dk = like(gradients.dk),
                  .dv = like(gradients.dv),
                  .dsink = like(gradients.dsink),
                  .buffers = {}};
    for (const auto& [name, tensor] : gradients.buffers) {
      out.buffers.emplace_back(name, like(tensor));
    }
    return out;
  }

 private:
  std::list<std::vector<double>> blocks_;
};

std::vector<Expected> expected_of(const Problem& problem, const std::vector<Named>& got,
                                  const std::vector<Named>& exact,
                                  const std::vector<Named>& scales) {
  std::vector<Expected> out;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const auto& [name, tensor] = got[i];
    if (!tensor.given()) continue;
    Expected& one = out.emplace_back(Expected{name, tensor, read_elements(exact[i].tensor)});
    // The largest score of a head is one of many: elements have no scale.
    const Roundoff least = roundoff(problem, name);
    if (name == kMaxLogit) {
      for (const double score : one.exact.values) {
        if (!std::isfinite(score)) continue;
        one.standard_error = std::max(one.standard_error, least.largest * std::abs(score));
      }
    }
    if (tensor.size() == 0 || name == kMaxLogit) continue;
    one.scale = read_elements(scales[i].tensor);
    const bool rows = name != "lse" && tensor.rank > 1;
    one.yardstick = ElementYardstick(tensor.dtype, least, one.exact, one.scale, rows);
    // A yardstick of few numbers may be right by luck, or hold numbers below the range of float.
    for (const double scale : one.scale.values) {
      if (!std::isfinite(scale)) continue;
      one.standard_error = std::max(one.standard_error, least.largest * scale);
    }
  }
  return out;
}

void measure(const std::vector<Named>& standard, const Yardstick& yardstick, bool rounds,
             std::vector<Expected>& expected) {
  for (Expected& one : expected) {
    if (one.name == kMaxLogit) continue;
    const auto named = std::find_if(standard.begin(), standard.end(),
                                    [&](const Named& n) { return n.name == one.name; });
    const Elements elements = read_elements(named->tensor);
    if (measures_maximum(yardstick, one.name, rounds)) {
      one.standard_error = std::max(one.standard_error, standard_error(elements, one.exact));
    }
    if (!one.scale.values.empty() && measures_elements(yardstick, one.name, rounds)) {
      one.yardstick.measure(one.measured, elements, one.exact, one.scale);
    }
    ++one.measured;
  }
}

void measure_forward(const Problem& problem, const Inputs& inputs,
                     const std::vector<Yardstick>& yardsticks, std::vector<Expected>& expected,
                     const DropoutPlaces& places, const VisibleKeys& visible) {
  Memory memory;
  Outputs standard;
  Expected* largest_scores = nullptr;
  for (Expected& one : expected) {
    if (one.name == kMaxLogit) {
      largest_scores = &one;
    } else {
      (one.name == "o" ? standard.o : standard.lse) = memory.like(one.got);
    }
  }
  const bool rounds = may_round_scores(problem);
  for (const Yardstick& yardstick : yardsticks) {
    if (yardstick.stored_o) continue;
    reference::forward(problem, inputs, standard, yardstick.precision, yardstick.order, places,
                       &visible);
    measure(list(standard), yardstick, rounds, expected);
    // Which of the scores of standard attention is the largest is chance, so the largest error of
    // any of them is what a largest score may be off by.
    if (largest_scores == nullptr || !measures_maximum(yardstick, kMaxLogit, rounds)) continue;
    largest_scores->standard_error =
        std::max(largest_scores->standard_error,
                 score_error(problem, inputs, yardstick.precision, yardstick.order, &visible));
  }
}

// A tensor to measure one of `expected` with; none where `name` is not among them.
Tensor like(Memory& memory, const std::vector<Expected>& expected, std::string_view name) {
  const auto named = std::ranges::find(expected, name, &Expected::name);
  return named == expected.end() ? Tensor{} : memory.like(named->got);
}

void measure_backward(const Problem& problem, const Inputs& inputs,
                      const OutputGradients& d_outputs, const std::vector<Yardstick>& yardsticks,
                      std::vector<Expected>& expected, const DropoutPlaces& places,
                      const VisibleKeys& visible) {
  Memory memory;
  Gradients standard{.dq = like(memory, expected, "dq"),
                     .dk = like(memory, expected, "dk"),
                     .dv = like(memory, expected, "dv"),
                     .dsink = like(memory, expected, "dsink"),
                     .buffers = {}};
  for (const Expected& one : expected) {
    if (is_sum_over_rows(one.name) && one.name != "dsink") {
      standard.buffers.emplace_back(one.name.substr(1), memory.like(one.got));
    }
  }
  const bool rounds = may_round_scores(problem);
  Outputs stored;
  if (std::ranges::any_of(yardsticks, &Yardstick::stored_o)) {
    stored.o = memory.like(d_outputs.o, problem.dtype);
    reference::forward(problem, inputs, stored, Precision::f64, {}, places, &visible);
  }
  for (const Yardstick& yardstick : yardsticks) {
    if (yardstick.forward_only) continue;
    reference::backward(problem, inputs, yardstick.stored_o ? stored : Outputs{}, d_outputs,
                        standard, yardstick.precision, yardstick.order, places, &visible);
    measure(list(standard), yardstick, rounds, expected);
  }
}

}  // namespace

std::int64_t yardstick_orders(std::int64_t scores) {
  constexpr std::int64_t kScores = 1 << 22;
  return std::clamp<std::int64_t>(kScores / std::max<std::int64_t>(1, scores), 1, 8);
}

std::vector<Expected> expect_forward(const Problem& problem, const Inputs& inputs,
                                     const Outputs& got, std::int64_t orders,
                                     const DropoutPlaces& places) {
  Memory memory;
  const VisibleKeys visible(problem, inputs);
  // The reference computes LSE with O.
  const Outputs exact = memory.like(got), scales = memory.like(got);
  reference::forward(problem, inputs, exact, Precision::f64, {}, places, &visible);
  forward_error_scales(problem, inputs, scales, places, &visible);
  std::vector<Expected> expected = expected_of(problem, list(got), list(exact), list(scales));
  measure_forward(problem, inputs, yardsticks(problem.dtype, orders), expected, places, visible);
  return expected;
}

void measure_forward(const Problem& problem, const Inputs& inputs, std::int64_t orders,
                     std::vector<Expected>& expected, const DropoutPlaces& places) {
  measure_forward(problem, inputs, yardsticks(problem.dtype, orders), expected, places,
                  VisibleKeys(problem, inputs));
}

void measure_tensor_cores(const Problem& problem, const Inputs& inputs,
                          std::vector<Expected>& expected, const DropoutPlaces& places) {
  measure_forward(problem, inputs, tensor_core_yardsticks(problem), expected, places,
                  VisibleKeys(problem, inputs));
}

void measure_tensor_cores(const Problem& problem, const Inputs& inputs,
                          const OutputGradients& d_outputs, std::vector<Expected>& expected,
                          const DropoutPlaces& places) {
  measure_backward(problem, inputs, d_outputs, tensor_core_yardsticks(problem), expected, places,
                   VisibleKeys(problem, inputs));
}

std::vector<Expected> expect_backward(const Problem& problem, const Inputs& inputs,
                                      const OutputGradients& d_outputs, const Gradients& got,
                                      std::int64_t orders, const DropoutPlaces& places) {
  Memory memory;
  const VisibleKeys visible(problem, inputs);
  const Gradients gradients = memory.like(got), scales = memory.like(got);
  reference::backward(problem, inputs, {}, d_outputs, gradients, Precision::f64, {}, places,
                      &visible);
  backward_error_scales(problem, inputs, d_outputs, scales, places, &visible);
  std::vector<Expected> expected = expected_of(problem, list(got), list(gradients), list(scales));
  measure_backward(problem, inputs, d_outputs, yardsticks(problem.dtype, orders), expected, places,
                   visible);
  return expected;
}

std::vector<StandardErrors> standard_errors(std::span<const Part> parts) {
  std::vector<StandardErrors> out(parts.empty() ? 0 : parts.front().expected.size());
  for (const Part& part : parts) {
    for (std::size_t i = 0; i < out.size(); ++i) {
      out[i].largest = std::max(out[i].largest, part.expected[i].standard_error);
      out[i].yardstick.add(part.expected[i].yardstick);
    }
  }
  return out;
}

std::vector<Comparison> judge(std::span<const Part> parts,
                              std::span<const std::vector<StandardErrors>> similar) {
  std::vector<Comparison> comparisons;
  if (parts.empty()) return comparisons;
  std::vector<StandardErrors> standard = standard_errors(parts);
  for (std::size_t i = 0; i < standard.size(); ++i) {
    std::vector<double> largest;
    std::vector<const ElementYardstick*> yardsticks;
    for (const std::vector<StandardErrors>& other : similar) {
      largest.push_back(other[i].largest);
      yardsticks.push_back(&other[i].yardstick);
    }
    standard[i].largest = std::max(standard[i].largest, nearly_largest(std::move(largest)));
    standard[i].yardstick.learn(yardsticks);
  }
  std::vector<ElementRule> rules;
  for (const StandardErrors& errors : standard) rules.emplace_back(errors.yardstick);
  for (const Part& part : parts) {
    for (std::size_t i = 0; i < rules.size(); ++i) {
      const Expected& one = part.expected[i];
      const auto to_whole = [&](std::vector<std::int64_t>& where) {
        if (part.to_whole && !where.empty()) part.to_whole(one.name, where);
      };
      const Elements got = read_elements(one.got);
      Comparison comparison = compare(one.name, got, one.exact, standard[i].largest);
      to_whole(comparison.where);
      if (i >= comparisons.size()) {
        comparisons.push_back(std::move(comparison));
      } else {
        merge(comparisons[i], comparison);
      }
      if (!one.scale.values.empty() && rules[i].add(got, one.exact, one.scale)) {
        to_whole(rules[i].worst().where);
      }
    }
  }
  for (std::size_t i = 0; i < rules.size(); ++i) {
    rules[i].judge(comparisons[i]);
  }
  return comparisons;
}

}  // namespace attn::verify
