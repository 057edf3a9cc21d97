#include "harness/conformance.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <exception>

#include "attn/error.hpp"
#include "attn/run.hpp"
#include "harness/cases.hpp"
#include "harness/device_data.hpp"
#include "harness/element_rule.hpp"
#include "harness/error_scale.hpp"
#include "reference/reference.hpp"

namespace attn::harness {
namespace {

using reference::Order;
using reference::Precision;

// Rows that the smallest compared tensor should have over all draws, and the most draws made for
// it.
constexpr std::int64_t kRows = 256;
constexpr std::int64_t kMaxDraws = 32;
// Draws stop when together they have this many (query, key) pairs: the reference would take too
// long.
constexpr std::int64_t kMaxPairs = 1 << 16;

// A comparison of maxima over few numbers fails by chance now and then (d sink of one head is one
// number a draw). A failure is therefore looked at again over this many draws, if they are cheap: a
// wrong result is wrong there too.
constexpr std::size_t kSecondLookDraws = 128;
constexpr std::int64_t kSecondLookPairs = 1 << 22;

std::int64_t divide_up(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

std::int64_t draws_for(const Problem& p, const Hints& hints) {
  if (hints.far || hints.identity) return 1;
  const std::int64_t pairs = p.batch * p.heads_q * p.seqlen_q * p.seqlen_k;
  std::int64_t rows = p.batch * std::min(p.heads_q * p.seqlen_q, p.heads_k * p.seqlen_k);
  if (p.sink) rows = std::min(rows, p.heads_q);
  const std::int64_t wanted = divide_up(kRows, std::max<std::int64_t>(1, rows));
  const std::int64_t affordable = kMaxPairs / std::max<std::int64_t>(1, pairs);
  return std::clamp<std::int64_t>(std::min(wanted, affordable), 1, kMaxDraws);
}

// The yardsticks that a result is measured by; the largest error of them counts. 16-bit problems: S
// and P rounded, P alone, or both held in float, as all are common. In float several orders of
// operations, as many as cost little.
struct Yardstick {
  Precision precision;
  Order order;
  bool forward_only = false;
};
std::vector<Yardstick> yardsticks(const Case& c) {
  constexpr std::int64_t kScores = 1 << 22;
  const std::int64_t count =
      std::clamp<std::int64_t>(kScores / std::max<std::int64_t>(1, scores(c)), 1, 8);
  std::vector<Yardstick> out;
  const bool f32 = c.problem.dtype == DType::f32;
  if (!f32) {
    out = {{Precision::problem, {.turn = 0}},
           {Precision::f32, {.turn = 4}},
           {Precision::fused, {.turn = 2}}};
  }
  for (std::int64_t i = 0; i < count; ++i) {
    const Order order{.turn = static_cast<int>(i * 8 / count), .scale_q = !f32};
    out.push_back({Precision::f32, order, !f32});
  }
  return out;
}

// Whether scores may be off by as much as rounding them to the type of the problem: GPUs compute
// functions in the scores of 16-bit problems by short forms (src/cuda/device/expr/fast.cuh).
bool may_round_scores(const Problem& p) {
  if (p.dtype == DType::f32 || p.score.empty()) return false;
  constexpr expr::Op kFunctions[] = {expr::Op::exp, expr::Op::log, expr::Op::tanh, expr::Op::sqrt};
  return std::ranges::any_of(kFunctions, [&](expr::Op op) { return depends_on(p.score, op); });
}

// Whether a yardstick says how large the maximum of a tensor's errors may be, or those of its
// elements. rounds: may_round_scores(). LSE is float in every problem: else rounded scores are no
// excuse.
bool measures_maximum(const Yardstick& yardstick, const std::string& tensor, bool rounds) {
  if (tensor == "lse") return rounds || yardstick.precision != Precision::problem;
  return yardstick.precision != Precision::fused && !yardstick.forward_only;
}
bool measures_elements(const Yardstick& yardstick, const std::string& tensor, bool rounds) {
  const bool measures = rounds || yardstick.precision != Precision::problem;
  return tensor == "lse" ? measures : measures && !yardstick.forward_only;
}

struct Named {
  std::string name;
  Tensor tensor;
};
std::vector<Named> list(const Outputs& outputs) { return {{"o", outputs.o}, {"lse", outputs.lse}}; }
std::vector<Named> list(const Gradients& gradients) {
  std::vector<Named> out{
      {"dq", gradients.dq}, {"dk", gradients.dk}, {"dv", gradients.dv}, {"dsink", gradients.dsink}};
  for (const auto& [name, tensor] : gradients.buffers) out.push_back({"d" + name, tensor});
  return out;
}

// One tensor of the results of a phase, in one draw.
struct Result {
  std::string name;
  Tensor got;
  Elements expected, scale;  // no scale: the elements are not judged
  double standard_error = 0;
  ElementYardstick yardstick{};
};

// Tensors without a scale: sums over a whole head or more, too few numbers to judge each.
bool has_scale(const std::string& name) {
  return name == "o" || name == "lse" || name == "dq" || name == "dk" || name == "dv";
}

std::vector<Result> results(const std::vector<Named>& got, const std::vector<Named>& expected,
                            const std::vector<Named>& scales, bool nolse) {
  std::vector<Result> out;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const auto& [name, tensor] = got[i];
    if (!tensor.given() || (nolse && name == "lse")) continue;
    Result& result = out.emplace_back(Result{name, tensor, read_elements(expected[i].tensor), {}});
    if (!has_scale(name)) continue;
    result.scale = read_elements(scales[i].tensor);
    result.yardstick = ElementYardstick(tensor.dtype, result.expected, result.scale, name != "lse");
  }
  return out;
}

void measure(const std::vector<Named>& standard, const Yardstick& yardstick, std::size_t which,
             bool rounds, std::vector<Result>& results) {
  for (Result& result : results) {
    const auto named = std::find_if(standard.begin(), standard.end(),
                                    [&](const Named& n) { return n.name == result.name; });
    const Elements elements = read_elements(named->tensor);
    if (measures_maximum(yardstick, result.name, rounds)) {
      result.standard_error =
          std::max(result.standard_error, standard_error(elements, result.expected));
    }
    if (has_scale(result.name) && measures_elements(yardstick, result.name, rounds)) {
      result.yardstick.measure(which, elements, result.expected, result.scale);
    }
  }
}

}  // namespace

struct Conformance::Draw {
  CaseData data;
  bool nolse;
  std::vector<Result> forward, backward;

