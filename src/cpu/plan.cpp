// Choices of the CPU backend. Everything that changes the order of sums (blocks, splits) depends on
// the problem and the instruction set alone; the number of threads only decides how rows are handed
// out.
#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "attn/error.hpp"
#include "core/cache_type.hpp"
#include "core/ceil_div.hpp"
#include "core/problem/costs.hpp"
#include "core/tensor/size.hpp"
#include "core/text/echo.hpp"
#include "cpu/budgets.hpp"
#include "cpu/cpu.hpp"
#include "cpu/f64/f64.hpp"
#include "cpu/forward/few_rows.hpp"
#include "cpu/forward/splits.hpp"
#include "cpu/plan_check.hpp"
#include "cpu/plan_state.hpp"
#include "cpu/prefix.hpp"
#include "cpu/workspace_bytes.hpp"

namespace attn::cpu {
namespace {

using core::ceil_div;
using core::Size;

// Ranges of keys of the backward pass cost a dQ each, so there are fewer than kEnoughTasks.
constexpr std::int64_t kEnoughRangeTasks = 16;

// Each sequence has parts by its own length, the longest that there may be the most.
void choose_invariant_splits(Plan& plan) {
  const Problem& p = plan.problem;
  plan.num_splits =
      static_cast<std::int32_t>(invariant_splits(p, plan.algorithm, plan.block_q, p.seqlen_k));
  plan.reasons.emplace_back(
      "batch_invariant: algorithm and tiles are those of one sequence, whose own length says into "
      "how many parts its keys are cut");
}

void choose_forward(Plan& plan) {
  const Problem& p = plan.problem;
  const std::int64_t batch = plan.batch_invariant ? 1 : p.batch;
  const std::int64_t rows = p.seqlen_q * (p.heads_q / p.heads_k);
  const bool one_block = rows <= plan.block_q;
  const std::int64_t blocks = (Size(batch) * p.heads_k * ceil_div(rows, plan.block_q)).value();
  const std::int64_t useful = useful_splits(p, p.seqlen_k);
  // By name it splits the keys where that is of any use.
  std::int64_t least_splits = std::min<std::int64_t>(2, useful);
  if (plan.algorithm == Algorithm::automatic) {
    if (has_few_rows(p)) {
      plan.algorithm = Algorithm::flash_decoding;
      plan.reasons.push_back("flash_decoding: at most " + std::to_string(kMaxDecodeRows) +
                             " rows share a K, V head, so time is reading K and V once");
    } else if (one_block && p.heads_k > 1 && useful > 1) {
      plan.algorithm = Algorithm::flash_decoding;
      least_splits = 1;
      plan.reasons.emplace_back(
          "flash_decoding: the rows that share a K, V head are one Q block, so "
          "that heads which lie side by side are read together");
    } else if (blocks < kEnoughTasks / 2 && useful > 1) {
      plan.algorithm = Algorithm::flash_decoding;
      plan.reasons.push_back(
          "flash_decoding: " + std::to_string(blocks) +
          " Q blocks alone would leave threads idle, so the keys are split as well");
    } else {
      plan.algorithm = Algorithm::flash_attention_2;
      plan.reasons.push_back("flash_attention_2: " + std::to_string(blocks) +
                             " Q blocks to run in parallel");
    }
  }
  if (plan.batch_invariant) return choose_invariant_splits(plan);
  if (p.key_list > 0) {
    plan.num_splits = static_cast<std::int32_t>(list_splits(p, plan.block_q, batch));
    return;
  }
  switch (plan.algorithm) {
    case Algorithm::flash_decoding:
      plan.num_splits = static_cast<std::int32_t>(
          std::clamp(wanted_splits(p, plan.block_q, batch), least_splits, useful));
      break;
    case Algorithm::memory_efficient: {
      // sqrt(n) keys a chunk, as in the paper, in whole K blocks.
      const auto root = static_cast<std::int64_t>(std::sqrt(static_cast<double>(p.seqlen_k)));
      const std::int64_t chunk = ceil_div(std::max<std::int64_t>(root, 1), kBlockK) * kBlockK;
      plan.num_splits =
          static_cast<std::int32_t>(std::max<std::int64_t>(1, ceil_div(p.seqlen_k, chunk)));
      break;
    }
    case Algorithm::automatic:
    case Algorithm::standard:
    case Algorithm::flash_attention:
    case Algorithm::flash_attention_2:
    case Algorithm::block_sparse:
      break;
  }
}

void choose_backward(Plan& plan) {
  const Problem& p = plan.problem;
  if (plan.algorithm == Algorithm::automatic) {
    plan.algorithm = Algorithm::flash_attention_2;
    plan.reasons.emplace_back("flash_attention_2: P is recomputed from LSE, tile by tile");
  }
  if (plan.algorithm == Algorithm::standard) return;
  const std::int64_t heads = std::max<std::int64_t>(1, p.batch * p.heads_k);
  if (p.key_list > 0) {
    const std::int64_t sums = std::max<std::int64_t>(
        1, (Size(p.seqlen_k) * (p.head_dim + p.head_dim_v) * sizeof(float)).value());
    plan.num_splits = static_cast<std::int32_t>(
        std::clamp<std::int64_t>(std::min(ceil_div(kEnoughRangeTasks, heads), kSplitBudget / sums),
                                 1, std::max<std::int64_t>(1, p.seqlen_q)));
    if (plan.num_splits > 1) {
      plan.reasons.push_back(std::to_string(plan.num_splits) + " ranges of queries, because " +
                             std::to_string(heads) +
                             " K, V heads are few; each keeps a dK and dV of its own");
    }
    return;
  }
  const std::int64_t split_bytes = std::max<std::int64_t>(
      1, (Size(p.batch) * p.heads_q * p.seqlen_q * p.head_dim * size_of(plan.compute)).value());
  const std::int64_t useful = std::max<std::int64_t>(1, p.seqlen_k / kMinSplitKeys);
  plan.num_splits = static_cast<std::int32_t>(std::clamp<std::int64_t>(
      std::min(ceil_div(kEnoughRangeTasks, heads), kSplitBudget / split_bytes), 1, useful));
  if (plan.num_splits > 1) {
    plan.reasons.push_back(std::to_string(plan.num_splits) + " ranges of keys, because " +
                           std::to_string(heads) +
                           " K, V heads are few; each keeps a dQ of its own");
  }
}

// What a worker has to do to be worth waking, which takes 5 to 50 us (thread_pool.cpp): some 20 us
// at 100 GFLOP/s, or as many bytes to read as take as long (docs/cpu.md, "Roofline").
constexpr double kFlopsPerWorker = 2e6;
constexpr double kFlopsPerByte = 6;

// Workers for which the problem has work, of those there are. As if every key were visible:
// counting visible ones would cost more than waking.
int choose_threads(const Problem& p, Phase phase, int available) {
  const double elements = static_cast<double>(p.batch * p.heads_q) *
                          static_cast<double>(p.seqlen_q) *
                          static_cast<double>(p.key_list > 0 ? p.key_list : p.seqlen_k);
  const double work =
      elements * core::flops_per_element(p, phase) + core::bytes(p, phase) * kFlopsPerByte;
  const double useful = std::min(work / kFlopsPerWorker, static_cast<double>(available));
  return std::max(1, static_cast<int>(useful));
}

void check_options(const Problem& problem, Phase phase, const PlanOptions& options) {
  if (problem.key_list > 0 && options.algorithm != Algorithm::automatic &&
      options.algorithm != Algorithm::flash_attention_2) {
    throw Error(ErrorCode::unsupported,
                "algorithm " + std::string(name(options.algorithm)) +
                    " takes no lists of keys on the cpu backend, and key_list is " +
                    std::to_string(problem.key_list) +
                    "; accepted are automatic, flash_attention_2");
  }
  if (problem.dtype == DType::f64 && options.algorithm != Algorithm::automatic &&
      options.algorithm != Algorithm::flash_attention_2) {
    throw Error(ErrorCode::unsupported,
                "algorithm " + std::string(name(options.algorithm)) + " has no f64 " +
                    std::string(name(phase)) +
                    " pass on the cpu backend; accepted are automatic, flash_attention_2");
  }
  const std::vector<Algorithm> known = algorithms(phase);
  if (options.algorithm != Algorithm::automatic &&
      std::find(known.begin(), known.end(), options.algorithm) == known.end()) {
    std::string names = "automatic";
    for (const Algorithm algorithm : known) names += ", " + std::string(name(algorithm));
    throw Error(ErrorCode::unsupported, "algorithm " + std::string(name(options.algorithm)) +
                                            " has no " + std::string(name(phase)) +
                                            " pass on the cpu backend; accepted are " + names);
  }
}

void choose_workers(Plan& plan, int asked, int workers) {
  plan.threads =
      asked == 0 ? choose_threads(plan.problem, plan.phase, workers) : std::min(asked, workers);
  if (plan.threads == workers) return;
  plan.reasons.push_back(std::to_string(plan.threads) + " of " + std::to_string(workers) +
                         (asked == 0 ? " threads: waking more would cost more than they do"
                                     : " threads, as asked for"));
}

bool decodes(const Plan& plan) {
  return plan.algorithm == Algorithm::flash_decoding && has_few_rows(plan.problem);
}

// Whether few rows are multiplied as bf16: where so many heads share K and V that products, not
// reading, take the time (docs/log/cpu-serving.md, "Decoding with products of bf16" and "Decoding
// with VDPBF16PS"). By the group alone, so that a sequence runs as it does beside longer ones.
bool should_decode_bf16(const Plan& plan) {
  const Problem& p = plan.problem;
  return decodes_bf16(p, tile_ops(plan.isa, DType::bf16)) && p.heads_q / p.heads_k >= 5;
}

// Whether the verbs that multiply bf16 operands take this pass at all.
bool may_multiply_bf16(const Plan& plan) {
  return plan.problem.dtype == DType::bf16 && has_bf16_products(plan.isa, false) &&
         (plan.phase == Phase::forward || has_backward(tile_ops(plan.isa, DType::bf16))) &&
         (!decodes(plan) || should_decode_bf16(plan)) && plan.algorithm != Algorithm::standard;
}

void choose_operands(Plan& plan, InstructionSet asked) {
  const Problem& p = plan.problem;
  if (may_multiply_bf16(plan)) {
    const int multiple = tile_ops(plan.isa, DType::bf16).dim_multiple;
    // A scale that is not positive could not be applied after the row maximum is taken.
    if (core::has_own_type_q(p)) {
      plan.reasons.push_back("f32 operands: Q (" + std::string(name(p.type_q)) +
                             ") times its scale would be rounded to bf16");
    } else if (!scales_bf16(p.scale())) {
      plan.reasons.emplace_back(
          "f32 operands: bf16 operands need a softmax_scale from 2^-32 to 2^32");
    } else if (p.head_dim % multiple != 0 || p.head_dim_v % multiple != 0) {
      plan.reasons.push_back("f32 operands: bf16 tiles need head sizes that are multiples of " +
                             std::to_string(multiple));
    } else if (!has_bf16_products(plan.isa, asked == InstructionSet::automatic)) {
      plan.reasons.emplace_back(
          "f32 operands: this CPU's VDPBF16PS does less work in a cycle than its f32 FMA");
    } else {
      plan.compute = DType::bf16;
      plan.reasons.emplace_back(
          plan.isa == InstructionSet::amx_bf16
              ? "bf16 operands: TDPBF16PS does sixteen times the work of an f32 FMA in a cycle"
          : plan.isa == InstructionSet::neon_bf16
              ? "bf16 operands: BFDOT does twice the work of an f32 FMLA"
              : "bf16 operands: VDPBF16PS does twice the work of an f32 FMA");
    }
  }
  if (plan.compute == DType::f32 && p.dtype != DType::f32) {
    plan.reasons.push_back(std::string(name(p.dtype)) +
                           " rows are widened to f32 when they are packed");
  }
}

std::int64_t most_blocks_per_task(const Problem& p) {
  return p.dtype == DType::f64 ? f64::kMaxBlocksPerTask : kMaxBlocksPerTask;
}

void choose_tasks(Plan& plan) {
  const Problem& p = plan.problem;
  // Rows of one list are those of a query, whose parts are tasks of their own.
  const bool has_lists = p.key_list > 0 && p.dtype != DType::f64 && plan.phase == Phase::forward;
  const Size pairs = Size(p.batch) * p.heads_k;
  const Size passes = has_lists ? pairs * p.seqlen_q : pairs;
  const std::int64_t rows = (has_lists ? 1 : p.seqlen_q) * (p.heads_q / p.heads_k);
  if (decodes(plan)) {
    plan.rows_per_task = kMaxDecodeRows;
  } else {
    // Rows that share a pass over K and V share its packing; fewer where that would leave threads
    // without a task. Tasks of lists are alike, so that two a thread are enough.
    auto blocks = static_cast<int>(
        std::clamp<std::int64_t>(ceil_div(rows, plan.block_q), 1, most_blocks_per_task(p)));
    while (blocks > 1 && passes * (has_lists ? plan.num_splits : 1) *
                                 ceil_div(rows, std::int64_t{blocks} * plan.block_q) <
                             (has_lists ? 2 : 4) * plan.threads) {
      blocks /= 2;
    }
    plan.rows_per_task = blocks * plan.block_q;
  }
  const Size tasks_of_pass = plan.phase == Phase::backward ? 1 : ceil_div(rows, plan.rows_per_task);
  plan.tasks = (passes * tasks_of_pass * plan.num_splits).value();
}

void finish(Plan& plan, std::vector<Plan> shorter) {
  const auto state = std::make_shared<PlanState>(plan, std::move(shorter));
  const Size workspace = workspace_bytes(plan, *state);
  if (!workspace.fits()) {
    throw Error(ErrorCode::out_of_memory, "workspace of " + std::string(name(plan.algorithm)) +
                                              " is " + to_string(workspace) +
                                              " bytes, which no memory has (problem " +
                                              core::echo(plan.problem) + ")");
  }
  plan.workspace_bytes = workspace.value();
  plan.state = std::shared_ptr<core::MadeFor>(state);
}

// The choices for sequences that are as long as the problem says.
Plan plan_of_longest(const Problem& problem, Phase phase, const PlanOptions& options,
                     const Context& context) {
  Plan plan;
  plan.problem = problem;
  plan.phase = phase;
  plan.backend = Backend::cpu;
  plan.batch_invariant = options.batch_invariant;
  const bool is_f64 = problem.dtype == DType::f64;
  plan.algorithm =
      is_f64 || problem.key_list > 0 ? Algorithm::flash_attention_2 : options.algorithm;
  plan.compute = is_f64 ? DType::f64 : DType::f32;
  plan.isa = best_instruction_set(context.isa);
  plan.block_q = is_f64 ? f64::kBlockQ : tile_ops(plan.isa, DType::f32).rows;
  plan.block_k = kBlockK;
  choose_workers(plan, options.threads, executor_of(context)->concurrency());
  if (is_f64) {
    plan.reasons.emplace_back("flash_attention_2: the one algorithm in f64, on f64 operands");
  } else if (problem.key_list > 0) {
    plan.reasons.emplace_back(
        "flash_attention_2: the one algorithm of lists of keys, whose rows of K and V are "
        "gathered");
  }
  phase == Phase::forward ? choose_forward(plan) : choose_backward(plan);
  choose_operands(plan, context.isa);
  choose_tasks(plan);
  return plan;
}

// Plans for the sequences of a packed Q that have fewer rows than the longest, which alone would
// say how all of them run: for those that fit the decoding verbs, and for those of one Q block.
// Example: beside a chunk of 128 queries, 31 requests that decode do as 32 of them would alone.
std::vector<Plan> plan_shorter(Plan& longest, const PlanOptions& options, const Context& context) {
  std::vector<Plan> plans;
  const Problem& p = longest.problem;
  const bool one_algorithm = p.dtype == DType::f64 || p.key_list > 0;
  if (p.layout_q != Layout::packed || longest.phase == Phase::backward || one_algorithm ||
      options.algorithm != Algorithm::automatic) {
    return plans;
  }
  for (const std::int64_t rows : {std::int64_t{kMaxDecodeRows}, std::int64_t{longest.block_q}}) {
    Problem problem = p;
    problem.seqlen_q = rows / (p.heads_q / p.heads_k);
    if (problem.seqlen_q == 0 || problem.seqlen_q >= p.seqlen_q) continue;
    Plan plan = plan_of_longest(problem, Phase::forward, options, context);
    if (plan.algorithm == longest.algorithm && plan.algorithm != Algorithm::flash_decoding)
      continue;
    finish(plan, {});
    longest.reasons.push_back("sequences of at most " + std::to_string(rows) +
                              " rows a K, V head run apart, by " +
                              std::string(name(plan.algorithm)) + " with at most " +
                              std::to_string(plan.num_splits) + " splits");
    plans.push_back(std::move(plan));
  }
  return plans;
}

}  // namespace

Plan plan(const Problem& problem, Phase phase, const PlanOptions& options, const Context& context) {
  if (problem.seqlen_prefix > 0) return plan_prefix(problem, options, context);
  check_options(problem, phase, options);
  Plan plan = plan_of_longest(problem, phase, options, context);
  std::vector<Plan> shorter = plan_shorter(plan, options, context);
  finish(plan, std::move(shorter));
  return plan;
}

}  // namespace attn::cpu

namespace attn {

std::vector<Algorithm> algorithms(Phase phase) {
  if (phase == Phase::backward) return {Algorithm::standard, Algorithm::flash_attention_2};
  return {Algorithm::standard,       Algorithm::flash_attention,  Algorithm::flash_attention_2,
          Algorithm::flash_decoding, Algorithm::memory_efficient, Algorithm::block_sparse};
}

}  // namespace attn
