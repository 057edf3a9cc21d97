#include "cpu/prefix.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <optional>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "attn/error.hpp"
#include "core/cache_type.hpp"
#include "core/made_for.hpp"
#include "core/problem/numbers.hpp"
#include "core/problem/prefix_parts.hpp"
#include "core/problem/rows.hpp"
#include "core/tensor/element.hpp"
#include "core/text/echo.hpp"
#include "core/validate/plan_field.hpp"
#include "cpu/cpu.hpp"
#include "cpu/plan_check.hpp"
#include "cpu/tile_ops.hpp"
#include "cpu/workers.hpp"
#include "cpu/workspace_store.hpp"

namespace attn::cpu {
namespace {

using core::Size;

constexpr std::size_t kMostParts = 3;

// The passes of a problem, each with a plan of its own.
struct Passes {
  core::PrefixParts parts{};
  std::optional<Plan> shared{}, rest{};
  Plan own{};
};

Passes plan_passes(const Problem& problem, bool as_one, const PlanOptions& options,
                   const Context& context) {
  Passes passes{.parts = core::prefix_parts(problem, core::OwnLengths::seqused, as_one)};
  const auto plan = [&](const Problem& part) {
    return cpu::plan(part, Phase::forward, options, context);
  };
  if (passes.parts.shared) {
    passes.parts.shared->layout_q = Layout::packed;
    passes.shared = plan(*passes.parts.shared);
  }
  if (passes.parts.rest) passes.rest = plan(*passes.parts.rest);
  passes.own = plan(passes.parts.own);
  return passes;
}

struct PrefixState : core::MadeFor {
  PrefixState(const Plan& plan, PlanOptions its_options, Passes its_passes)
      : core::MadeFor{Backend::cpu, Phase::forward},
        numbers(core::numbers_of(plan.problem)),
        mask(plan.problem.mask),
        score(plan.problem.score),
        options(std::move(its_options)),
        passes(std::move(its_passes)) {}

  bool is_of(const Plan& plan) const {
    return core::numbers_of(plan.problem) == numbers && plan.problem.mask.get() == mask.get() &&
           plan.problem.score.get() == score.get();
  }

  core::ProblemNumbers numbers;
  expr::Expr mask, score;
  PlanOptions options;
  Passes passes;
};

DType partial_dtype(const Problem& p) { return p.dtype == DType::f64 ? DType::f64 : DType::f32; }

// Bytes of O, LSE and its rest of one part; rows of Q, of all heads.
Size partial_bytes(const Problem& p, Size rows) {
  const auto element = static_cast<std::int64_t>(size_of(partial_dtype(p)));
  return aligned(rows * p.head_dim_v * element) + 2 * aligned(rows * Size(sizeof(double)));
}

Size workspace_of(const Problem& p, const Passes& passes) {
  std::int64_t count = 1, most = passes.own.workspace_bytes;
  for (const std::optional<Plan>* part : {&passes.shared, &passes.rest}) {
    if (!*part) continue;
    ++count;
    most = std::max(most, (*part)->workspace_bytes);
  }
  const Size lengths = aligned(Size(p.batch) * Size(sizeof(std::int32_t)));
  return count * partial_bytes(p, Size(p.batch) * p.seqlen_q * p.heads_q) + aligned(most) + lengths;
}

// The fields that a run reads: the caller may change those of the own keys' plan.
auto fields_of(auto& plan) {
  return std::tie(plan.algorithm, plan.isa, plan.compute, plan.block_q, plan.block_k,
                  plan.rows_per_task, plan.num_splits, plan.threads);
}

// O [rows, heads_q, head_dim_v], LSE and its rest [rows, heads_q] of a part, in the order of the
// rows of Q. LSE is f64 and has a rest (Attention::lse_rest): near 1e9 f32, and near 1e30, where an
// additive mask may put it, f64 would not tell 200 keys from 10.
struct PassResult {
  std::byte* o = nullptr;
  double *lse = nullptr, *lse_rest = nullptr;
};

// Runs the parts of one call and merges them.
class Run {
 public:
  Run(const Problem& problem, const Inputs& inputs, const Outputs& outputs, const Context& context,
      Executor& executor, Workspace& workspace)
      : p_(problem),
        inputs_(inputs),
        outputs_(outputs),
        context_(context),
        executor_(executor),
        workspace_(workspace),
        dtype_(partial_dtype(problem)) {
    rows_ = p_.batch * p_.seqlen_q;
    // Rows of a packed Q behind the last sequence take no part.
    if (p_.layout_q == Layout::packed) rows_ = std::min(rows_, inputs.q.shape[0]);
  }