  Draw(const Case& c, std::uint64_t seed, bool with_backward)
      : data(c, seed), nolse(c.hints.nolse) {
    const Outputs outputs = data.f64_outputs();
    const Outputs scales = data.f64_outputs();
    reference::forward(data.problem, data.inputs, outputs);
    forward_error_scales(data.problem, data.inputs, scales);
    forward = results(list(data.outputs), list(outputs), list(scales), nolse);
    const Gradients gradients = data.f64_gradients();
    if (with_backward) {
      const Gradients gradient_scales = data.f64_gradients();
      reference::backward(data.problem, data.inputs, outputs, data.d_outputs(), gradients);
      backward_error_scales(data.problem, data.inputs, data.d_outputs(), gradient_scales);
      backward = results(list(data.gradients), list(gradients), list(gradient_scales), false);
    }
    const Outputs standard = data.f64_outputs();
    const bool rounds = may_round_scores(c.problem);
    std::size_t which = 0;
    for (const Yardstick& yardstick : yardsticks(c)) {
      const auto& [precision, order, forward_only] = yardstick;
      reference::forward(data.problem, data.inputs, standard, precision, order);
      measure(list(standard), yardstick, which, rounds, forward);
      if (with_backward && !forward_only) {
        reference::backward(data.problem, data.inputs, standard, data.d_outputs(), gradients,
                            precision, order);
        measure(list(gradients), yardstick, which, rounds, backward);
      }
      ++which;
    }
    data.free_f64();
  }

