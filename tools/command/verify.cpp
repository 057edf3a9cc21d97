#include "command/verify.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <list>
#include <numeric>
#include <random>
#include <set>
#include <utility>

#include "command/sampled_problem.hpp"
#include "command/similar_inputs.hpp"
#include "verify/expectation.hpp"

namespace attn::command {
namespace {

using io::Array;
using verify::Comparison;

constexpr std::int64_t kMaxScores = 1 << 22;  // evaluated by the reference in each precision, about
constexpr std::int64_t kMinPairs = 4;         // of sequence and KV head, of a large problem
constexpr std::int64_t kMinResults = 256;     // rows of query heads that make a maximum meaningful
constexpr std::int64_t kMaxOrders = 32;       // of the keys
constexpr std::uint64_t kSecondLook = 8;      // draws of rows, where the first one failed
constexpr std::int64_t kSimilarDraws = 128;   // of similar inputs, likewise
constexpr std::int64_t kSimilarOrders = 2;    // of operations, for each of these

using Index = std::vector<std::int64_t>;

// Results of a part of a problem, in memory of their own, with what they should be.
struct PartOfProblem {
  SampledProblem problem;
  std::vector<Array> results;
  std::vector<verify::Expected> expected{};
};

std::int64_t scores_of(const Problem& p) {
  const double scores = static_cast<double>(p.batch * p.heads_q) * static_cast<double>(p.seqlen_q) *
                        static_cast<double>(p.seqlen_prefix + p.seqlen_k);
  return static_cast<std::int64_t>(std::min(scores, 0x1p62));
}

std::vector<RowSample> all_rows(const Problem& problem, const Inputs& inputs) {
  std::vector<RowSample> samples;
  for (std::int64_t batch = 0; batch < problem.batch; ++batch) {
    const core::Sequence sequence = core::sequence(problem, inputs, batch);
    std::vector<std::int32_t> rows(static_cast<std::size_t>(sequence.length_q));
    std::iota(rows.begin(), rows.end(), 0);
    if (rows.empty()) continue;
    for (std::int64_t h = 0; h < problem.heads_k; ++h) samples.push_back({batch, h, rows});
  }
  return samples;
}

// Distinct pairs of sequence and KV head, each with distinct rows. The last row of a sequence,
// which sees most keys under a causal mask, is among them. Each draw takes others.
std::vector<RowSample> draw_rows(const Problem& problem, const Inputs& inputs,
                                 std::uint64_t draw = 0) {
  std::mt19937_64 random(1 + draw);  // the same rows for every algorithm
  const auto below = [&](std::int64_t limit) {
    return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(limit));
  };
  const std::int64_t group = problem.heads_q / problem.heads_k;
  const std::int64_t scores_of_row =
      std::max<std::int64_t>(1, problem.seqlen_prefix + problem.seqlen_k) * group;
  const std::int64_t all_pairs = problem.batch * problem.heads_k;
  const std::int64_t few_pairs = std::min(kMinPairs, all_pairs);
  const std::int64_t affordable =
      std::max<std::int64_t>(1, kMaxScores / (few_pairs * scores_of_row));
  const std::int64_t rows_of_pair = std::min(
      {std::max<std::int64_t>(1, kMinResults / (few_pairs * group)), affordable, problem.seqlen_q});
  const std::int64_t pairs =
      std::min({std::max(few_pairs, kMinResults / (rows_of_pair * group)), all_pairs,
                std::max<std::int64_t>(few_pairs, kMaxScores / (rows_of_pair * scores_of_row))});
  std::set<std::pair<std::int64_t, std::int64_t>> drawn;
  while (static_cast<std::int64_t>(drawn.size()) < pairs) {
    drawn.emplace(below(problem.batch), below(problem.heads_k));
  }
  std::vector<RowSample> samples;
  for (const auto& [batch, head_k] : drawn) {
    const std::int32_t length = core::sequence(problem, inputs, batch).length_q;
    if (length == 0) continue;
    std::set<std::int32_t> rows{length - 1};
    while (static_cast<std::int64_t>(rows.size()) < std::min<std::int64_t>(rows_of_pair, length)) {
      rows.insert(static_cast<std::int32_t>(below(length)));
    }
    samples.push_back({batch, head_k, {rows.begin(), rows.end()}});
  }
  return samples;
}

std::int64_t count_results(const std::vector<RowSample>& samples, const Problem& problem) {
  std::size_t rows = 0;
  for (const RowSample& sample : samples) rows += sample.rows.size();
  return static_cast<std::int64_t>(rows) * (problem.heads_q / problem.heads_k);
}

std::string describe(const std::vector<RowSample>& samples, const Problem& problem) {
  return fmt::format("{} rows of {} heads", count_results(samples, problem),
                     static_cast<std::int64_t>(samples.size()) * problem.heads_q / problem.heads_k);
}

// Changes a position in a result of a part to the one in the whole. It is [1, row, head, dim] of O
// and dQ, [1, head, row] of LSE, [1, key, 1, dim] of dK and dV.
void to_whole(const SampledProblem& part, std::string_view name, Index& at) {
  const RowSample& sample = part.sample();
  const auto row = [&](std::int64_t i) { return sample.rows[static_cast<std::size_t>(i)]; };
  at[0] = sample.batch;
  if (name == "lse") {
    at[1] += sample.head_k * part.group();
    at[2] = row(at[2]);
  } else if (name == "dk" || name == "dv") {
    at[2] = sample.head_k;
  } else {
    at[1] = row(at[1]);
    at[2] += sample.head_k * part.group();
  }
}

std::vector<verify::Part> list(std::list<PartOfProblem>& parts) {
  std::vector<verify::Part> all;
  for (PartOfProblem& part : parts) {
    all.push_back({part.expected, [&part](std::string_view name, Index& where) {
                     to_whole(part.problem, name, where);
                   }});
  }
  return all;
}

bool all_passed(const std::vector<Comparison>& comparisons) {
  return std::ranges::all_of(comparisons, &Comparison::passed);
}
bool any_infinite(const std::vector<Comparison>& comparisons) {
  return std::ranges::any_of(comparisons, [](const Comparison& c) { return std::isinf(c.error); });
}

// Judges the results of parts and, where they fail, judges them again beside the errors that
// standard attention makes with inputs much like theirs: where results are few, the errors that it
// makes there are a matter of luck. A wrong result is wrong beside the others too. expect(part,
// draw): what is expected of the part with the inputs of that draw. scores: of all parts.
template <class Expect>
std::vector<Comparison> judge(std::span<const verify::Part> parts, std::int64_t scores,
                              const Expect& expect) {
  std::vector<Comparison> first = verify::judge(parts);
  if (all_passed(first) || any_infinite(first)) return first;
  const std::int64_t draws =
      std::clamp<std::int64_t>(kMaxScores / std::max<std::int64_t>(1, scores), 1, kSimilarDraws);
  std::vector<std::vector<verify::StandardErrors>> similar;
  for (std::int64_t draw = 1; draw <= draws; ++draw) {
    std::list<std::vector<verify::Expected>> expected;
    std::vector<verify::Part> drawn;
    for (std::size_t part = 0; part < parts.size(); ++part) {
      drawn.push_back({expected.emplace_back(expect(part, static_cast<std::uint64_t>(draw)))});
    }
    similar.push_back(verify::standard_errors(drawn));
  }
  return verify::judge(parts, similar);
}

template <class Test>
std::int64_t count_if(const Tensor& tensor, const Test& test) {
  if (!tensor.given()) return 0;
  const Array converted = io::convert(tensor, DType::f64);
  const auto* begin = static_cast<const double*>(converted.tensor().data);
  return std::count_if(begin, begin + tensor.size(), test);
}
std::int64_t count_nan(const Tensor& tensor) {
  return count_if(tensor, [](double x) { return std::isnan(x); });
}

bool all_finite(std::initializer_list<Tensor> tensors) {
  return std::all_of(tensors.begin(), tensors.end(), [](const Tensor& tensor) {
    return count_if(tensor, [](double x) { return !std::isfinite(x); }) == 0;
  });
}

// A NaN that no part has fails the comparison of the tensor: those of the parts, result `index` of
// each, were compared with the reference's.
void look_for_nan(Verification& in, const std::string& name, const Tensor& tensor,
                  const std::list<PartOfProblem>& parts, std::size_t index) {
  std::int64_t compared = 0;
  for (const PartOfProblem& part : parts) compared += count_nan(part.results[index].tensor());
  if (count_nan(tensor) <= compared) return;
  for (Comparison& comparison : in.comparisons) {
    if (comparison.tensor != name) continue;
    comparison.error = std::numeric_limits<double>::infinity();
    comparison.element = {};
    comparison.gain = 0;
    comparison.got = std::numeric_limits<double>::quiet_NaN();
  }
}

// The largest scores of the heads, over all rows of a small problem.
std::vector<Comparison> judge_max_logit(const Problem& problem, const Inputs& inputs,
                                        const Outputs& outputs, DeviceType device) {
  const std::int64_t scores = scores_of(problem);
  const auto expect = [&](const Inputs& from, std::int64_t most) {
    std::vector<verify::Expected> expected = verify::expect_forward(
        problem, from, {.o = outputs.o, .lse = {}, .max_logit = outputs.max_logit},
        std::min(most, verify::yardstick_orders(scores)));
    if (device == DeviceType::cuda) verify::measure_tensor_cores(problem, from, expected);
    std::erase_if(expected, [](const verify::Expected& one) { return one.name == "o"; });
    return expected;
  };
  std::vector<verify::Expected> expected = expect(inputs, kMaxOrders);
  const verify::Part whole{expected};
  return judge({&whole, 1}, scores, [&](std::size_t, std::uint64_t draw) {
    return expect(SimilarInputs(inputs, {}, draw).inputs(), kSimilarOrders);
  });
}

}  // namespace

