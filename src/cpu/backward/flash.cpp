// FlashAttention-2, algorithm 2: P is recomputed from LSE tile by tile. Tasks are (sequence, K, V
// head, range of keys). A task keeps a chunk of K, V, dK and dV and runs over all Q blocks;
// dQ of a Q block is accumulated, transposed, in a workspace of its own for each range and the
// ranges are added in order at the end. So no two tasks write to the same memory and the sums do
// not depend on the number of threads.
#include <algorithm>

#include "cpu/backward/backward.hpp"
#include "cpu/budgets.hpp"
#include "cpu/pairs.hpp"
#include "cpu/tasks.hpp"

namespace attn::cpu {
namespace {

struct Scratch {
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

// Packs every Q block of the wave that has room.
void pack_queries(const Attention& a, const GradientContext& g, const Waves& waves,
                  const Wave& wave, const WaveMemory& memory, const Workers& workers) {
  const std::int64_t first = g.first_block(wave.first);
  workers.parallel_for(g.first_block(wave.last) - first, [&](std::int64_t index, int) {
    const std::int64_t pair = g.pair_of_block(first + index);
    const std::size_t offset = waves.offset_of(pair);
    if (offset == kNotPacked) return;
    const std::int64_t i = first + index - g.first_block(pair);
    GradientBlock& block = memory.block(offset, i);
    Carver carver(reinterpret_cast<std::byte*>(&block));
    GradientBlock* self = nullptr;
    carver.take(self, 1);
    GradientBlock placed;
    placed.carve(carver, a.dim, a.dim_v, a.ops.operand);
    *self = placed;
    g.load(pair, i, *self);
  });
}

// Bytes of `keys` packed rows of K or V, ld elements each; pairs of keys take as many.
std::size_t key_bytes(const Attention& a, std::int64_t keys, int ld) {
  return static_cast<std::size_t>(keys * ld) * size_of(a.ops.operand);
}

// Q blocks [first, first + count) of the pair against one chunk of keys: dQ is added to theirs, dK
// and dV to those of the chunk in s.
void group_gradient(const Attention& a, const GradientContext& g, const Waves& waves,
                    const Wave& wave, std::int64_t pair, std::int64_t first, int count,
                    KeyRange chunk, std::int64_t split, const WaveMemory& memory, Scratch& s) {
  const core::Sequence& sequence = pair_at(a, pair).sequence;
  const int head_k = pair_at(a, pair).head_k;
  const int ld = leading_dim(a.dim);
  const int ld_v = leading_dim(a.dim_v);
  const std::size_t offset = waves.offset_of(pair);
  const std::int64_t in_wave = g.first_block(pair) - g.first_block(wave.first);
  const auto tile_of = [&](std::int64_t block, int blocks) {
    const std::int64_t row0 = block * a.ops.rows;
    return a.tile(
        sequence, head_k, row0,
        std::min<std::int64_t>(std::int64_t{blocks} * a.ops.rows, a.rows(sequence) - row0));
  };
  GradientBlock* q[kGradientGroup] = {};
  const auto visit = [&](int key0, int keys_in_block, expr::Coverage coverage) {
    const std::int64_t j = key0 - chunk.begin;
    const std::size_t k_at = key_bytes(a, j, ld), v_at = key_bytes(a, j, ld_v);
    float* dk = s.dk + j * ld;
    float* dv = s.dv + j * ld_v;
    GradientTile tile[kGradientGroup];
    OutputTile dq[kGradientGroup];
    WeightedRows queries[kGradientGroup], d_o[kGradientGroup];
    int tiles = 0, tile_keys = 0;  // visible ones so far, all with the same number of keys
    const auto add_tiles = [&] {
      const KeyBlock block{key0, tile_keys, s.k + k_at, s.v + v_at, s.k_apart[j / kBlockK]};
      for (int i = 0; i < tiles; i += a.ops.q_blocks) {
        const int n = std::min(a.ops.q_blocks, tiles - i);
        g.tile_gradients(tile + i, n, block);
        a.ops.accumulate(dq + i, n, s.k_pairs + k_at, tile_keys, a.dim);
      }
      a.ops.accumulate_rows(d_o, tiles, tile_keys, a.dim_v, dv);
      a.ops.accumulate_rows(queries, tiles, tile_keys, a.dim, dk);
      for (int i = 0; i < tiles; ++i) {
        g.add_keys_apart(block, tile[i], dq[i].o_t);
        g.add_rows_apart(tile[i], tile_keys, dk, dv);
      }
      tiles = 0;
    };
    for (int i = 0; i < count; ++i) {
      const expr::Tile rows = tile_of(first + i, 1);
      const expr::Coverage own = coverage == expr::Coverage::full || count == 1
                                     ? coverage
                                     : a.coverage(rows, key0, keys_in_block);
      if (own == expr::Coverage::empty) continue;
      const int n =
          own == expr::Coverage::mixed ? a.visible_keys(rows, key0, keys_in_block) : keys_in_block;
      if (q[i] == nullptr) {
        q[i] = offset == kNotPacked ? s.block + i : &memory.block(offset, first + i);
        if (offset == kNotPacked) g.load(pair, first + i, *q[i]);
      }
      if (tiles > 0 && n != tile_keys) add_tiles();
      GradientTiles& t = s.tiles[tiles];
      tile[tiles] = {q[i], own, &t};
      dq[tiles] = {t.ds_pairs, nullptr, memory.dq(split, in_wave + first + i)};
      d_o[tiles] = {t.tile.p, q[i]->do_rows, q[i]->q.count};
      queries[tiles] = {t.ds_rows, q[i]->q_rows, q[i]->q.count};
      tile_keys = n;
      ++tiles;
    }
    if (tiles > 0) add_tiles();
  };
  for_visible_blocks(a, tile_of(first, count), chunk.begin, chunk.end, visit);
}

// One chunk of keys against every Q block of the pair; dK and dV of the chunk are left in s.
void chunk_gradient(const Attention& a, const GradientContext& g, const Waves& waves,
                    const Wave& wave, std::int64_t pair, KeyRange keys, std::int64_t split,
                    const WaveMemory& memory, Scratch& s) {
  const auto [sequence, head_k] = pair_at(a, pair);
  const int ld = leading_dim(a.dim);
  const int ld_v = leading_dim(a.dim_v);
  const auto count = static_cast<int>(keys.end - keys.begin);
  for (int j = 0; j < count; j += kBlockK) {
    KeyBlock block{0, 0, s.k + key_bytes(a, j, ld), s.v + key_bytes(a, j, ld_v)};
    g.load_keys(sequence, head_k, static_cast<int>(keys.begin) + j, std::min(kBlockK, count - j),
                block, s.k_pairs != s.k ? s.k_pairs + key_bytes(a, j, ld) : nullptr);
    s.k_apart[j / kBlockK] = block.k_apart;
  }
  std::fill_n(s.dk, count * ld, 0.0f);
  std::fill_n(s.dv, count * ld_v, 0.0f);
  for (std::int64_t i = 0; i < g.blocks(pair); i += kGradientGroup) {
    const auto blocks =
        static_cast<int>(std::min<std::int64_t>(kGradientGroup, g.blocks(pair) - i));
    group_gradient(a, g, waves, wave, pair, i, blocks, keys, split, memory, s);
  }
}

// dQ of one Q block: the ranges' sums, in order.
void store_query_gradient(const Attention& a, const GradientContext& g, const Wave& wave,
                          std::int64_t block, int splits, const Tensor& tensor,
                          const WaveMemory& memory) {
  const std::int64_t pair = g.pair_of_block(block);
  const auto [sequence, head_k] = pair_at(a, pair);
  const std::int64_t in_wave = block - g.first_block(wave.first);
  float* sum = memory.dq(0, in_wave);
  for (int split = 1; split < splits; ++split) {
    const float* part = memory.dq(split, in_wave);
    for (std::int64_t e = 0; e < memory.block_floats; ++e) sum[e] += part[e];
  }
  const std::int64_t row0 = (block - g.first_block(pair)) * a.ops.rows;
  QueryBlock q;
  a.place_query_block(sequence, head_k, row0,
                      static_cast<int>(std::min<std::int64_t>(a.ops.rows, a.rows(sequence) - row0)),
                      q);
  a.store_query_rows(core::rows_like_q(a.problem, a.inputs, tensor, sequence.batch), q, sum, a.dim,
                     a.scale);
}

// Bytes of packed Q blocks that a wave may have: little, but four tasks a thread, so that none
// waits long at the end of a wave.
template <class BytesOf>
std::size_t wave_bytes(const Attention& a, const Workers& workers, int splits,
                       const BytesOf& bytes_of) {
  std::size_t largest = 0;
  for (std::int64_t pair = 0; pair < pair_count(a); ++pair) {
    const std::size_t bytes = bytes_of(pair_at(a, pair));
    if (bytes != kNotPacked) largest = std::max(largest, bytes);
  }
  const std::size_t pairs =
      (4 * static_cast<std::size_t>(workers.count()) + static_cast<std::size_t>(splits) - 1) /
      static_cast<std::size_t>(splits);
  return std::clamp(pairs * largest, static_cast<std::size_t>(kQueryWaveBytes),
                    static_cast<std::size_t>(kQueryPackBudget));
}

}  // namespace

void backward_flash(const Attention& a, const GradientContext& g, const Plan& plan,
                    const Gradients& gradients, const Workers& workers) {
  const int splits = plan.num_splits;
  Scratch sizes;
  sizes.dim = a.dim;
  sizes.dim_v = a.dim_v;
  sizes.blocks = a.most_blocks(kGradientGroup);
  sizes.tile = g.tiles();
  Workspace& workspace = workers.workspace();
  const WorkerScratch<Scratch> scratch(workspace, workers.count(), sizes);

  WaveMemory memory{};
  Carver block_size;
  GradientBlock* self = nullptr;
  block_size.take(self, 1);
  GradientBlock counted;
  counted.carve(block_size, a.dim, a.dim_v, a.ops.operand);
  memory.block_bytes = block_size.used().bytes();
  const auto packed_bytes_of = [&](const Pair& pair) {
    // A single chunk of keys reads each Q block once and packs it as it goes.
    if (pair.sequence.length_k <= kChunkKeys) return kNotPacked;
    return (core::Size((a.rows(pair.sequence) + a.ops.rows - 1) / a.ops.rows) * memory.block_bytes)
        .bytes();
  };
  const Waves all =
      waves(a, static_cast<std::size_t>(kQueryPackBudget),
            wave_bytes(a, workers, splits, packed_bytes_of), packed_bytes_of, workspace);
  memory.block_floats = std::int64_t{a.dim} * a.ops.rows;
  for (const Wave& wave : all.list) {
    memory.blocks = std::max(memory.blocks, g.first_block(wave.last) - g.first_block(wave.first));
  }
  memory.packed = workspace.take(largest_wave(all), "packed Q blocks");
  memory.dq_t = workspace.take_array<float>(
      core::Size(splits) * memory.blocks * memory.block_floats, "dQ of the splits");

  for (const Wave& wave : all.list) {
    if (wave.bytes > 0) pack_queries(a, g, all, wave, memory, workers);
    const std::int64_t pairs = wave.last - wave.first;
    const std::int64_t first = g.first_block(wave.first);
    // Ranges of the first keys come first: under a causal mask they are the costly ones.
    workers.parallel_for(pairs * splits, [&](std::int64_t index, int worker) {
      const std::int64_t pair = wave.first + index % pairs;
      const std::int64_t split = index / pairs;
      const auto [sequence, head_k] = pair_at(a, pair);
      const TileState tile_state(a.ops);
      Scratch s = scratch.of(worker);
      std::fill_n(memory.dq(split, g.first_block(pair) - first),
                  g.blocks(pair) * memory.block_floats, 0.0f);
      const KeyRange range = split_range(sequence.length_k, splits, split);
      for (std::int64_t key = range.begin; key < range.end; key += kChunkKeys) {
        const KeyRange chunk{key, std::min<std::int64_t>(key + kChunkKeys, range.end)};
        chunk_gradient(a, g, all, wave, pair, chunk, split, memory, s);
        const auto keys = static_cast<int>(chunk.end - chunk.begin);
        g.store_key_gradients(gradients, sequence, head_k, static_cast<int>(key), keys, s.dk, s.dv);
      }
    });
    if (!gradients.dq.given()) continue;
    workers.parallel_for(g.first_block(wave.last) - first, [&](std::int64_t index, int) {
      store_query_gradient(a, g, wave, first + index, splits, gradients.dq, memory);
    });
  }
}

}  // namespace attn::cpu
