// What the rungs that work on blocks of C share.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "core/block_format.hpp"
#include "cpu/matmul/matmul.hpp"

namespace attn::cpu {

constexpr std::int64_t round_up(std::int64_t x, std::int64_t to) { return (x + to - 1) / to * to; }

// The sizes of a product as the rungs see it (core::MatmulOperands), with the sides of the blocks
// that a mask makes of each dimension: the whole of it where there is no mask.
struct MaskedSizes {
  explicit MaskedSizes(const MatmulProblem& problem);
  std::int64_t m, n, block_m, block_n, block_k;
};

// `total` in blocks of a mask, each in equal parts, none above `most`, in multiples of `step`.
Cut cut(std::int64_t total, std::int64_t block, std::int64_t most, std::int64_t step);

// The block of C that starts at (row, column).
struct Tile {
  std::int64_t batch, row, column;
  int rows, columns;
};
inline Tile tile_at(const ProductBlocks& blocks, std::int64_t batch, std::int64_t i,
                    std::int64_t j) {
  return {.batch = batch,
          .row = blocks.m.first(i),
          .column = blocks.n.first(j),
          .rows = blocks.m.size(i),
          .columns = blocks.n.size(j)};
}

// Columns of a block: `most`, halved down to `least` while a thread has less than four blocks.
// blocks_of(columns): the blocks that the product then has.
template <class BlocksOf>
std::int64_t columns_for(const MatmulProblem& problem, int threads, std::int64_t most,
                         std::int64_t least, const BlocksOf& blocks_of) {
  std::int64_t columns = most;
  for (; columns > least; columns /= 2) {
    const ProductBlocks blocks = blocks_of(columns);
    if (problem.batch * blocks.m.count() * blocks.n.count() >= 4 * std::int64_t{threads}) break;
  }
  return columns;
}

// Pieces along k begin at multiples of this.
inline std::int64_t step_multiple(const MatmulProblem& problem, std::int64_t of_verbs) {
  return problem.format_b == BlockFormat::none ? of_verbs
                                               : std::max(of_verbs, core::kBlockElements);
}

OperandBlock block_of_a(const Product& p, std::int64_t batch, std::int64_t row, std::int64_t step,
                        int rows, int depth);
OperandBlock block_of_b(const Product& p, std::int64_t batch, std::int64_t step,
                        std::int64_t column, int columns, int depth);

// Starts the sums of t, `rows` rows ld apart, with what C holds, where the product adds to it;
// returns whether it does.
bool start_sums(const Product& p, const Tile& t, std::int64_t rows, int ld, float* sums);

// The block of C that the sums of t go to. bias: as many elements as t has columns, up to a
// multiple of 16, which the bias of columns is copied to.
OutputBlock output_of(const Product& p, const Tile& t, float* bias);

}  // namespace attn::cpu
