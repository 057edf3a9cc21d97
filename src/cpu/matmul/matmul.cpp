#include "cpu/matmul/matmul.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "attn/error.hpp"
#include "core/plan_record.hpp"
#include "core/text/enum_names.hpp"
#include "core/validate/plan_field.hpp"
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
  return p.dtype == DType::bf16 && p.format_b == BlockFormat::none &&
         isa == InstructionSet::amx_bf16;
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

// Whether B is read element by element, which blocks are not.
bool reads_elements(Rung rung) { return rung == Rung::naive || rung == Rung::blocked; }

// Whether bf16 is multiplied by AMX.
bool multiplies_tiles(const MatmulProblem& p, Rung rung, InstructionSet isa) {
  return rung == Rung::amx ||
         (rung == Rung::few_rows && takes_amx(p, isa) && rows_of(p) > kFewestOfTiles);
}

// Whether bf16 can be multiplied by VDPBF16PS or BFDOT.
bool may_multiply_pairs(const MatmulProblem& p, Rung rung, InstructionSet isa) {
  return p.dtype == DType::bf16 && p.format_b == BlockFormat::none &&
         (isa == InstructionSet::avx512_bf16 || isa == InstructionSet::neon_bf16) &&
         (rung == Rung::packed || rung == Rung::few_rows);
}

const TileOps& ops_of(const MatmulPlan& plan) { return tile_ops(plan.isa, plan.compute); }

Cut whole(std::int64_t total, int part) {
  const std::int64_t block = std::max<std::int64_t>(1, total);
  part = std::max(1, part);
  return {total, block, (block + part - 1) / part, part};
}
// columns: the most that a block of C has, where the rung can choose.
ProductBlocks blocks_of_columns(const MatmulProblem& p, Rung rung, const TileOps& ops,
                                std::int64_t columns) {
  const bool swapped = p.order_c == MatrixOrder::column_major;
  const std::int64_t m = swapped ? p.n : p.m, n = swapped ? p.m : p.n;
  switch (rung) {
    case Rung::naive:
      return {whole(m, 1), whole(n, 1), whole(p.k, static_cast<int>(p.k))};
    case Rung::blocked:
      return {whole(m, 64), whole(n, 256), whole(p.k, 128)};
    case Rung::few_rows:
      return few_rows_blocks(p, ops.few_rows, columns);
    case Rung::packed:
    case Rung::amx:
      break;
  }
  return packed_blocks(p, ops.product, columns);
}
ProductBlocks blocks_of(const MatmulProblem& p, Rung rung, const TileOps& ops, int threads) {
  return blocks_of_columns(p, rung, ops,
                           rung == Rung::few_rows ? few_rows_columns(p, ops.few_rows, threads)
                                                  : packed_columns(p, ops.product, threads));
}

// Refuses fields that a call reads and that were changed to what it cannot do.
void check_plan(const MatmulPlan& plan, Rung rung) {
  const MatmulProblem& p = plan.problem;
  constexpr std::int32_t kMostThreads = 1 << 20;
  if (plan.threads < 1 || plan.threads > kMostThreads) {
    core::refuse_plan_field(plan, "threads", std::to_string(plan.threads),
                            fmt::format("1 to {}", kMostThreads));
  }
  const core::MatmulMadeFor& made = *core::made_for(plan);
  if (made.problem == p && made.rung == plan.rung && made.isa == plan.isa &&
      made.compute == plan.compute && made.block_n == plan.block_n) {
    return;
  }
  if (!is_available(plan.isa)) {
    core::refuse_plan_field(plan, "isa", name(plan.isa),
                            "an instruction set that this machine has");
  }
  const bool no_tiles = rung == Rung::amx && !takes_amx(p, plan.isa);
  if (no_tiles || (rung == Rung::blocked && p.masked != MaskedMatrix::none) ||
      (reads_elements(rung) && p.format_b != BlockFormat::none)) {
    core::refuse_plan_field(plan, "rung", plan.rung, "one that takes the problem");
  }
  const bool tiles = multiplies_tiles(p, rung, plan.isa);
  const bool bf16 = tiles || may_multiply_pairs(p, rung, plan.isa);
  if (plan.compute != (bf16 ? DType::bf16 : DType::f32) && (tiles || plan.compute != DType::f32)) {
    core::refuse_plan_field(plan, "compute", name(plan.compute),
                            bf16 ? "bf16" : "f32, as the rung and its instruction set multiply");
  }
  // The widest block of columns is that of one thread.
  const std::int32_t most = blocks_of(p, rung, ops_of(plan), 1).n.part;
  if (plan.block_n < 1 || plan.block_n > most ||
      blocks_of_columns(p, rung, ops_of(plan), plan.block_n).n.part != plan.block_n) {
    core::refuse_plan_field(plan, "block_n", std::to_string(plan.block_n),
                            fmt::format("a number up to {} that cuts the product evenly", most));
  }
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
  if (reads_elements(rung) && problem.format_b != BlockFormat::none) {
    throw Error(ErrorCode::unsupported,
                fmt::format("rung {}: format_b is {}; accepted is none, and by few_rows and packed "
                            "every format (problem {})",
                            options.rung, name(problem.format_b), to_string(problem)));
  }
  plan.rung = core::name_of(kRungs, rung);
  const bool pairs = may_multiply_pairs(problem, rung, plan.isa) &&
                     has_bf16_products(plan.isa, context.isa == InstructionSet::automatic);
  plan.compute = multiplies_tiles(problem, rung, plan.isa) || pairs ? DType::bf16 : DType::f32;
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
  const Rung rung = core::parse_name(kRungs, "rung", plan.rung);
  check_plan(plan, rung);
  const std::shared_ptr<Executor> executor = executor_of(context);
  CallWorkspace workspace(*executor, {});
  const Workers workers(*executor, plan.threads, *workspace);
  const Product product(plan.problem, inputs, c);
  if (product.batch == 0 || product.m == 0 || product.n == 0) return;
  const TileOps& ops = ops_of(plan);
  switch (rung) {
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
