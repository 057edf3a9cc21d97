// Matrix products on the CPU: a ladder of rungs, one file each (docs/matmul.md).
#pragma once

#include "attn/matmul.hpp"
#include "core/matmul.hpp"
#include "cpu/tile_ops.hpp"
#include "cpu/workers.hpp"

namespace attn::cpu {

// The problem is valid.
MatmulPlan plan_matmul(const MatmulProblem& problem, const MatmulOptions& options,
                       const Context& context);
// Arguments are validated.
void matmul(const MatmulPlan& plan, const MatmulInputs& inputs, const Tensor& c,
            const Context& context);

using Product = core::MatmulOperands;

// Rung 1: three loops over the elements where they lie.
void matmul_naive(const Product& product, const Workers& workers);
// Rung 2: the same loops over blocks of A and B that stay in the caches, with columns innermost.
void matmul_blocked(const Product& product, const Workers& workers);

// Rungs 3 and 4: blocks packed in the order in which register tiles read them.
struct PackedBlocks {
  int m = 0, n = 0, k = 0;
};
PackedBlocks packed_blocks(const MatmulProblem& problem, const ProductVerbs& verbs);
// Of a call: operands that tasks share, and what each worker has.
std::int64_t packed_bytes(const MatmulProblem& problem, const PackedBlocks& blocks,
                          const ProductVerbs& verbs, int threads);
void matmul_packed(const Product& product, const TileOps& ops, const PackedBlocks& blocks,
                   const Workers& workers);

}  // namespace attn::cpu
