#include "verify/conformance.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <limits>

#include "attn/error.hpp"
#include "attn/run.hpp"
#include "core/ceil_div.hpp"
#include "verify/device_data.hpp"
#include "verify/expectation.hpp"

namespace attn::verify {
namespace {

// Rows that the smallest compared tensor should have over all draws, and the most draws made for
// it.
constexpr std::int64_t kRows = 256;
constexpr std::int64_t kMaxDraws = 32;
// Draws stop when together they have this many (query, key) pairs: the reference would take too
// long.
constexpr std::int64_t kMaxPairs = 1 << 16;

// A comparison of maxima over few numbers fails by chance now and then (d sink of one head is one
// number a draw; of 5710 rows, only the last two may see several of three keys). A failure is
// therefore looked at again over more draws: a wrong result is wrong there too. They are as many as
// are cheap; the largest cases get none.
constexpr std::int64_t kSecondLookDraws = 128;
constexpr std::int64_t kSmallPairs = 1 << 15;
constexpr std::int64_t kSecondLookPairs = 1 << 20;  // of cases that are not small

std::size_t second_look_draws(std::int64_t pairs) {
  return static_cast<std::size_t>(pairs <= kSmallPairs ? kSecondLookDraws
                                                       : kSecondLookPairs / pairs);
}

using core::ceil_div;

// smallest_sum: elements of the smallest gradient of a buffer.
std::int64_t draws_for(const Problem& p, const Hints& hints, std::int64_t smallest_sum) {
  if (hints.far || hints.identity) return 1;
  const std::int64_t pairs = p.batch * p.heads_q * p.seqlen_q * (p.seqlen_prefix + p.seqlen_k);
  std::int64_t rows = p.batch * std::min(p.heads_q * p.seqlen_q, p.heads_k * p.seqlen_k);
  if (p.sink) rows = std::min(rows, p.heads_q);
  rows = std::min(rows, smallest_sum);
  const std::int64_t wanted = ceil_div(kRows, std::max<std::int64_t>(1, rows));
  const std::int64_t affordable = kMaxPairs / std::max<std::int64_t>(1, pairs);
  return std::clamp<std::int64_t>(std::min(wanted, affordable), 1, kMaxDraws);
}

}  // namespace

struct Conformance::Draw {
  CaseData data;
  bool nolse;
  std::vector<Expected> forward, backward;
  // What is expected where tensor cores compute the products (measure_tensor_cores); made when the
  // first GPU asks.
  std::vector<Expected> gpu_forward{}, gpu_backward{};

  Draw(const Case& c, std::uint64_t seed, bool with_backward)
      : data(c, seed), nolse(c.hints.nolse) {
    Outputs outputs = data.outputs;
    if (nolse) outputs.lse = {};
    const std::int64_t orders = yardstick_orders(scores(c));
    forward = expect_forward(data.problem, data.inputs, outputs, orders);
    if (!with_backward) return;
    backward = expect_backward(data.problem, data.inputs, data.d_outputs(), data.gradients, orders);
  }