  void run(const Passes& passes, const Plan& own) {
    const core::PrefixParts& parts = passes.parts;
    if (parts.shared && rows_ > 0) {
      Inputs part = core::shared_inputs(p_, parts, inputs_);
      const std::array<std::int32_t, 2> starts{0, static_cast<std::int32_t>(part.q.shape[0])};
      part.cu_seqlens_q = tensor(starts.data(), {2});
      attend(*passes.shared, part, true);
    }
    if (parts.rest) {
      Inputs part = core::rest_inputs(p_, parts, inputs_);
      auto* const lengths = workspace_.take_array<std::int32_t>(p_.batch, "lengths of own keys");
      for (std::int64_t b = 0; b < p_.batch; ++b) {
        lengths[b] =
            core::sequence(p_, inputs_, b).length_k - static_cast<std::int32_t>(p_.seqlen_prefix);
      }
      part.buffers.emplace_back(core::kOwnLengths, tensor(lengths, {p_.batch}));
      attend(*passes.rest, part, false);
    }
    attend(own, core::own_inputs(inputs_), false);
    merge(own);
  }

 private:
  // O and LSE of a part, as a call writes them; `as_one`: all rows as one packed sequence.
  void attend(const Plan& plan, Inputs part, bool as_one) {
    const auto element = static_cast<std::int64_t>(size_of(dtype_));
    PassResult& to = partials_[count_++];
    to.o = workspace_.take(Size(rows_) * p_.heads_q * p_.head_dim_v * element, "parts of O");
    const auto take_lse = [&] {
      return reinterpret_cast<double*>(
          workspace_.take(Size(rows_) * p_.heads_q * Size(sizeof(double)), "LSE of parts"));
    };
    to.lse = take_lse();
    to.lse_rest = take_lse();
    Outputs outputs;
    outputs.max_logit = outputs_.max_logit;
    const std::int64_t h = p_.heads_q;
    if (as_one || p_.layout_q == Layout::packed) {
      part.q.shape[0] = rows_;
      outputs.o = tensor(static_cast<void*>(to.o), dtype_, {rows_, h, p_.head_dim_v});
      outputs.lse = tensor(to.lse, {h, rows_});
      outputs.lse.strides = {1, h, 0, 0};
    } else {
      outputs.o =
          tensor(static_cast<void*>(to.o), dtype_, {p_.batch, p_.seqlen_q, h, p_.head_dim_v});
      outputs.lse = tensor(to.lse, {p_.batch, h, p_.seqlen_q});
      outputs.lse.strides = {p_.seqlen_q * h, 1, h, 0};
    }
    const Workspace::Scope of_pass(workspace_);
    Context context = context_;
    const Size bytes = plan.workspace_bytes;
    context.workspace = tensor(static_cast<void*>(workspace_.take(bytes)), DType::u8,
                               {static_cast<std::int64_t>(bytes.bytes())});
    Tensor lse_rest = outputs.lse;
    lse_rest.data = to.lse_rest;
    forward_pass(plan, part, outputs, context, lse_rest);
  }

  void merge(const Plan& plan) {
    const Workers workers(executor_, plan.threads, workspace_);
    const std::int64_t sequences = core::cleared_sequences(p_);
    // Rows of a task, where sequences have as many as each other: handing it out then costs little.
    constexpr std::int64_t kRows = 16;
    const std::int64_t pieces = rows_ / (kRows * sequences) + 1;
    workers.parallel_for(sequences * pieces, [&](std::int64_t index, int) {
      const std::int64_t batch = index / pieces, piece = index % pieces;
      const core::Sequence s = core::sequence(p_, inputs_, batch);
      const std::int64_t begin = s.capacity_q * piece / pieces;
      const std::int64_t end = s.capacity_q * (piece + 1) / pieces;
      if (dtype_ == DType::f64) {
        merge_rows<double>(plan, s, begin, end);
      } else {
        merge_rows<float>(plan, s, begin, end);
      }
    });
  }

  template <class Real>
  void merge_rows(const Plan& plan, const core::Sequence& s, std::int64_t begin, std::int64_t end) {
    constexpr Real kInfinity = std::numeric_limits<Real>::infinity();
    const core::Rows o_rows = core::rows_like_q(p_, inputs_, outputs_.o, s.batch);
    const bool has_lse = outputs_.lse.given();
    const core::Rows lse_rows =
        has_lse ? core::lse_rows(p_, inputs_, outputs_.lse, s.batch) : core::Rows{};
    const std::int64_t first = p_.layout_q == Layout::packed
                                   ? core::Integers(inputs_.cu_seqlens_q)[s.batch]
                                   : s.batch * p_.seqlen_q;
    Real sum[kMaxHeadDim];
    for (std::int64_t i = begin; i < end; ++i) {
      for (std::int64_t h = 0; h < p_.heads_q; ++h) {
        Real lse = -kInfinity;
        std::fill_n(sum, p_.head_dim_v, Real{0});
        if (i < s.length_q) lse = merge_row<Real>((first + i) * p_.heads_q + h, sum);
        store(plan, sum, o_rows.row(i, h));
        if (has_lse) *reinterpret_cast<Real*>(lse_rows.row(i, h)) = lse;
      }
    }
  }

