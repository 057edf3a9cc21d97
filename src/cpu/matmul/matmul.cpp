#include "cpu/matmul/matmul.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "attn/error.hpp"
#include "core/text/enum_names.hpp"
#include "cpu/plan_check.hpp"
#include "cpu/workspace_store.hpp"

namespace attn::cpu {
namespace {

enum class Rung : std::uint8_t { naive, blocked, few_rows, packed, amx };
constexpr core::EnumName<Rung> kRungs[] = {{Rung::naive, "naive"},
                                           {Rung::blocked, "blocked"},
                                           {Rung::few_rows, "few_rows"},
                                           {Rung::packed, "packed"},
                                           {Rung::amx, "amx"}};

bool takes_amx(const MatmulProblem& p, InstructionSet isa) {
  return p.dtype == DType::bf16 && isa == InstructionSet::amx_bf16;
}

// Of the product that is computed: of C^T = B^T A^T where C is column-major.
std::int64_t rows_of(const MatmulProblem& p) {
  return p.order_c == MatrixOrder::column_major ? p.n : p.m;
}

std::int64_t most_few_rows(const MatmulProblem& p, InstructionSet isa) {
  if (!takes_amx(p, isa)) return kFewRows;
  const bool steps_are_neighbours = p.order_c == MatrixOrder::column_major
                                        ? p.order_a == MatrixOrder::row_major
                                        : p.order_b == MatrixOrder::column_major;
  return steps_are_neighbours ? kFewRowsOfSteps : kFewRowsOfColumns;
}

// The fastest rung and why it is.
Rung fastest(const MatmulProblem& p, InstructionSet isa, std::vector<std::string>& reasons) {
  const bool swapped = p.order_c == MatrixOrder::column_major;
  const std::int64_t few = most_few_rows(p, isa);
  if (rows_of(p) <= few) {
    reasons.push_back(fmt::format("{} of up to {} does not pay for a packed copy of {}",
                                  swapped ? "an n" : "an m", few, swapped ? 'A' : 'B'));
    return Rung::few_rows;
  }
  if (takes_amx(p, isa)) {
    reasons.emplace_back("AMX multiplies bf16 sixteen times as fast as FMAs do");
    return Rung::amx;
  }
  reasons.push_back("register tiles over packed panels are the fastest for " +
                    std::string(name(p.dtype)));
  return Rung::packed;
}

const TileOps& ops_of(const MatmulPlan& plan) { return tile_ops(plan.isa, plan.compute); }

Cut whole(std::int64_t total, int part) {
  const std::int64_t block = std::max<std::int64_t>(1, total);
  part = std::max(1, part);
  return {total, block, (block + part - 1) / part, part};
}
ProductBlocks blocks_of(const MatmulProblem& p, Rung rung, const TileOps& ops, int threads) {
  const bool swapped = p.order_c == MatrixOrder::column_major;
  const std::int64_t m = swapped ? p.n : p.m, n = swapped ? p.m : p.n;
  switch (rung) {
    case Rung::naive:
      return {whole(m, 1), whole(n, 1), whole(p.k, static_cast<int>(p.k))};
    case Rung::blocked:
      return {whole(m, 64), whole(n, 256), whole(p.k, 128)};
    case Rung::few_rows:
      return few_rows_blocks(p, ops.few_rows, few_rows_columns(p, ops.few_rows, threads));
    case Rung::packed:
    case Rung::amx:
      break;
  }
  return packed_blocks(p, ops.product, packed_columns(p, ops.product, threads));
}

}  // namespace

MatmulPlan plan_matmul(const MatmulProblem& problem, const MatmulOptions& options,
                       const Context& context) {
  MatmulPlan plan;
  plan.problem = problem;
  plan.backend = Backend::cpu;
  plan.isa = best_instruction_set(context.isa);
  const Rung rung = options.rung.empty() ? fastest(problem, plan.isa, plan.reasons)
                                         : core::parse_name(kRungs, "rung", options.rung);
  if (rung == Rung::amx && !takes_amx(problem, plan.isa)) {
    throw Error(ErrorCode::unsupported,
                fmt::format("rung amx takes bf16 on the instruction set amx_bf16; dtype is {}, the "
                            "instruction set {} (problem {})",
                            name(problem.dtype), name(plan.isa), to_string(problem)));
  }
  if (rung == Rung::blocked && problem.masked != MaskedMatrix::none) {
    throw Error(ErrorCode::unsupported,
                fmt::format("rung blocked: masked is {}; accepted is none, as its blocks are not "
                            "those of a mask (problem {})",
                            name(problem.masked), to_string(problem)));
  }
  plan.rung = core::name_of(kRungs, rung);
  const bool tiles = rung == Rung::amx || (rung == Rung::few_rows && takes_amx(problem, plan.isa) &&
                                           rows_of(problem) > kFewestOfTiles);
  const bool pairs = problem.dtype == DType::bf16 && plan.isa == InstructionSet::avx512_bf16 &&
                     (rung == Rung::packed || rung == Rung::few_rows) &&
                     has_bf16_products(plan.isa, context.isa == InstructionSet::automatic);
  plan.compute = tiles || pairs ? DType::bf16 : DType::f32;
  const std::shared_ptr<Executor> executor = executor_of(context);
  const int available = std::max(1, executor->concurrency());
  const int wanted = options.threads > 0 ? std::min(options.threads, available) : available;
  const ProductBlocks blocks = blocks_of(problem, rung, ops_of(plan), wanted);
  plan.block_m = blocks.m.part;
  plan.block_n = blocks.n.part;
  plan.block_k = blocks.k.part;
  plan.tasks = problem.batch * blocks.m.count() * (rung == Rung::naive ? 1 : blocks.n.count());
  plan.threads = static_cast<int>(std::clamp<std::int64_t>(plan.tasks, 1, wanted));
  if (rung == Rung::few_rows) {
    plan.workspace_bytes = few_rows_bytes(blocks, ops_of(plan).few_rows, plan.threads);
  } else if (rung == Rung::packed || rung == Rung::amx) {
    plan.workspace_bytes = packed_bytes(blocks, ops_of(plan).product, plan.threads);
  }
  return plan;
}

void matmul(const MatmulPlan& plan, const MatmulInputs& inputs, const Tensor& c,
            const Context& context) {
  const std::shared_ptr<Executor> executor = executor_of(context);
  CallWorkspace workspace(*executor, {});
  const Workers workers(*executor, plan.threads, *workspace);
  const Product product(plan.problem, inputs, c);
  if (product.batch == 0 || product.m == 0 || product.n == 0) return;
  const TileOps& ops = ops_of(plan);
  switch (core::parse_name(kRungs, "rung", plan.rung)) {
    case Rung::naive:
      return matmul_naive(product, workers);
    case Rung::blocked:
      return matmul_blocked(product, workers);
    case Rung::few_rows:
      return matmul_few_rows(product, ops,
                             few_rows_blocks(plan.problem, ops.few_rows, plan.block_n), workers);
    case Rung::packed:
    case Rung::amx:
      return matmul_packed(product, ops, packed_blocks(plan.problem, ops.product, plan.block_n),
                           workers);
  }
}

}  // namespace attn::cpu
