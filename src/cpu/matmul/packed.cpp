// Rungs 3 and 4. The blocked loops load and store every sum at every step. Here a register tile of
// C stays in registers (tiles of AMX) for all steps of a block, and A and B are copied once into
// panels that it reads front to back, whatever their order and dtype were (Goto and van de Geijn
// 2008). A panel of B stays in L1 while the panels of A pass by from L2. What several tasks need,
// and fits a shared cache, is packed once for all of them before they begin.
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

constexpr std::int64_t kLanesPast = 16;  // what packing writes past a last panel

// The packed blocks of an operand that tasks share: [block of lanes][block of steps].
struct SharedBlocks {
  std::byte* base = nullptr;
  std::int64_t block_bytes = 0, steps = 0;
  std::byte* at(std::int64_t block, std::int64_t step) const {
    return base + (block * steps + step) * block_bytes;
  }
};

// Of a worker. A block of A or B that all share takes no place here.
struct Scratch {
  PackedBlocks blocks;
  std::int64_t element_bytes = 0;
  bool own_a = true, own_b = true;
  std::byte *a = nullptr, *b = nullptr;
  float *c = nullptr, *bias = nullptr;
  void carve(Carver& carver) {
    const auto bytes = [&](int lanes) {
      return core::Size(lanes + kLanesPast) * blocks.k * element_bytes;
    };
    carver.take(a, own_a ? bytes(blocks.m) : core::Size(0));
    carver.take(b, own_b ? bytes(blocks.n) : core::Size(0));
    carver.take(c, core::Size(blocks.m) * blocks.n);
    carver.take(bias, core::Size(blocks.n));
  }
};

// One block of C, and which it is.
struct Tile {
  std::int64_t batch = 0, row = 0, column = 0;
  int rows = 0, columns = 0;
};

// The packed operands of a call, or of as many columns of it as are packed at a time.
struct Operands {
  SharedBlocks a, b;  // null base: each task packs its own
  std::int64_t first_column = 0;
};

OperandBlock block_of_a(const Product& p, std::int64_t batch, std::int64_t row, std::int64_t step,
                        int rows, int depth) {
  return {.at = p.a.at(batch, row, step),
          .lane_stride = p.a.row_stride,
          .step_stride = p.a.column_stride,
          .lanes = rows,
          .depth = depth,
          .dtype = p.a.dtype};
}
OperandBlock block_of_b(const Product& p, std::int64_t batch, std::int64_t step,
                        std::int64_t column, int columns, int depth) {
  return {.at = p.b.at(batch, step, column),
          .lane_stride = p.b.column_stride,
          .step_stride = p.b.row_stride,
          .lanes = columns,
          .depth = depth,
          .dtype = p.b.dtype};
}

int part(std::int64_t total, std::int64_t first, int most) {
  return static_cast<int>(std::min<std::int64_t>(most, total - first));
}

