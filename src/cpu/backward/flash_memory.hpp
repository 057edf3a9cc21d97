// Memory of FlashAttention-2's backward pass (flash.cpp): of a task, and of a wave of pairs.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "core/ceil_div.hpp"
#include "core/tensor/size.hpp"
#include "cpu/backward/gradient_context.hpp"
#include "cpu/budgets.hpp"
#include "cpu/workspace.hpp"

namespace attn::cpu {

// What a task keeps: a chunk of K, V, dK and dV, and a group of Q blocks.
struct FlashScratch {
  int dim = 0, dim_v = 0;
  int blocks = kGradientGroup;           // of a group
  GradientTiles tile;                    // sizes of each of tiles
  GradientTiles* tiles = nullptr;        // [blocks], of each Q block of a group
  GradientBlock* block = nullptr;        // [blocks], for Q blocks that are not packed ahead
  std::byte *k = nullptr, *v = nullptr;  // [kChunkKeys][leading dimension]
  std::byte* k_pairs = nullptr;          // K as dQ takes it: k itself for f32 operands
  float *dk = nullptr, *dv = nullptr;    // [kChunkKeys][leading dimension]
  std::uint64_t k_apart[kChunkKeys / kBlockK] = {};  // of each K block, as in KeyBlock

  void carve(Carver& c) {
    c.take(tiles, blocks);
    GradientTiles placed = tile;
    for (int i = 0; i < blocks; ++i) {
      placed.carve(c);
      placed.tile.expression_floats = 0;  // they take turns to evaluate: one scratch serves all
      if (tiles == nullptr) continue;
      tiles[i] = placed;
      tiles[i].tile.expression = tiles[0].tile.expression;
      tiles[i].factor = tiles[0].factor;  // nor does a tile need it after its turn
    }
    c.take(block, blocks);
    GradientBlock counted;
    for (int i = 0; i < blocks; ++i) {
      (block == nullptr ? counted : block[i]).carve(c, dim, dim_v, tile.tile.operand);
    }
    const auto k_floats = static_cast<std::size_t>(kChunkKeys * leading_dim(dim));
    const auto v_floats = static_cast<std::size_t>(kChunkKeys * leading_dim(dim_v));
    const DType operand = tile.tile.operand;
    c.take(k, k_floats * size_of(operand));
    k_pairs = k;
    if (operand == DType::bf16) c.take(k_pairs, k_floats * size_of(operand));
    c.take(dk, k_floats);
    c.take(v, v_floats * size_of(operand));
    c.take(dv, v_floats);
  }
};

// What one wave of pairs needs between its steps.
struct WaveMemory {
  std::byte* packed;          // GradientBlocks and their arrays
  std::size_t block_bytes;    // of one of them
  float* dq_t;                // [split][block of the wave][dim][rows]
  std::int64_t block_floats;  // dim * rows
  std::int64_t blocks;        // of the largest wave

  float* dq(std::int64_t split, std::int64_t block) const {
    return dq_t + (split * blocks + block) * block_floats;
  }
  GradientBlock& block(std::size_t offset, std::int64_t i) const {
    return *reinterpret_cast<GradientBlock*>(packed + offset +
                                             static_cast<std::size_t>(i) * block_bytes);
  }
};

// How many pairs workers take whole, each in memory of its own that it uses again: the first ones,
// as many for each worker. The last, two tasks for each worker, are left to waves, where a range of
// keys is a task, so that all workers end together. None where packed Q blocks of a pair for every
// worker, `packed` bytes each, are past the budget.
inline std::int64_t whole_pairs(std::int64_t pairs, std::int64_t threads, std::int64_t splits,
                                core::Size packed) {
  if (packed * threads > core::Size(kQueryPackBudget) || pairs < threads) return 0;
  if (splits == 1 || threads == 1) return pairs;
  const std::int64_t last = core::ceil_div(2 * threads, splits);
  return std::max<std::int64_t>(0, pairs - last) / threads * threads;
}

// A bound of the pairs that have memory at once, with so many threads or fewer.
inline core::Size pairs_at_once(core::Size pairs, std::int64_t threads, std::int64_t splits,
                                core::Size packed) {
  if (packed * threads > core::Size(kQueryPackBudget) || pairs < threads) return pairs;
  if (splits == 1 || threads == 1) return threads;
  return std::min(pairs, core::Size(threads + core::ceil_div(2 * threads, splits)));
}

}  // namespace attn::cpu
