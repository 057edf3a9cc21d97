// Rungs 3 and 4. The blocked loops load and store every sum at every step. Here a register tile of
// C stays in registers (tiles of AMX) for all steps of a block, and A and B are copied once into
// panels that it reads front to back, whatever their order and dtype were (Goto and van de Geijn
// 2008). A panel of B stays in L1 while the panels of A pass by from L2.
#include <algorithm>

#include "cpu/matmul/matmul.hpp"

namespace attn::cpu {
namespace {

constexpr std::int64_t round_up(std::int64_t x, std::int64_t to) { return (x + to - 1) / to * to; }

// The size of equal parts of `total`, none above `most`, in multiples of `step`.
int even_part(std::int64_t total, std::int64_t most, std::int64_t step) {
  const std::int64_t parts = std::max<std::int64_t>(1, (total + most - 1) / most);
  return static_cast<int>(std::max(step, round_up((total + parts - 1) / parts, step)));
}

struct Scratch {
  PackedBlocks blocks;
  std::int64_t element_bytes = 0;
  std::byte *a = nullptr, *b = nullptr;
  float *c = nullptr, *bias = nullptr;
  void carve(Carver& carver) {
    constexpr std::int64_t kLanesPast = 16;  // what packing writes past a last panel
    carver.take(a, core::Size(blocks.m + kLanesPast) * blocks.k * element_bytes);
    carver.take(b, core::Size(blocks.n + kLanesPast) * blocks.k * element_bytes);
    carver.take(c, core::Size(blocks.m) * blocks.n);
    carver.take(bias, core::Size(blocks.n));
  }
};

// One block of C.
struct Tile {
  std::int64_t batch = 0, row = 0, column = 0;
  int rows = 0, columns = 0;
};

void multiply_blocks(const Product& p, const ProductVerbs& verbs, const Tile& t, const Scratch& s) {
  for (std::int64_t step = 0; step < p.k; step += s.blocks.k) {
    const int depth = static_cast<int>(std::min<std::int64_t>(s.blocks.k, p.k - step));
    verbs.pack_a({.at = p.a.at(t.batch, t.row, step),
                  .lane_stride = p.a.row_stride,
                  .step_stride = p.a.column_stride,
                  .lanes = t.rows,
                  .depth = depth,
                  .dtype = p.a.dtype},
                 s.a);
    verbs.pack_b({.at = p.b.at(t.batch, step, t.column),
                  .lane_stride = p.b.column_stride,
                  .step_stride = p.b.row_stride,
                  .lanes = t.columns,
                  .depth = depth,
                  .dtype = p.b.dtype},
                 s.b);
    const std::int64_t panel_depth = round_up(depth, verbs.depth_multiple) * verbs.element_bytes;
    for (int j = 0; j < t.columns; j += verbs.columns) {
      for (int i = 0; i < t.rows; i += verbs.rows) {
        verbs.multiply(s.a + i * panel_depth, s.b + j * panel_depth, depth, step > 0,
                       s.c + std::ptrdiff_t{i} * s.blocks.n + j, s.blocks.n);
      }
    }
  }
}

// Bias, activation, rounding, and the way to C.
void finish(const Product& p, const TileOps& ops, const Tile& t, const Scratch& s) {
  const int padded = static_cast<int>(round_up(t.columns, 16));
  if (p.bias != nullptr && !p.bias_of_rows) {
    for (int j = 0; j < t.columns; ++j) s.bias[j] = p.bias_at(0, t.column + j);
    std::fill(s.bias + t.columns, s.bias + padded, 0.0F);
  }
  for (int i = 0; i < t.rows; ++i) {
    float* row = s.c + std::ptrdiff_t{i} * s.blocks.n;
    if (p.k == 0) std::fill(row, row + padded, 0.0F);
    if (p.bias != nullptr && p.bias_of_rows) {
      std::fill(s.bias, s.bias + padded, p.bias_at(t.row + i, 0));
    }
    if (p.bias != nullptr || p.activation != Activation::none) {
      ops.product.finish_row(p.bias == nullptr ? nullptr : s.bias, p.activation, padded, row);
    }
    ops.store_row(row, t.columns, 1.0F, p.c.dtype, p.c.at(t.batch, t.row + i, t.column));
  }
}

}  // namespace

PackedBlocks packed_blocks(const MatmulProblem& problem, const ProductVerbs& verbs) {
  // f32: a panel of B (48 x 192 floats) is 36 KB of a 48 KB L1; AMX: 32 x 512 bf16 are 32 KB.
  // Blocks of A, B and C together are 1.1 MB (1.3 MB) of a 2 MB L2.
  const bool tiles = verbs.element_bytes == 2;
  const std::int64_t m = problem.order_c == MatrixOrder::row_major ? problem.m : problem.n;
  const std::int64_t n = problem.order_c == MatrixOrder::row_major ? problem.n : problem.m;
  // Whole register tiles and whole vectors of every instruction set.
  const int columns = tiles ? 32 : 48;
  return {.m = even_part(m, 256, verbs.rows),
          .n = even_part(n, tiles ? 512 : 480, columns),
          .k = even_part(problem.k, tiles ? 512 : 192, std::max(verbs.depth_multiple, 16))};
}

std::int64_t packed_bytes(const PackedBlocks& blocks, const ProductVerbs& verbs) {
  return static_cast<std::int64_t>(
      WorkerScratch<Scratch>::bytes({.blocks = blocks, .element_bytes = verbs.element_bytes})
          .bytes());
}

void matmul_packed(const Product& p, const TileOps& ops, const PackedBlocks& blocks,
                   const Workers& workers) {
  const WorkerScratch<Scratch> scratch(
      workers.workspace(), workers.count(),
      {.blocks = blocks, .element_bytes = ops.product.element_bytes});
  const std::int64_t down = (p.m + blocks.m - 1) / blocks.m;
  const std::int64_t across = (p.n + blocks.n - 1) / blocks.n;
  workers.parallel_for(p.batch * down * across, [&](std::int64_t index, int worker) {
    const TileState state(ops);
    const Scratch s = scratch.of(worker);
    Tile t{.batch = index / (down * across),
           .row = index % down * blocks.m,
           .column = index / down % across * blocks.n};
    t.rows = static_cast<int>(std::min<std::int64_t>(blocks.m, p.m - t.row));
    t.columns = static_cast<int>(std::min<std::int64_t>(blocks.n, p.n - t.column));
    multiply_blocks(p, ops.product, t, s);
    finish(p, ops, t, s);
  });
}

}  // namespace attn::cpu
