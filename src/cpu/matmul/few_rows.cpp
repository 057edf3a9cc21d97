// Rung 3. The blocked loops load and store every sum at every step, and copy B first. Here sums
// stay in registers, and each task reads its columns of B where they lie, once for up to eight rows
// of A: all that a product of so few rows has to do. One of many rows reads B once for each eight.
// Measured beside `packed`, 4096 steps and columns: one row 2.6 to 2.8 times as fast in f32 and 2.2
// to 5.5 in bf16, 16 rows 1.5 and 1.1 to 1.6. By tiles of AMX up to 64 rows share a reading of B in
// bf16: beside `amx` 64 rows are 1.0 to 2.2 times as fast (docs/matmul.md).
#include <algorithm>

#include "cpu/matmul/tile.hpp"

namespace attn::cpu {
namespace {

// Columns of a task: rows of B are read in pieces of some KB, and sums of eight rows stay in L1.
constexpr std::int64_t kMostColumns = 512;

// What a worker has for itself.
struct Scratch {
  ProductBlocks blocks;
  std::int64_t rows = 0, a_words = 0;
  float *a = nullptr, *c = nullptr, *bias = nullptr;
  void carve(Carver& carver) {
    carver.take(a, core::Size(rows) * a_words);
    carver.take(c, core::Size(rows) * blocks.n.part);
    carver.take(bias, core::Size(blocks.n.part));
  }
};

std::int64_t words_of(std::int64_t depth, const FewRowsVerbs& verbs) {
  return round_up(depth, verbs.depth_multiple) * verbs.element_bytes / 4;
}

Scratch scratch_of(const ProductBlocks& blocks, const FewRowsVerbs& verbs) {
  return {.blocks = blocks,
          .rows = round_up(blocks.m.part, verbs.row_multiple),
          .a_words = words_of(blocks.k.part, verbs)};
}

}  // namespace

std::int64_t few_rows_columns(const MatmulProblem& problem, const FewRowsVerbs& verbs,
                              int threads) {
  return columns_for(problem, threads, kMostColumns, 64, [&](std::int64_t columns) {
    return few_rows_blocks(problem, verbs, columns);
  });
}

ProductBlocks few_rows_blocks(const MatmulProblem& problem, const FewRowsVerbs& verbs,
                              std::int64_t columns) {
  const MaskedSizes sizes(problem);
  const std::int64_t rows =
      round_up(std::clamp<std::int64_t>(sizes.m, 1, verbs.rows), verbs.row_multiple);
  return {.m = cut(sizes.m, sizes.block_m, verbs.rows, 1),
          .n = cut(sizes.n, sizes.block_n, columns, 16),
          .k = cut(problem.k, sizes.block_k, verbs.packed_bytes / (rows * verbs.element_bytes),
                   step_multiple(problem, verbs.depth_multiple))};
}

std::int64_t few_rows_bytes(const ProductBlocks& blocks, const FewRowsVerbs& verbs, int threads) {
  const core::Size worker = WorkerScratch<Scratch>::bytes(scratch_of(blocks, verbs));
  return static_cast<std::int64_t>((worker * threads).bytes());
}

void matmul_few_rows(const Product& p, const TileOps& ops, const ProductBlocks& blocks,
                     const Workers& workers) {
  const FewRowsVerbs& verbs = ops.few_rows;
  const WorkerScratch<Scratch> scratch(workers.workspace(), workers.count(),
                                       scratch_of(blocks, verbs));
  const std::int64_t down = blocks.m.count(), across = blocks.n.count();
  workers.parallel_for(p.batch * down * across, [&](std::int64_t index, int worker) {
    const std::int64_t i = index % down, j = index / down % across;
    const Tile t = tile_at(blocks, index / (down * across), i, j);
    if (p.mask.of == core::BlockMaskView::Of::c && !p.mask.has(t.row, t.column)) return;
    const TileState state(ops);
    const Scratch s = scratch.of(worker);
    bool add = start_sums(p, t, s.rows, blocks.n.part, s.c);
    for (std::int64_t piece = 0; piece < blocks.k.count(); ++piece) {
      const std::int64_t step = blocks.k.first(piece);
      if (!p.mask.multiplies(t.row, step, t.column)) continue;
      const int depth = blocks.k.size(piece);
      const auto ld = static_cast<int>(words_of(depth, verbs));
      const OperandBlock b = block_of_b(p, t.batch, step, t.column, t.columns, depth);
      verbs.pack_a(block_of_a(p, t.batch, t.row, step, t.rows, depth), b, ld, s.a);
      verbs.multiply(s.a, ld, t.rows, b, add, s.c, blocks.n.part);
      add = true;
    }
    if (!add) std::fill_n(s.c, std::ptrdiff_t{t.rows} * blocks.n.part, 0.0F);
    ops.product.finish(s.c, blocks.n.part, output_of(p, t, s.bias));
  });
}

}  // namespace attn::cpu
