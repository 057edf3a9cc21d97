// Rungs 4 and 5. Products of many rows read B again for each eight of them. Here a register tile of
// C stays in registers (tiles of AMX) for all steps of a block, and A and B are copied once into
// panels that it reads front to back, whatever their order and dtype were (Goto and van de Geijn
// 2008). A panel of B stays in L1 while the panels of A pass by from L2. B is packed once for all
// tasks that need it, before they begin; A as well where blocks of C are narrow. Expected: 9 to 11
// times, 0.8 to 1 of the rate of FMAs. Measured: 8.8 times (218 GFLOP/s of 281), and 437 of 552 in
// bf16 where VDPBF16PS multiplies pairs; AMX on a Xeon 853 at 1024 x 1024 x 1024.
#include <algorithm>

#include "core/tensor/size.hpp"
#include "cpu/matmul/tile.hpp"

namespace attn::cpu {
namespace {

constexpr std::int64_t kLanesPast = 16;  // what packing writes past a last panel

// The most that the sides of a block of C, and of its pieces along k, may be.
struct Limits {
  int rows, depth;
  int step;          // whole register tiles, and whole vectors of every instruction set
  int wide, narrow;  // columns: where A is packed by the task that needs it, and once for all
};
Limits limits_of(const ProductVerbs& verbs) {
  // AMX: a panel of B (32 x 512) is 32 KB of a 48 KB L1; blocks of A, B and C together are 1.3 MB
  // of a 2 MB L2.
  if (verbs.depth_multiple == 32) {
    return {.rows = 256, .depth = 512, .step = 32, .wide = 512, .narrow = 512};
  }
  // A panel of B (48 x 192 floats, or pairs of bf16) is 36 KB of a 48 KB L1; the block of A (98 KB)
  // stays in L2 while panels of B pass by. C is read and written once for all steps of a piece and
  // may lie in L3. The wider it is, the seldomer A is packed.
  return {.rows = 128, .depth = 768 / verbs.element_bytes, .step = 48, .wide = 1056, .narrow = 480};
}

// Bytes that tasks share of an operand: with the scratch of sixteen workers a call takes what an
// executor keeps (cpu/budgets.hpp), as fresh pages would cost more than packing twice.
constexpr std::int64_t kMostShared = std::int64_t{17} << 20;

// The packed blocks of an operand that tasks share: [block of lanes][block of steps].
struct SharedBlocks {
  std::byte* base = nullptr;
  std::int64_t block_bytes = 0, steps = 0;
  std::byte* at(std::int64_t block, std::int64_t step) const {
    return base + (block * steps + step) * block_bytes;
  }
};

// Bytes of a packed lane of so many steps.
std::int64_t lane_bytes(int depth, const ProductVerbs& verbs) {
  return round_up(depth, verbs.depth_multiple) * verbs.element_bytes;
}

// What a worker has for itself. A block of A or B that all share takes no place here.
struct Scratch {
  ProductBlocks blocks;
  std::int64_t element_bytes = 0;
  bool own_a = true, own_b = true;
  std::byte *a = nullptr, *b = nullptr;
  float *c = nullptr, *bias = nullptr;
  void carve(Carver& carver) {
    const auto bytes = [&](int lanes) {
      return core::Size(lanes + kLanesPast) * blocks.k.part * element_bytes;
    };
    carver.take(a, own_a ? bytes(blocks.m.part) : core::Size(0));
    carver.take(b, own_b ? bytes(blocks.n.part) : core::Size(0));
    carver.take(c, core::Size(blocks.m.part) * blocks.n.part);
    carver.take(bias, core::Size(blocks.n.part));
  }
};

// The pieces in which blocks that tasks share are packed. Where lanes are neighbours in memory a
// piece has all lanes of a block and one of its pieces along k. Where steps are, it has some lanes
// and as many pieces along k as leave four for each worker: the pages of these lanes are looked up
// once for all of them.
struct Pieces {
  std::int64_t lanes, steps;   // of a piece
  std::int64_t groups, count;  // of lanes, and pieces, of a block

  Pieces(bool steps_are_neighbours, std::int64_t blocks, const Cut& across, std::int64_t all_steps,
         int workers) {
    // Whole panels of every B; no A has more lanes, whose last panel writes into the next one.
    constexpr std::int64_t kLanes = 288;
    lanes = steps_are_neighbours ? kLanes : across.part;
    groups = (across.part + lanes - 1) / lanes;
    steps = steps_are_neighbours ? std::clamp<std::int64_t>(
                                       blocks * groups * all_steps / (4 * std::int64_t{workers}), 1,
                                       std::max<std::int64_t>(1, all_steps))
                                 : 1;
    count = groups * ((all_steps + steps - 1) / steps);
  }

