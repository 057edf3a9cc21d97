#include "harness/conformance.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <exception>

#include "attn/error.hpp"
#include "attn/run.hpp"
#include "reference/reference.hpp"

namespace attn::harness {
namespace {

using reference::Precision;

// Rows that the smallest compared tensor should have over all draws, and the most draws made for
// it.
constexpr std::int64_t kRows = 256;
constexpr std::int64_t kMaxDraws = 32;
// Draws stop when together they have this many (query, key) pairs: the reference would take too
// long.
constexpr std::int64_t kMaxPairs = 1 << 16;

std::int64_t divide_up(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

std::int64_t draws_for(const Problem& p, const Hints& hints) {
  if (hints.far) return 1;
  const std::int64_t pairs = p.batch * p.heads_q * p.seqlen_q * p.seqlen_k;
  std::int64_t rows = p.batch * std::min(p.heads_q * p.seqlen_q, p.heads_k * p.seqlen_k);
  if (p.sink) rows = std::min(rows, p.heads_q);
  const std::int64_t wanted = divide_up(kRows, std::max<std::int64_t>(1, rows));
  const std::int64_t affordable = kMaxPairs / std::max<std::int64_t>(1, pairs);
  return std::clamp<std::int64_t>(std::min(wanted, affordable), 1, kMaxDraws);
}

}  // namespace

struct Conformance::Draw {
  CaseData data;
  Outputs expected, standard;
  Gradients expected_gradients, standard_gradients;
  bool nolse;

  Draw(const Case& c, std::uint64_t seed, bool backward) : data(c, seed), nolse(c.hints.nolse) {
    const auto run = [&](Outputs& outputs, Gradients& gradients, Precision precision) {
      outputs = data.f64_outputs();
      reference::forward(data.problem, data.inputs, outputs, precision);
      if (!backward) return;
      gradients = data.f64_gradients();
      reference::backward(data.problem, data.inputs, outputs, data.d_o, gradients, precision);
    };
    run(expected, expected_gradients, Precision::f64);
    run(standard, standard_gradients, Precision::problem);
  }
};

Conformance::Conformance(const Case& c, std::uint64_t seed, bool backward) : case_(c), seed_(seed) {
  const std::int64_t draws = draws_for(c.problem, c.hints);
  for (std::int64_t i = 0; i < draws; ++i) {
    draws_.push_back(std::make_shared<Draw>(c, seed + static_cast<std::uint64_t>(i), backward));
  }
}

void Conformance::run(Draw& draw, const Subject& subject) {
  CaseData& data = draw.data;
  data.poison();
  const Context context{.executor = subject.executor, .isa = subject.isa, .log = nullptr};
  PlanOptions options{.backend = subject.backend, .algorithm = subject.algorithm};
  if (subject.phase == Phase::forward) {
    Outputs outputs = data.outputs;
    if (draw.nolse) outputs.lse = {};
    forward(data.problem, data.inputs, outputs, options, context);
    return;
  }
  options.algorithm = Algorithm::automatic;
  forward(data.problem, data.inputs, data.outputs, options, context);
  options.algorithm = subject.algorithm;
  backward(data.problem, data.inputs, data.outputs, data.d_o, data.gradients, options, context);
}

std::vector<Comparison> Conformance::compare_all(const Draw& draw, Phase phase) {
  std::vector<Comparison> out;
  const auto add = [&](const std::string& name, const Tensor& got, const Tensor& expected,
                       const Tensor& standard) {
    if (got.given()) out.push_back(compare(name, got, expected, standard));
  };
  const CaseData& data = draw.data;
  if (phase == Phase::forward) {
    add("o", data.outputs.o, draw.expected.o, draw.standard.o);
    if (!draw.nolse) add("lse", data.outputs.lse, draw.expected.lse, draw.standard.lse);
    return out;
  }
  const Gradients& got = data.gradients;
  const Gradients& expected = draw.expected_gradients;
  const Gradients& standard = draw.standard_gradients;
  add("dq", got.dq, expected.dq, standard.dq);
  add("dk", got.dk, expected.dk, standard.dk);
  add("dv", got.dv, expected.dv, standard.dv);
  add("dsink", got.dsink, expected.dsink, standard.dsink);
  for (std::size_t i = 0; i < got.buffers.size(); ++i) {
    add("d" + got.buffers[i].first, got.buffers[i].second, expected.buffers[i].second,
        standard.buffers[i].second);
  }
  return out;
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
  try {
    for (const auto& draw : draws_) {
      run(*draw, subject);
      const std::string damage = draw->data.damage();
      if (!damage.empty()) {
        report.status = Status::failed;
        report.message = damage + " was written";
      }
      const std::vector<Comparison> comparisons = compare_all(*draw, subject.phase);
      for (std::size_t i = 0; i < comparisons.size(); ++i) {
        if (i >= report.comparisons.size()) {
          report.comparisons.push_back(comparisons[i]);
        } else {
          merge(report.comparisons[i], comparisons[i]);
        }
      }
    }
  } catch (const Error& error) {
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
  return fmt::format("{} {} {} {}", name(subject.phase), name(subject.backend),
                     name(subject.algorithm), name(subject.isa));
}

std::string Report::command() const {
  std::string text =
      fmt::format("attn check '{}' --seed {} --phase {}", descriptor, seed, name(subject.phase));
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