  std::vector<Expected>& of(const Subject& subject) {
    const bool is_forward = subject.phase == Phase::forward;
    std::vector<Expected>& plain = is_forward ? forward : backward;
    if (subject.device.type != DeviceType::cuda) return plain;
    std::vector<Expected>& gpu = is_forward ? gpu_forward : gpu_backward;
    if (!gpu.empty()) return gpu;
    gpu = plain;
    if (is_forward) {
      measure_tensor_cores(data.problem, data.inputs, gpu);
    } else {
      measure_tensor_cores(data.problem, data.inputs, data.d_outputs(), gpu);
    }
    return gpu;
  }
};

Conformance::Conformance(const Case& c, std::uint64_t seed, bool backward)
    : case_(c), seed_(seed), backward_(backward) {
  add_draws(1);
  std::int64_t smallest_sum = std::numeric_limits<std::int64_t>::max();
  if (backward) {
    for (const auto& [name, tensor] : draws_.front()->data.gradients.buffers) {
      smallest_sum = std::min(smallest_sum, tensor.size());
    }
  }
  add_draws(static_cast<std::size_t>(draws_for(c.problem, c.hints, smallest_sum)));
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
                      .threads = subject.executor ? subject.executor->concurrency() : 0,
                      .deterministic = subject.deterministic,
                      .batch_invariant = subject.batch_invariant};
  if (subject.ranks.ranks > 0) {
    data.poison();
    options.threads = subject.device.type == DeviceType::cuda ? 0 : 1;
    if (subject.phase == Phase::forward) {
      return forward_on_ranks(data, subject.ranks, options, context, !draw.nolse);
    }
    forward(data.problem, data.inputs, data.outputs, {}, context);
    return backward_on_ranks(data, subject.ranks, options, context);
  }
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
  std::vector<Part> parts;
  for (const auto& draw : draws_) {
    run(*draw, subject);
    if (subject.tamper) subject.tamper(draw->data);
    const std::string damage = draw->data.damage();
    if (!damage.empty()) {
      report.status = Status::failed;
      report.message = damage + " was written";
    }
    parts.push_back({draw->of(subject)});
  }
  report.comparisons = judge(parts);
}

Report Conformance::check(const Subject& subject) {
  Report report{.descriptor = verify::to_string(case_),
                .seed = seed_,
                .subject = subject,
                .status = Status::passed,
                .message = {},
                .comparisons = {}};
  if (subject.phase == Phase::backward && !has_backward(case_.problem)) {
    report.status = Status::unsupported;
    report.message = "backward takes no paged K, V, no shared prefix and no lists of keys in f64";
    return report;
  }
  const auto all_passed = [&] {
    return std::all_of(report.comparisons.begin(), report.comparisons.end(),
                       [](const Comparison& c) { return c.passed(); });
  };
  try {
    compare_draws(subject, report);
    const Problem& p = case_.problem;
    const std::int64_t pairs = p.batch * p.heads_q * p.seqlen_q * (p.seqlen_prefix + p.seqlen_k);
    const std::size_t draws = second_look_draws(pairs);
    if (report.status == Status::passed && !all_passed() && !case_.hints.far &&
        draws > draws_.size()) {
      add_draws(draws);
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
  const std::string ranks = subject.ranks.ranks == 0
                                ? ""
                                : fmt::format(" on {} ranks, chunk {} {}", subject.ranks.ranks,
                                              subject.ranks.chunk, name(subject.ranks.deal));
  const std::string_view invariant = subject.batch_invariant ? " batch_invariant" : "";
  if (subject.device.type == DeviceType::cuda) {
    return fmt::format("{} {} {}{}{}{}{}{}", name(subject.phase), attn::to_string(subject.device),
                       name(subject.algorithm), subject.kernel.empty() ? "" : " ", subject.kernel,
                       subject.deterministic ? " deterministic" : "", invariant, ranks);
  }
  return fmt::format("{} {} {} {}{}{}", name(subject.phase), name(subject.backend),
                     name(subject.algorithm), name(subject.isa), invariant, ranks);
}

std::string Report::command() const {
  std::string text =
      fmt::format("attn check '{}' --seed {} --phase {}", descriptor, seed, name(subject.phase));
  if (subject.device.type == DeviceType::cuda) {
    text += " --device " + attn::to_string(subject.device);
    if (!subject.kernel.empty()) text += " --kernel " + subject.kernel;
    if (subject.deterministic) text += " --deterministic";
  }
  if (subject.batch_invariant) text += " --batch-invariant";
  if (subject.ranks.ranks > 0) {
    text += fmt::format(" --ranks {} --chunk {} --deal {}", subject.ranks.ranks,
                        subject.ranks.chunk, name(subject.ranks.deal));
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

}  // namespace attn::verify
