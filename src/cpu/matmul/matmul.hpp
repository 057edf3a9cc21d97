// Matrix products on the CPU: a ladder of rungs, one file each (docs/matmul.md).
#pragma once

#include <algorithm>
#include <cstdint>

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

// A dimension cut into parts, none of which crosses the end of a block of a mask: 600 in blocks of
// 256 with parts of at most 200 is 128, 128, 128, 128, 88.
struct Cut {
  std::int64_t total = 0;
  std::int64_t block = 1;  // of the mask, or the whole dimension
  std::int64_t parts = 1;  // of a block
  int part = 1;            // the size of a part but for the last ones

  std::int64_t count() const { return total / block * parts + (total % block + part - 1) / part; }
  std::int64_t first(std::int64_t i) const { return i / parts * block + i % parts * part; }
  int size(std::int64_t i) const {
    const std::int64_t end = std::min(total, (i / parts + 1) * block);
    return static_cast<int>(std::min<std::int64_t>(part, end - first(i)));
  }
};

struct ProductBlocks {
  Cut m, n, k;
};

// Rung 3: B is read where it lies, once for up to eight rows, or 64 by tiles of AMX. Problems of up
// to kFewRows take it: at 16 it is 1.2 to 1.6 times as fast as rung 4, at 32 0.95 to 1.25 (Zen 5,
// docs/matmul.md).
inline constexpr std::int64_t kFewRows = 16;
// The same of bf16 on AMX, by the order of B: with neighbouring columns 64 rows are 1.0 to 1.7
// times as fast as by rung 5, 96 0.7 to 0.9; with neighbouring steps, whose tiles lie in memory,
// 128 1.1 to 1.7 times (docs/matmul.md). Up to kFewestOfTiles rows f32 is as fast as B can be read.
inline constexpr std::int64_t kFewRowsOfColumns = 64, kFewRowsOfSteps = 128, kFewestOfTiles = 4;
// Columns of a block of C, at most, as of packed_columns.
std::int64_t few_rows_columns(const MatmulProblem& problem, const FewRowsVerbs& verbs, int threads);
ProductBlocks few_rows_blocks(const MatmulProblem& problem, const FewRowsVerbs& verbs,
                              std::int64_t columns);
std::int64_t few_rows_bytes(const ProductBlocks& blocks, const FewRowsVerbs& verbs, int threads);
void matmul_few_rows(const Product& product, const TileOps& ops, const ProductBlocks& blocks,
                     const Workers& workers);

// Rungs 4 and 5: blocks packed in the order in which register tiles read them.
// Columns of a block of C, at most: fewer where threads would have less than four blocks each. No
// sum depends on it.
std::int64_t packed_columns(const MatmulProblem& problem, const ProductVerbs& verbs, int threads);
ProductBlocks packed_blocks(const MatmulProblem& problem, const ProductVerbs& verbs,
                            std::int64_t columns);
// Bytes that a call packs: operands that tasks share, and what each worker has.
std::int64_t packed_bytes(const ProductBlocks& blocks, const ProductVerbs& verbs, int threads);
void matmul_packed(const Product& product, const TileOps& ops, const ProductBlocks& blocks,
                   const Workers& workers);

}  // namespace attn::cpu