bool Verification::passed() const { return all_passed(comparisons); }

const Comparison& Verification::worst() const {
  return *std::max_element(
      comparisons.begin(), comparisons.end(),
      [](const Comparison& a, const Comparison& b) { return a.share() < b.share(); });
}

bool is_small(const Problem& p) { return scores_of(p) <= kMaxScores; }

Verification verify_forward(const Problem& problem, const Inputs& inputs, const Outputs& outputs,
                            DeviceType device) {
  const bool on_gpu = device == DeviceType::cuda;
  const bool small = is_small(problem);
  const std::vector<RowSample> samples =
      small ? all_rows(problem, inputs) : draw_rows(problem, inputs);
  const std::int64_t results = std::max<std::int64_t>(1, count_results(samples, problem));
  const std::int64_t scores =
      results * std::max<std::int64_t>(1, problem.seqlen_prefix + problem.seqlen_k);
  const std::int64_t orders = std::min({(kMinResults + results - 1) / results, kMaxOrders,
                                        std::max<std::int64_t>(1, kMaxScores / scores)});
  std::list<PartOfProblem> parts;
  const auto expect = [&](const PartOfProblem& part, const Inputs& of_part, std::int64_t most) {
    const reference::DropoutPlaces places = part.problem.dropout_places();
    std::vector<verify::Expected> expected =
        verify::expect_forward(part.problem.problem(), of_part,
                               {.o = part.results[0].tensor(), .lse = part.results[1].tensor()},
                               std::min(most, verify::yardstick_orders(scores)), places);
    if (on_gpu) {
      verify::measure_tensor_cores(part.problem.problem(), of_part, expected, places);
    }
    return expected;
  };
  for (const RowSample& sample : samples) {
    PartOfProblem& part = parts.emplace_back(PartOfProblem{{problem, inputs, sample}, {}});
    part.results.push_back(part.problem.queries(outputs.o));
    part.results.push_back(outputs.lse.given() ? part.problem.lse(outputs.lse) : Array());
    part.expected = expect(part, part.problem.inputs(), kMaxOrders);
    for (std::int64_t order = 1; order < orders; ++order) {
      const SampledProblem shuffled(problem, inputs, sample, static_cast<std::uint64_t>(order));
      verify::measure_forward(shuffled.problem(), shuffled.inputs(), 1, part.expected,
                              shuffled.dropout_places());
    }
  }
  Verification result{
      .extent = small ? "all rows" : describe(samples, problem),
      .comparisons = judge(list(parts), scores, [&](std::size_t at, std::uint64_t draw) {
        const PartOfProblem& part = *std::next(parts.begin(), static_cast<std::ptrdiff_t>(at));
        const SimilarInputs similar(part.problem.inputs(), {}, draw);
        return expect(part, similar.inputs(), kSimilarOrders);
      })};
  // Where inputs are not finite, rows that were not drawn may be NaN as well.
  if (small || all_finite({inputs.q, inputs.k, inputs.v})) {
    look_for_nan(result, "o", outputs.o, parts, 0);
    look_for_nan(result, "lse", outputs.lse, parts, 1);
  }
  if (small && outputs.max_logit.given()) {
    for (Comparison& one : judge_max_logit(problem, inputs, outputs, device)) {
      result.comparisons.push_back(std::move(one));
    }
  }
  return result;
}