  // Calls body(first lane, lanes, piece of k) for what piece `index` of a block of so many lanes
  // and pieces along k has.
  template <class Body>
  void each(std::int64_t index, std::int64_t of_lanes, std::int64_t of_steps,
            const Body& body) const {
    const std::int64_t first = index % groups * lanes, step = index / groups * steps;
    if (first >= of_lanes) return;
    for (std::int64_t i = step; i < std::min(step + steps, of_steps); ++i) {
      body(first, static_cast<int>(std::min(lanes, of_lanes - first)), i);
    }
  }
};

// The packed operands of a call, or of as many columns of it as are packed at a time.
struct Operands {
  SharedBlocks a, b;  // null base: each task packs its own
  std::int64_t first_across = 0;
};

// Asks for a block that is packed next, a share of its rows at each call.
class Ahead {
 public:
  Ahead() = default;
  Ahead(const OperandBlock& block, int calls) : at_(block.at) {
    const auto bytes = static_cast<std::ptrdiff_t>(size_of(block.dtype));
    const bool lanes = block.lane_stride == 1;
    rows_ = lanes ? block.depth : block.lanes;
    row_bytes_ = (lanes ? block.step_stride : block.lane_stride) * bytes;
    bytes_ = (lanes ? block.lanes : block.depth) * bytes;
    if (block.format != BlockFormat::none) bytes_ = row_size(block.format, block.depth);
    share_ = (rows_ + calls - 1) / calls;
  }
  void ask() {
    for (int i = 0; i < share_ && rows_ > 0; ++i, --rows_, at_ += row_bytes_) {
      for (std::ptrdiff_t x = 0; x < bytes_; x += 64) __builtin_prefetch(at_ + x, 0, 2);
    }
  }