  std::vector<Result>& of(Phase phase) { return phase == Phase::forward ? forward : backward; }
};

Conformance::Conformance(const Case& c, std::uint64_t seed, bool backward)
    : case_(c), seed_(seed), backward_(backward) {
  add_draws(static_cast<std::size_t>(draws_for(c.problem, c.hints)));
}

void Conformance::add_draws(std::size_t count) {
  while (draws_.size() < count) {
    draws_.push_back(std::make_shared<Draw>(case_, seed_ + draws_.size(), backward_));
  }
}

void Conformance::run(Draw& draw, const Subject& subject) {
  CaseData& data = draw.data;
  const Context context{.executor = subject.executor, .isa = subject.isa, .log = nullptr};
  PlanOptions options{.backend = subject.backend,
                      .algorithm = subject.algorithm,
                      .device = subject.device,
                      .kernel = subject.kernel,
                      .threads = subject.executor ? subject.executor->concurrency() : 0};
  if (subject.device.type == DeviceType::cuda) {
    if (subject.phase == Phase::backward) {
      // O and LSE are those of the CPU, so that a failure is the backward pass's own.
      data.poison();
      forward(data.problem, data.inputs, data.outputs, {}, {.executor = subject.executor});
      return backward_on_device(data, options, context);
    }
    return forward_on_device(data, options, context, !draw.nolse);
  }
  data.poison();
  if (subject.phase == Phase::forward) {
    Outputs outputs = data.outputs;
    if (draw.nolse) outputs.lse = {};
    forward(data.problem, data.inputs, outputs, options, context);
    return;
  }
  options.algorithm = Algorithm::automatic;
  forward(data.problem, data.inputs, data.outputs, options, context);
  options.algorithm = subject.algorithm;
  backward(data.problem, data.inputs, data.outputs, data.d_outputs(), data.gradients, options,
           context);
}

// One comparison a tensor, over all draws.
void Conformance::compare_draws(const Subject& subject, Report& report) {
  std::vector<ElementYardstick> yardsticks(draws_.front()->of(subject.phase).size());
  for (const auto& draw : draws_) {
    for (std::size_t i = 0; i < yardsticks.size(); ++i) {
      yardsticks[i].add(draw->of(subject.phase)[i].yardstick);
    }
  }
  std::vector<ElementRule> rules(yardsticks.begin(), yardsticks.end());
  report.comparisons.clear();
  for (const auto& draw : draws_) {
    run(*draw, subject);
    if (subject.tamper) subject.tamper(draw->data);
    const std::string damage = draw->data.damage();
    if (!damage.empty()) {
      report.status = Status::failed;
      report.message = damage + " was written";
    }
    for (std::size_t i = 0; i < rules.size(); ++i) {
      const Result& result = draw->of(subject.phase)[i];
      const Elements got = read_elements(result.got);
      const Comparison comparison =
          compare(result.name, got, result.expected, result.standard_error);
      if (i >= report.comparisons.size()) {
        report.comparisons.push_back(comparison);
      } else {
        merge(report.comparisons[i], comparison);
      }
      if (has_scale(result.name)) rules[i].add(got, result.expected, result.scale);
    }
  }
  for (std::size_t i = 0; i < rules.size(); ++i) {
    if (has_scale(report.comparisons[i].tensor)) rules[i].judge(report.comparisons[i]);
  }
}

Report Conformance::check(const Subject& subject) {
  Report report{.descriptor = harness::to_string(case_),
                .seed = seed_,
                .subject = subject,
                .status = Status::passed,
                .message = {},
                .comparisons = {}};
  if (subject.phase == Phase::backward && case_.problem.layout_k == Layout::paged) {
    report.status = Status::unsupported;
    report.message = "backward takes no paged K, V";
    return report;
  }
  const auto all_passed = [&] {
    return std::all_of(report.comparisons.begin(), report.comparisons.end(),
                       [](const Comparison& c) { return c.passed(); });
  };
  try {
    compare_draws(subject, report);
    const Problem& p = case_.problem;
    const std::int64_t pairs = p.batch * p.heads_q * p.seqlen_q * p.seqlen_k;
    if (report.status == Status::passed && !all_passed() && !case_.hints.far &&
        pairs * static_cast<std::int64_t>(kSecondLookDraws) <= kSecondLookPairs) {
      add_draws(kSecondLookDraws);
      compare_draws(subject, report);
    }
  } catch (const Error& error) {
    report.refusal = error.code();
    report.status = error.code() == ErrorCode::unsupported ? Status::unsupported : Status::failed;
    report.message = error.what();
    return report;
  } catch (const std::exception& error) {
    report.status = Status::failed;
    report.message = error.what();
    return report;
  }
  for (const Comparison& comparison : report.comparisons) {
    if (comparison.passed()) continue;
    report.status = Status::failed;
    report.message += (report.message.empty() ? "" : "; ") + comparison.tensor + " is wrong";
  }
  return report;
}

Report check(const Case& c, const Subject& subject, std::uint64_t seed) {
  return Conformance(c, seed, subject.phase == Phase::backward).check(subject);
}

std::string to_string(const Subject& subject) {
  if (subject.device.type == DeviceType::cuda) {
    return fmt::format("{} {} {}{}{}", name(subject.phase), attn::to_string(subject.device),
                       name(subject.algorithm), subject.kernel.empty() ? "" : " ", subject.kernel);
  }
  return fmt::format("{} {} {} {}", name(subject.phase), name(subject.backend),
                     name(subject.algorithm), name(subject.isa));
}

std::string Report::command() const {
  std::string text =
      fmt::format("attn check '{}' --seed {} --phase {}", descriptor, seed, name(subject.phase));
  if (subject.device.type == DeviceType::cuda) {
    text += " --device " + attn::to_string(subject.device);
    if (!subject.kernel.empty()) text += " --kernel " + subject.kernel;
  }
  if (subject.backend != Backend::automatic) {
    text += fmt::format(" --backend {}", name(subject.backend));
  }
  if (subject.algorithm != Algorithm::automatic) {
    text += fmt::format(" --algorithm {}", name(subject.algorithm));
  }
  if (subject.isa != InstructionSet::automatic) text += fmt::format(" --isa {}", name(subject.isa));
  if (subject.executor) text += fmt::format(" --threads {}", subject.executor->concurrency());
  return text;
}

std::string to_string(const Report& report) {
  constexpr std::string_view kStatus[] = {"passed", "FAILED", "unsupported"};
  std::string text = fmt::format("{} {} ({}, seed {})", kStatus[static_cast<int>(report.status)],
                                 report.descriptor, to_string(report.subject), report.seed);
  if (!report.message.empty()) text += ": " + report.message;
  for (const Comparison& c : report.comparisons) text += "\n  " + to_string(c);
  if (report.status == Status::failed) text += "\n  repeat with: " + report.command();
  return text;
}

}  // namespace attn::harness