void multiply_blocks(const Product& p, const ProductVerbs& verbs, const Tile& t,
                     const Operands& shared, const Scratch& s) {
  const PackedBlocks& blocks = s.blocks;
  for (std::int64_t i = 0; i * blocks.k < p.k; ++i) {
    const std::int64_t step = i * blocks.k;
    const int depth = part(p.k, step, blocks.k);
    const std::byte *a = s.a, *b = s.b;
    if (shared.a.base != nullptr) {
      a = shared.a.at(t.row / blocks.m, i);
    } else {
      verbs.pack_a(block_of_a(p, t.batch, t.row, step, t.rows, depth), s.a);
    }
    if (shared.b.base != nullptr) {
      b = shared.b.at((t.column - shared.first_column) / blocks.n, i);
    } else {
      verbs.pack_b(block_of_b(p, t.batch, step, t.column, t.columns, depth), s.b);
    }
    const std::int64_t panel_depth = round_up(depth, verbs.depth_multiple) * verbs.element_bytes;
    for (int column = 0; column < t.columns; column += verbs.columns) {
      for (int row = 0; row < t.rows; row += verbs.rows) {
        verbs.multiply(a + row * panel_depth, b + column * panel_depth, depth, step > 0,
                       s.c + std::ptrdiff_t{row} * blocks.n + column, blocks.n);
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

namespace {

// What tasks share, of a product of so many rows, columns and steps.
struct Sharing {
  bool a = false, b = false;
  std::int64_t columns = 0;                          // at a time: whole blocks
  std::int64_t steps = 0, bytes_a = 0, bytes_b = 0;  // blocks of k; bytes of a block
};

Sharing share(std::int64_t m, std::int64_t n, std::int64_t k, const PackedBlocks& blocks,
              const ProductVerbs& verbs) {
  // An operand each, so that with the scratch of sixteen workers a call takes what an executor
  // keeps (cpu/budgets.hpp): fresh pages would cost more than packing twice.
  constexpr std::int64_t kMost = std::int64_t{17} << 20;
  const auto bytes = [&](int lanes) {
    const core::Size size = core::Size(lanes + kLanesPast) * blocks.k * verbs.element_bytes;
    return static_cast<std::int64_t>(aligned(size).bytes());
  };
  const std::int64_t down = (m + blocks.m - 1) / blocks.m, across = (n + blocks.n - 1) / blocks.n;
  Sharing s;
  s.steps = (k + blocks.k - 1) / blocks.k;
  s.bytes_a = bytes(blocks.m);
  s.bytes_b = bytes(blocks.n);
  s.a = across > 1 && down * s.steps * s.bytes_a <= kMost;
  s.b = down > 1 && s.steps > 0;
  s.columns = across * blocks.n;
  if (s.b) {
    const std::int64_t fit = std::max<std::int64_t>(1, kMost / (s.steps * s.bytes_b));
    s.columns = std::min(across, fit) * blocks.n;
  }
  return s;
}

// In bytes, of the operands that tasks share.
core::Size shared_bytes(const Sharing& s, std::int64_t m, const PackedBlocks& blocks) {
  core::Size bytes = 0;
  const std::int64_t down = (m + blocks.m - 1) / blocks.m;
  if (s.a) bytes = bytes + core::Size(down) * s.steps * s.bytes_a;
  if (s.b) bytes = bytes + core::Size(s.columns / blocks.n) * s.steps * s.bytes_b;
  return bytes;
}

}  // namespace

std::int64_t packed_bytes(const MatmulProblem& problem, const PackedBlocks& blocks,
                          const ProductVerbs& verbs, int threads) {
  const bool swapped = problem.order_c == MatrixOrder::column_major;
  const std::int64_t m = swapped ? problem.n : problem.m, n = swapped ? problem.m : problem.n;
  const Sharing s = share(m, n, problem.k, blocks, verbs);
  const core::Size worker = WorkerScratch<Scratch>::bytes(
      {.blocks = blocks, .element_bytes = verbs.element_bytes, .own_a = !s.a, .own_b = !s.b});
  return static_cast<std::int64_t>((worker * threads + shared_bytes(s, m, blocks)).bytes());
}

void matmul_packed(const Product& p, const TileOps& ops, const PackedBlocks& blocks,
                   const Workers& workers) {
  const ProductVerbs& verbs = ops.product;
  const Sharing sharing = share(p.m, p.n, p.k, blocks, verbs);
  const WorkerScratch<Scratch> scratch(workers.workspace(), workers.count(),
                                       {.blocks = blocks,
                                        .element_bytes = verbs.element_bytes,
                                        .own_a = !sharing.a,
                                        .own_b = !sharing.b});
  std::byte* memory = workers.workspace().take(shared_bytes(sharing, p.m, blocks));
  const std::int64_t down = (p.m + blocks.m - 1) / blocks.m;
  Operands shared;
  shared.a = {sharing.a ? memory : nullptr, sharing.bytes_a, sharing.steps};
  shared.b = {
      sharing.b ? memory + (sharing.a ? down * sharing.steps * sharing.bytes_a : 0) : nullptr,
      sharing.bytes_b, sharing.steps};

  // Blocks of A (of the whole product) and of B (of some columns), a task each.
  const auto pack = [&](std::int64_t batch, std::int64_t blocks_a, std::int64_t blocks_b) {
    workers.parallel_for((blocks_a + blocks_b) * sharing.steps, [&](std::int64_t index, int) {
      const std::int64_t block = index / sharing.steps, step = index % sharing.steps;
      const std::int64_t first = step * blocks.k;
      const int depth = part(p.k, first, blocks.k);
      if (block < blocks_a) {
        const std::int64_t row = block * blocks.m;
        verbs.pack_a(block_of_a(p, batch, row, first, part(p.m, row, blocks.m), depth),
                     shared.a.at(block, step));
      } else {
        const std::int64_t column = shared.first_column + (block - blocks_a) * blocks.n;
        verbs.pack_b(block_of_b(p, batch, first, column, part(p.n, column, blocks.n), depth),
                     shared.b.at(block - blocks_a, step));
      }
    });
  };
  const auto multiply = [&](std::int64_t first_batch, std::int64_t batches, std::int64_t columns) {
    const std::int64_t across = (columns + blocks.n - 1) / blocks.n;
    workers.parallel_for(batches * down * across, [&](std::int64_t index, int worker) {
      const TileState state(ops);
      const Scratch s = scratch.of(worker);
      Tile t{.batch = first_batch + index / (down * across),
             .row = index % down * blocks.m,
             .column = shared.first_column + index / down % across * blocks.n};
      t.rows = part(p.m, t.row, blocks.m);
      t.columns = part(p.n, t.column, blocks.n);
      multiply_blocks(p, verbs, t, shared, s);
      finish(p, ops, t, s);
    });
  };

  if (!sharing.a && !sharing.b) return multiply(0, p.batch, p.n);
  for (std::int64_t batch = 0; batch < p.batch; ++batch) {
    for (std::int64_t column = 0; column < p.n; column += sharing.columns) {
      shared.first_column = column;
      const std::int64_t columns = std::min(sharing.columns, p.n - column);
      pack(batch, sharing.a && column == 0 ? down : 0,
           sharing.b ? (columns + blocks.n - 1) / blocks.n : 0);
      multiply(batch, 1, columns);
    }
  }
}

}  // namespace attn::cpu
