#include "cpu/matmul/matmul.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "attn/error.hpp"
#include "core/text/enum_names.hpp"
#include "cpu/plan_check.hpp"
#include "cpu/workspace_store.hpp"

namespace attn::cpu {
namespace {

enum class Rung : std::uint8_t { naive, blocked, packed, amx };
constexpr core::EnumName<Rung> kRungs[] = {{Rung::naive, "naive"},
                                           {Rung::blocked, "blocked"},
                                           {Rung::packed, "packed"},
                                           {Rung::amx, "amx"}};

bool takes_amx(const MatmulProblem& p, InstructionSet isa) {
  return p.dtype == DType::bf16 && isa == InstructionSet::amx_bf16;
}

const TileOps& ops_of(const MatmulPlan& plan) { return tile_ops(plan.isa, plan.compute); }

Cut whole(std::int64_t total, int part) {
  const std::int64_t block = std::max<std::int64_t>(1, total);
  part = std::max(1, part);
  return {total, block, (block + part - 1) / part, part};
}
PackedBlocks blocks_of(const MatmulProblem& p, Rung rung, const ProductVerbs& verbs, int threads) {
  const bool swapped = p.order_c == MatrixOrder::column_major;
  const std::int64_t m = swapped ? p.n : p.m, n = swapped ? p.m : p.n;
  switch (rung) {
    case Rung::naive:
      return {whole(m, 1), whole(n, 1), whole(p.k, static_cast<int>(p.k))};
    case Rung::blocked:
      return {whole(m, 64), whole(n, 256), whole(p.k, 128)};
    case Rung::packed:
    case Rung::amx:
      break;
  }
  return packed_blocks(p, verbs, packed_columns(p, verbs, threads));
}

}  // namespace

MatmulPlan plan_matmul(const MatmulProblem& problem, const MatmulOptions& options,
                       const Context& context) {
  MatmulPlan plan;
  plan.problem = problem;
  plan.backend = Backend::cpu;
  plan.isa = best_instruction_set(context.isa);
  Rung rung = takes_amx(problem, plan.isa) ? Rung::amx : Rung::packed;
  if (!options.rung.empty()) {
    rung = core::parse_name(kRungs, "rung", options.rung);
  } else {
    plan.reasons.emplace_back(rung == Rung::amx
                                  ? "AMX multiplies bf16 sixteen times as fast as FMAs do"
                                  : "register tiles over packed panels are the fastest for " +
                                        std::string(name(problem.dtype)));
  }
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
  // AMX's table has no other product of bf16.
  const bool pairs = problem.dtype == DType::bf16 && plan.isa == InstructionSet::avx512_bf16 &&
                     rung == Rung::packed &&
                     has_bf16_products(plan.isa, context.isa == InstructionSet::automatic);
  plan.compute = rung == Rung::amx || pairs ? DType::bf16 : DType::f32;
  const std::shared_ptr<Executor> executor = executor_of(context);
  const int available = std::max(1, executor->concurrency());
  const int wanted = options.threads > 0 ? std::min(options.threads, available) : available;
  const PackedBlocks blocks = blocks_of(problem, rung, ops_of(plan).product, wanted);
  plan.block_m = blocks.m.part;
  plan.block_n = blocks.n.part;
  plan.block_k = blocks.k.part;
  plan.tasks = problem.batch * blocks.m.count() * (rung == Rung::naive ? 1 : blocks.n.count());
  plan.threads = static_cast<int>(std::clamp<std::int64_t>(plan.tasks, 1, wanted));
  if (rung == Rung::packed || rung == Rung::amx) {
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
  switch (core::parse_name(kRungs, "rung", plan.rung)) {
    case Rung::naive:
      return matmul_naive(product, workers);
    case Rung::blocked:
      return matmul_blocked(product, workers);
    case Rung::packed:
    case Rung::amx:
      const TileOps& ops = ops_of(plan);
      return matmul_packed(product, ops, packed_blocks(plan.problem, ops.product, plan.block_n),
                           workers);
  }
}

}  // namespace attn::cpu
