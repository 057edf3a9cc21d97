#include "command/verify.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <list>
#include <numeric>
#include <random>
#include <set>

#include "command/sampled_problem.hpp"
#include "reference/reference.hpp"

namespace attn::command {
namespace {

using harness::Comparison;
using io::Array;
using reference::Precision;

constexpr std::int64_t kMaxScores = 1 << 22;  // evaluated by the reference in each precision, about
constexpr std::int64_t kMinPairs = 4;         // of sequence and KV head, of a large problem
constexpr std::int64_t kMinResults = 256;     // rows of query heads that make a maximum meaningful
constexpr std::int64_t kMaxOrders = 32;       // of the keys

// f64 of the same shape, NaN.
Array f64_like(const Tensor& tensor) {
  if (!tensor.given()) return {};
  Array array(DType::f64, {tensor.shape.data(), static_cast<std::size_t>(tensor.rank)});
  std::memset(array.data(), 0xff, array.bytes());
  return array;
}

using Index = std::vector<std::int64_t>;
using ToWhole = std::function<void(Index&)>;  // from a position in a part to one in the whole

void add(Verification& to, const std::string& name, const Tensor& got, const Array& expected,
         const Array& standard, const ToWhole& to_whole) {
  if (!got.given() || got.size() == 0) return;
  Comparison comparison = harness::compare(name, got, expected.tensor(), standard.tensor());
  if (to_whole && !comparison.where.empty()) to_whole(comparison.where);
  const auto found = std::find_if(to.comparisons.begin(), to.comparisons.end(),
                                  [&](const Comparison& c) { return c.tensor == name; });
  if (found == to.comparisons.end()) {
    to.comparisons.push_back(comparison);
  } else {
    merge(*found, comparison);
  }
}

struct ForwardResult {
  Array o, lse;
};

ForwardResult reference_forward(const Problem& problem, const Inputs& inputs, const Outputs& like,
                                Precision precision) {
  ForwardResult result{f64_like(like.o), f64_like(like.lse)};
  reference::forward(problem, inputs, {.o = result.o.tensor(), .lse = result.lse.tensor()},
                     precision);
  return result;
}

Verification verify_whole(const Problem& problem, const Inputs& inputs, const Outputs& outputs) {
  Verification result{.extent = "all rows", .comparisons = {}};
  const ForwardResult expected = reference_forward(problem, inputs, outputs, Precision::f64);
  const ForwardResult standard = reference_forward(problem, inputs, outputs, Precision::problem);
  add(result, "o", outputs.o, expected.o, standard.o, nullptr);
  add(result, "lse", outputs.lse, expected.lse, standard.lse, nullptr);
  return result;
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
// which sees most keys under a causal mask, is among them.
std::vector<RowSample> draw_rows(const Problem& problem, const Inputs& inputs) {
  std::mt19937_64 random(1);  // the same rows for every algorithm
  const auto below = [&](std::int64_t limit) {
    return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(limit));
  };
  const std::int64_t group = problem.heads_q / problem.heads_k;
  const std::int64_t scores_of_row = std::max<std::int64_t>(1, problem.seqlen_k) * group;
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

// [1, row, head, dim], [1, head, row] and [1, key, 1, dim] of a part.
ToWhole from_queries(const SampledProblem& part) {
  return [&part](Index& at) {
    const RowSample& sample = part.sample();
    at[0] = sample.batch;
    at[1] = sample.rows[static_cast<std::size_t>(at[1])];
    at[2] += sample.head_k * part.group();
  };
}
ToWhole from_lse(const SampledProblem& part) {
  return [&part](Index& at) {
    const RowSample& sample = part.sample();
    at[0] = sample.batch;
    at[1] += sample.head_k * part.group();
    at[2] = sample.rows[static_cast<std::size_t>(at[2])];
  };
}
ToWhole from_keys(const SampledProblem& part) {
  return [&part](Index& at) {
    at[0] = part.sample().batch;
    at[2] = part.sample().head_k;
  };
}

// A NaN anywhere fails the comparison of the tensor.
void look_for_nan(Verification& in, const std::string& name, const Tensor& tensor) {
  if (!tensor.given()) return;
  const Array converted = io::convert(tensor, DType::f64);
  const auto* begin = static_cast<const double*>(converted.tensor().data);
  if (std::none_of(begin, begin + tensor.size(), [](double x) { return std::isnan(x); })) return;
  for (Comparison& comparison : in.comparisons) {
    if (comparison.tensor != name) continue;
    comparison.error = std::numeric_limits<double>::infinity();
    comparison.got = std::numeric_limits<double>::quiet_NaN();
  }
}

}  // namespace

bool Verification::passed() const {
  return std::all_of(comparisons.begin(), comparisons.end(),
                     [](const Comparison& c) { return c.passed(); });
}

const Comparison& Verification::worst() const {
  const auto ratio = [](const Comparison& c) {
    return c.error == 0 ? 0 : c.error / std::max(c.allowed, std::numeric_limits<double>::min());
  };
  return *std::max_element(
      comparisons.begin(), comparisons.end(),
      [&](const Comparison& a, const Comparison& b) { return ratio(a) < ratio(b); });
}

bool is_small(const Problem& p) {
  return static_cast<double>(p.batch * p.heads_q) * static_cast<double>(p.seqlen_q) *
             static_cast<double>(p.seqlen_k) <=
         static_cast<double>(kMaxScores);
}

Verification verify_forward(const Problem& problem, const Inputs& inputs, const Outputs& outputs) {
  if (problem.dropout.probability > 0) return verify_whole(problem, inputs, outputs);
  const bool small = is_small(problem);
  const std::vector<RowSample> samples =
      small ? all_rows(problem, inputs) : draw_rows(problem, inputs);
  Verification result{.extent = small ? "all rows" : describe(samples, problem), .comparisons = {}};
  const std::int64_t results = std::max<std::int64_t>(1, count_results(samples, problem));
  const std::int64_t scores = results * std::max<std::int64_t>(1, problem.seqlen_k);
  const std::int64_t orders = std::min({(kMinResults + results - 1) / results, kMaxOrders,
                                        std::max<std::int64_t>(1, kMaxScores / scores)});
  for (const RowSample& sample : samples) {
    const SampledProblem part(problem, inputs, sample);
    const Array o = part.queries(outputs.o);
    const Array lse = outputs.lse.given() ? part.lse(outputs.lse) : Array();
    const Outputs got{.o = o.tensor(), .lse = lse.tensor()};
    const ForwardResult expected =
        reference_forward(part.problem(), part.inputs(), got, Precision::f64);
    for (std::int64_t order = 0; order < orders; ++order) {
      const SampledProblem shuffled(problem, inputs, sample, static_cast<std::uint64_t>(order));
      const ForwardResult standard =
          reference_forward(shuffled.problem(), shuffled.inputs(), got, Precision::problem);
      add(result, "o", got.o, expected.o, standard.o, from_queries(part));
      add(result, "lse", got.lse, expected.lse, standard.lse, from_lse(part));
    }
  }
  look_for_nan(result, "o", outputs.o);
  look_for_nan(result, "lse", outputs.lse);
  return result;
}

Verification verify_backward(const Problem& problem, const Inputs& inputs,
                             const OutputGradients& d_outputs, const Gradients& gradients,
                             const std::function<void(const OutputGradients& d_outputs)>& run) {
  if (!is_small(problem) && problem.dropout.probability == 0) {
    return verify_backward_sampled(problem, inputs, d_outputs.o, gradients, run);
  }
  run(d_outputs);
  std::list<Array> memory;
  const auto compute = [&](Precision precision) {
    const auto like = [&](const Tensor& t) { return memory.emplace_back(f64_like(t)).tensor(); };
    Gradients to{.dq = like(gradients.dq),
                 .dk = like(gradients.dk),
                 .dv = like(gradients.dv),
                 .dsink = like(gradients.dsink),
                 .buffers = {}};
    for (const auto& [name, tensor] : gradients.buffers)
      to.buffers.emplace_back(name, like(tensor));
    reference::backward(problem, inputs, {}, d_outputs, to, precision);
    return to;
  };
  const Gradients expected = compute(Precision::f64);
  const Gradients standard = compute(Precision::problem);
  Verification result{.extent = "all rows", .comparisons = {}};
  const auto add_one = [&](const std::string& name, const Tensor& got, const Tensor& right,
                           const Tensor& yardstick) {
    if (!got.given() || got.size() == 0) return;
    result.comparisons.push_back(harness::compare(name, got, right, yardstick));
  };
  add_one("dq", gradients.dq, expected.dq, standard.dq);
  add_one("dk", gradients.dk, expected.dk, standard.dk);
  add_one("dv", gradients.dv, expected.dv, standard.dv);
  add_one("dsink", gradients.dsink, expected.dsink, standard.dsink);
  for (std::size_t i = 0; i < gradients.buffers.size(); ++i) {
    const auto& [name, got] = gradients.buffers[i];
    add_one("d" + name, got, expected.buffers[i].second, standard.buffers[i].second);
  }
  return result;
}

Verification verify_backward_sampled(
    const Problem& problem, const Inputs& inputs, const Tensor& d_o, const Gradients& gradients,
    const std::function<void(const OutputGradients& d_outputs)>& run) {
  const std::vector<RowSample> samples = draw_rows(problem, inputs);
  Verification result{.extent = describe(samples, problem), .comparisons = {}};
  const Array sparse = io::convert(d_o, d_o.dtype);
  std::memset(sparse.data(), 0, sparse.bytes());
  std::vector<SampledProblem> parts;
  for (const RowSample& sample : samples) {
    const SampledProblem& part = parts.emplace_back(problem, inputs, sample);
    part.store_queries(part.queries(d_o), sparse.tensor());
  }
  run(sparse.tensor());
  for (const SampledProblem& part : parts) {
    const Array part_d_o = part.queries(d_o);
    const Array dq = part.queries(gradients.dq);
    const Array dk = part.keys(gradients.dk);
    const Array dv = part.keys(gradients.dv);
    std::array<std::array<Array, 3>, 2> references;  // dq, dk, dv in fp64 and in low precision
    for (const Precision precision : {Precision::f64, Precision::problem}) {
      std::array<Array, 3>& to = references[precision == Precision::f64 ? 0 : 1];
      to = {f64_like(dq.tensor()), f64_like(dk.tensor()), f64_like(dv.tensor())};
      reference::backward(part.problem(), part.inputs(), {}, part_d_o.tensor(),
                          {.dq = to[0].tensor(), .dk = to[1].tensor(), .dv = to[2].tensor()},
                          precision);
    }
    const auto& [expected, standard] = references;
    add(result, "dq", dq.tensor(), expected[0], standard[0], from_queries(part));
    add(result, "dk", dk.tensor(), expected[1], standard[1], from_keys(part));
    add(result, "dv", dv.tensor(), expected[2], standard[2], from_keys(part));
  }
  look_for_nan(result, "dq", gradients.dq);
  look_for_nan(result, "dk", gradients.dk);
  look_for_nan(result, "dv", gradients.dv);
  return result;
}

}  // namespace attn::command