  // sum <- sum_p exp(LSE_p - LSE) O_p; returns LSE. Weights are divided by their sum at the end:
  // exp(LSE_p - LSE) would lose log(sum) where LSE is large.
  template <class Real>
  Real merge_row(std::int64_t row, Real* sum) const {
    constexpr double kNothing = -std::numeric_limits<double>::infinity();
    double lse[kMostParts], maximum = kNothing, only = 0;
    int seen = 0;
    for (std::size_t i = 0; i < count_; ++i) {
      lse[i] = partials_[i].lse[row];
      if (lse[i] == kNothing) continue;
      ++seen;
      only = lse[i];
      if (lse[i] > maximum) maximum = lse[i];
    }
    if (seen == 0) return static_cast<Real>(kNothing);
    double total = 0, weight[kMostParts];
    for (std::size_t i = 0; i < count_; ++i) {
      // A part alone is the result, also where its LSE is infinite or NaN.
      const double rest = partials_[i].lse_rest[row];
      weight[i] = lse[i] == kNothing ? 0 : seen == 1 ? 1 : std::exp(lse[i] - maximum + rest);
      total += weight[i];
    }
    for (std::size_t i = 0; i < count_; ++i) {
      if (weight[i] == 0) continue;
      const auto factor = static_cast<Real>(weight[i] / total);
      const Real* const o = reinterpret_cast<const Real*>(partials_[i].o) + row * p_.head_dim_v;
      for (std::int64_t d = 0; d < p_.head_dim_v; ++d) sum[d] += factor * o[d];
    }
    return static_cast<Real>(seen == 1 ? only : maximum + std::log(total));
  }

  void store(const Plan&, const double* sum, std::byte* to) const {
    std::copy_n(sum, p_.head_dim_v, reinterpret_cast<double*>(to));
  }
  void store(const Plan& plan, const float* sum, std::byte* to) const {
    tile_ops(plan.isa, DType::f32)
        .store_row(sum, static_cast<int>(p_.head_dim_v), 1, core::type_of_o(p_), to);
  }

  const Problem& p_;
  const Inputs& inputs_;
  const Outputs& outputs_;
  const Context& context_;
  Executor& executor_;
  Workspace& workspace_;
  DType dtype_;
  std::int64_t rows_ = 0;  // of Q
  std::array<PassResult, kMostParts> partials_{};
  std::size_t count_ = 0;
};

}  // namespace

Plan plan_prefix(const Problem& problem, const PlanOptions& options, const Context& context) {
  Passes passes = plan_passes(problem, true, options, context);
  Plan plan = passes.own;
  plan.problem = problem;
  plan.reasons = {core::prefix_reason(problem, passes.parts)};
  const auto add = [&](std::string_view what, const Plan& part) {
    for (const std::string& reason : part.reasons) {
      plan.reasons.push_back(std::string(what) + ": " + reason);
    }
  };
  if (passes.shared) add("keys that are read once", *passes.shared);
  if (passes.rest) add("other keys of the prefix", *passes.rest);
  add("own keys", passes.own);
  for (const std::optional<Plan>* part : {&passes.shared, &passes.rest}) {
    if (*part) plan.tasks = std::max(plan.tasks, (*part)->tasks);
  }
  const Size workspace = workspace_of(problem, passes);
  if (!workspace.fits()) {
    throw Error(ErrorCode::out_of_memory, "workspace of the parts is " + to_string(workspace) +
                                              " bytes, which no memory has (problem " +
                                              core::echo(problem) + ")");
  }
  plan.workspace_bytes = workspace.value();
  plan.state = std::shared_ptr<core::MadeFor>(
      std::make_shared<PrefixState>(plan, options, std::move(passes)));
  return plan;
}

void forward_prefix(const Plan& plan, const Inputs& inputs, const Outputs& outputs,
                    const Context& context) {
  const Problem& p = plan.problem;
  const auto* const state = static_cast<const PrefixState*>(core::made_for(plan));
  if (!state->is_of(plan)) {
    core::refuse_plan_field(plan, "problem", core::echo(to_string(p)),
                            "with a shared prefix that of make_plan");
  }
  const Passes* passes = &state->passes;
  std::optional<Passes> anew;
  if (passes->shared &&
      (!core::is_in_line(p, inputs) || core::counts_unused_rows(p, inputs, outputs))) {
    passes = &anew.emplace(plan_passes(p, false, state->options, context));
  }
  std::optional<Plan> changed;
  const Plan* own = &passes->own;
  if (fields_of(plan) != fields_of(*own)) {
    fields_of(changed.emplace(*own)) = fields_of(plan);
    own = &*changed;
  }
  check_plan(*own, Phase::forward);
  const std::shared_ptr<Executor> executor = executor_of(context);
  CallWorkspace workspace(*executor, context.workspace);
  Run(p, inputs, outputs, context, *executor, *workspace).run(*passes, *own);
}

}  // namespace attn::cpu