 private:
  const std::byte* at_ = nullptr;
  std::ptrdiff_t row_bytes_ = 0, bytes_ = 0;
  int rows_ = 0, share_ = 0;
};

// Zeros where the mask leaves nothing to be multiplied.
void multiply_blocks(const Product& p, const ProductVerbs& verbs, const Tile& t, std::int64_t down,
                     std::int64_t across, const Operands& shared, const Scratch& s) {
  const ProductBlocks& blocks = s.blocks;
  const int ld = blocks.n.part;
  bool add = start_sums(p, t, blocks.m.part, ld, s.c);
  for (std::int64_t i = 0; i < blocks.k.count(); ++i) {
    const std::int64_t step = blocks.k.first(i);
    if (!p.mask.multiplies(t.row, step, t.column)) continue;
    const int depth = blocks.k.size(i);
    const std::byte *a = s.a, *b = s.b;
    if (shared.a.base != nullptr) {
      a = shared.a.at(down, i);
    } else {
      verbs.pack_a(block_of_a(p, t.batch, t.row, step, t.rows, depth), s.a);
    }
    if (shared.b.base != nullptr) {
      b = shared.b.at(across - shared.first_across, i);
    } else {
      verbs.pack_b(block_of_b(p, t.batch, step, t.column, t.columns, depth), s.b);
    }
    const std::int64_t panel_depth = lane_bytes(depth, verbs);
    // What is packed next comes into L2 while this piece is multiplied.
    std::int64_t next = i + 1;
    while (next < blocks.k.count() && !p.mask.multiplies(t.row, blocks.k.first(next), t.column)) {
      ++next;
    }
    Ahead of_a, of_b;
    if (next < blocks.k.count()) {
      const std::int64_t first = blocks.k.first(next);
      const int size = blocks.k.size(next);
      const int calls = ((t.rows + verbs.rows - 1) / verbs.rows) *
                        ((t.columns + verbs.columns - 1) / verbs.columns);
      if (shared.a.base == nullptr) {
        of_a = Ahead(block_of_a(p, t.batch, t.row, first, t.rows, size), calls);
      }
      if (shared.b.base == nullptr) {
        of_b = Ahead(block_of_b(p, t.batch, first, t.column, t.columns, size), calls);
      }
    }
    for (int column = 0; column < t.columns; column += verbs.columns) {
      for (int row = 0; row < t.rows; row += verbs.rows) {
        of_a.ask();
        of_b.ask();
        verbs.multiply(a + row * panel_depth, b + column * panel_depth, depth, add,
                       t.columns - column, s.c + std::ptrdiff_t{row} * ld + column, ld);
      }
    }
    add = true;
  }
  if (!add) std::fill_n(s.c, t.rows * std::ptrdiff_t{ld}, 0.0F);
}

}  // namespace

std::int64_t packed_columns(const MatmulProblem& problem, const ProductVerbs& verbs, int threads) {
  return columns_for(problem, threads, limits_of(verbs).wide, 96,
                     [&](std::int64_t columns) { return packed_blocks(problem, verbs, columns); });
}

ProductBlocks packed_blocks(const MatmulProblem& problem, const ProductVerbs& verbs,
                            std::int64_t columns) {
  const Limits most = limits_of(verbs);
  const MaskedSizes sizes(problem);
  // One block of rows: each task packs its block of B, which then stays in L2.
  columns =
      std::clamp<std::int64_t>(columns, most.step, sizes.m <= most.rows ? most.narrow : most.wide);
  // Tasks share one block of B at least: no more of it than kMostShared.
  const std::int64_t column_bytes = std::max<std::int64_t>(1, problem.k) * verbs.element_bytes;
  columns = std::min(columns, std::max<std::int64_t>(most.narrow, kMostShared / column_bytes));
  columns = columns / most.step * most.step;
  // A block of a mask that is a third deeper is not halved: sums of C go to memory once, and a
  // panel of B, of 48 KB then, still comes from L1 and L2 faster than it is used.
  const bool deeper = problem.masked == MaskedMatrix::b && 3 * sizes.block_k <= 4 * most.depth;
  const std::int64_t depth =
      deeper ? std::max<std::int64_t>(sizes.block_k, most.depth) : most.depth;
  const Cut n = cut(sizes.n, sizes.block_n, columns, most.step);
  // Blocks of a C that has few have twice the rows: operands that each task packs are packed half
  // as often, and all three blocks still fit L2.
  const bool taller = problem.masked == MaskedMatrix::c && n.part <= most.narrow;
  return {.m = cut(sizes.m, sizes.block_m, taller ? 256 : most.rows, verbs.rows),
          .n = n,
          .k = cut(problem.k, sizes.block_k, depth,
                   step_multiple(problem, std::max(verbs.depth_multiple, 16)))};
}

namespace {

// What tasks share, of a product cut so.
struct Sharing {
  bool a = false, b = false;
  std::int64_t across = 0;                // blocks of columns at a time
  std::int64_t bytes_a = 0, bytes_b = 0;  // of a block
};

Sharing share(const ProductBlocks& blocks, const ProductVerbs& verbs, bool used_seldom) {
  const auto bytes = [&](int lanes) {
    const core::Size size = core::Size(lanes + kLanesPast) * blocks.k.part * verbs.element_bytes;
    return static_cast<std::int64_t>(aligned(size).bytes());
  };
  const std::int64_t down = blocks.m.count(), steps = blocks.k.count();
  Sharing s;
  s.across = blocks.n.count();
  s.bytes_a = bytes(blocks.m.part);
  s.bytes_b = bytes(blocks.n.part);
  if (used_seldom) return s;
  // Packed by the task that needs it, a block of A is in L2 then; narrow blocks of C would have it
  // packed too often for that.
  s.a = s.across > 1 && blocks.n.part <= limits_of(verbs).narrow &&
        down * steps * s.bytes_a <= kMostShared;
  s.b = down > 1 && steps > 0;
  if (s.b)
    s.across = std::min(s.across, std::max<std::int64_t>(1, kMostShared / (steps * s.bytes_b)));
  return s;
}

// Whether few blocks of C are there: on average, the operands of a block are of one or two of them.
// A copy of all of A and B would go through L3 and memory then; packed by the task they stay in L2.
bool uses_operands_seldom(const Product& p) {
  if (p.mask.of != core::BlockMaskView::Of::c) return false;
  const auto blocks = [&](std::int64_t size) {
    return core::divide_up(size, p.mask.block).value();
  };
  const std::int64_t down = blocks(p.m), across = blocks(p.n);
  std::int64_t there = 0;
  for (std::int64_t i = 0; i < down; ++i) {
    for (std::int64_t j = 0; j < across; ++j) {
      there += p.mask.has(i * p.mask.block, j * p.mask.block) ? 1 : 0;
    }
  }
  return there <= 2 * std::min(down, across);
}

// Bytes of the operands that tasks share.
core::Size shared_bytes(const Sharing& s, const ProductBlocks& blocks) {
  core::Size bytes = 0;
  if (s.a) bytes = bytes + core::Size(blocks.m.count()) * blocks.k.count() * s.bytes_a;
  if (s.b) bytes = bytes + core::Size(s.across) * blocks.k.count() * s.bytes_b;
  return bytes;
}

}  // namespace

std::int64_t packed_bytes(const ProductBlocks& blocks, const ProductVerbs& verbs, int threads) {
  const auto bytes = [&](bool used_seldom) {
    const Sharing s = share(blocks, verbs, used_seldom);
    const core::Size worker = WorkerScratch<Scratch>::bytes(
        {.blocks = blocks, .element_bytes = verbs.element_bytes, .own_a = !s.a, .own_b = !s.b});
    return static_cast<std::int64_t>((worker * threads + shared_bytes(s, blocks)).bytes());
  };
  return std::max(bytes(false), bytes(true));  // the mask is not known yet
}

void matmul_packed(const Product& p, const TileOps& ops, const ProductBlocks& blocks,
                   const Workers& workers) {
  const ProductVerbs& verbs = ops.product;
  const Sharing sharing = share(blocks, verbs, uses_operands_seldom(p));
  const WorkerScratch<Scratch> scratch(workers.workspace(), workers.count(),
                                       {.blocks = blocks,
                                        .element_bytes = verbs.element_bytes,
                                        .own_a = !sharing.a,
                                        .own_b = !sharing.b});
  std::byte* memory = workers.workspace().take(shared_bytes(sharing, blocks));
  const std::int64_t down = blocks.m.count(), across = blocks.n.count(), steps = blocks.k.count();
  Operands shared;
  shared.a = {sharing.a ? memory : nullptr, sharing.bytes_a, steps};
  shared.b = {sharing.b ? memory + (sharing.a ? down * steps * sharing.bytes_a : 0) : nullptr,
              sharing.bytes_b, steps};

  using Of = core::BlockMaskView::Of;
  const Pieces of_a(p.a.column_stride == 1, down, blocks.m, steps, workers.count());
  const Pieces of_b(p.b.row_stride == 1, sharing.across, blocks.n, steps, workers.count());
  const auto pack_a = [&](std::int64_t batch, std::int64_t block, std::int64_t piece) {
    const std::int64_t row = blocks.m.first(block);
    of_a.each(piece, blocks.m.size(block), steps,
              [&](std::int64_t first, int lanes, std::int64_t i) {
                const std::int64_t step = blocks.k.first(i);
                if (p.mask.of == Of::a && !p.mask.has(row, step)) return;
                const int depth = blocks.k.size(i);
                verbs.pack_a(block_of_a(p, batch, row + first, step, lanes, depth),
                             shared.a.at(block, i) + first * lane_bytes(depth, verbs));
              });
  };
  const auto pack_b = [&](std::int64_t batch, std::int64_t block, std::int64_t piece) {
    const std::int64_t j = shared.first_across + block, column = blocks.n.first(j);
    of_b.each(piece, blocks.n.size(j), steps, [&](std::int64_t first, int lanes, std::int64_t i) {
      const std::int64_t step = blocks.k.first(i);
      if (p.mask.of == Of::b && !p.mask.has(step, column)) return;
      const int depth = blocks.k.size(i);
      verbs.pack_b(block_of_b(p, batch, step, column + first, lanes, depth),
                   shared.b.at(block, i) + first * lane_bytes(depth, verbs));
    });
  };
  // Blocks of A (of the whole product) and of B (of some columns).
  const auto pack = [&](std::int64_t batch, std::int64_t blocks_a, std::int64_t blocks_b) {
    const std::int64_t pieces_a = blocks_a * of_a.count, pieces_b = blocks_b * of_b.count;
    workers.parallel_for(pieces_a + pieces_b, [&](std::int64_t index, int) {
      if (index < pieces_a) return pack_a(batch, index / of_a.count, index % of_a.count);
      const std::int64_t of_blocks_b = index - pieces_a;
      pack_b(batch, of_blocks_b / of_b.count, of_blocks_b % of_b.count);
    });
  };
  const auto multiply = [&](std::int64_t first_batch, std::int64_t batches, std::int64_t columns) {
    workers.parallel_for(batches * down * columns, [&](std::int64_t index, int worker) {
      const std::int64_t i = index % down, j = shared.first_across + index / down % columns;
      const Tile t = tile_at(blocks, first_batch + index / (down * columns), i, j);
      if (p.mask.of == core::BlockMaskView::Of::c && !p.mask.has(t.row, t.column)) return;
      const TileState state(ops);
      const Scratch s = scratch.of(worker);
      multiply_blocks(p, verbs, t, i, j, shared, s);
      verbs.finish(s.c, blocks.n.part, output_of(p, t, s.bias));
    });
  };

  if (!sharing.a && !sharing.b) return multiply(0, p.batch, across);
  for (std::int64_t batch = 0; batch < p.batch; ++batch) {
    for (std::int64_t j = 0; j < across; j += sharing.across) {
      shared.first_across = j;
      const std::int64_t columns = std::min(sharing.across, across - j);
      pack(batch, sharing.a && j == 0 ? down : 0, sharing.b ? columns : 0);
      multiply(batch, 1, columns);
    }
  }
}

}  // namespace attn::cpu