Verification verify_backward(const Problem& problem, const Inputs& inputs,
                             const OutputGradients& d_outputs, const Gradients& gradients,
                             DeviceType device,
                             const std::function<void(const OutputGradients& d_outputs)>& run) {
  if (!is_small(problem)) {
    return verify_backward_sampled(problem, inputs, d_outputs.o, gradients, device, run);
  }
  run(d_outputs);
  const std::int64_t scores = scores_of(problem);
  const auto expect = [&](const Inputs& from, const OutputGradients& d, std::int64_t most) {
    std::vector<verify::Expected> expected = verify::expect_backward(
        problem, from, d, gradients, std::min(most, verify::yardstick_orders(scores)));
    if (device == DeviceType::cuda) verify::measure_tensor_cores(problem, from, d, expected);
    return expected;
  };
  std::vector<verify::Expected> expected = expect(inputs, d_outputs, kMaxOrders);
  const verify::Part whole{expected};
  return {.extent = "all rows",
          .comparisons = judge({&whole, 1}, scores, [&](std::size_t, std::uint64_t draw) {
            const SimilarInputs similar(inputs, d_outputs, draw);
            return expect(similar.inputs(), similar.d_outputs(), kSimilarOrders);
          })};
}

Verification verify_backward_sampled(
    const Problem& problem, const Inputs& inputs, const Tensor& d_o, const Gradients& gradients,
    DeviceType device, const std::function<void(const OutputGradients& d_outputs)>& run) {
  const Array sparse = io::convert(d_o, d_o.dtype);
  std::list<PartOfProblem> parts;  // of all draws
  const auto look = [&](std::uint64_t draw) {
    const std::vector<RowSample> samples = draw_rows(problem, inputs, draw);
    std::list<PartOfProblem> drawn;
    std::memset(sparse.data(), 0, sparse.bytes());
    for (const RowSample& sample : samples) {
      const PartOfProblem& part = drawn.emplace_back(PartOfProblem{{problem, inputs, sample}, {}});
      part.problem.store_queries(part.problem.queries(d_o), sparse.tensor());
    }
    run(sparse.tensor());
    const std::int64_t scores = count_results(samples, problem) *
                                std::max<std::int64_t>(1, problem.seqlen_prefix + problem.seqlen_k);
    for (PartOfProblem& part : drawn) {
      const SampledProblem& p = part.problem;
      const Array part_d_o = p.queries(d_o);
      part.results.push_back(p.queries(gradients.dq));
      part.results.push_back(p.keys(gradients.dk));
      part.results.push_back(p.keys(gradients.dv));
      part.expected = verify::expect_backward(p.problem(), p.inputs(), part_d_o.tensor(),
                                              {.dq = part.results[0].tensor(),
                                               .dk = part.results[1].tensor(),
                                               .dv = part.results[2].tensor()},
                                              verify::yardstick_orders(scores), p.dropout_places());
      if (device == DeviceType::cuda) {
        verify::measure_tensor_cores(p.problem(), p.inputs(), part_d_o.tensor(), part.expected,
                                     p.dropout_places());
      }
    }
    parts.splice(parts.end(), drawn);
    return describe(samples, problem);
  };
  Verification result{.extent = look(0), .comparisons = verify::judge(list(parts))};
  if (all_finite({inputs.q, inputs.k, inputs.v, d_o})) {
    look_for_nan(result, "dq", gradients.dq, parts, 0);
    look_for_nan(result, "dk", gradients.dk, parts, 1);
    look_for_nan(result, "dv", gradients.dv, parts, 2);
  }
  if (result.passed() || !std::isfinite(result.worst().error)) return result;
  for (std::uint64_t draw = 1; draw < kSecondLook; ++draw) look(draw);
  return {.extent = fmt::format("{}, {} draws", result.extent, kSecondLook),
          .comparisons = verify::judge(list(parts))};
}

}  // namespace attn::command
