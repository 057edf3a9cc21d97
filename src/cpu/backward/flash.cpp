// FlashAttention-2, algorithm 2: P is recomputed from LSE tile by tile. Tasks are (sequence, K, V
// head, range of keys). A task keeps a chunk of K, V, dK and dV and runs over all Q blocks;
// dQ of a Q block is accumulated, transposed, in a workspace of its own for each range and the
// ranges are added in order at the end. So no two tasks write to the same memory and the sums do
// not depend on the number of threads. Where there are many pairs (sequence, K, V head), a worker
// takes the ranges of a pair one after the other, in memory that it uses again for its next pair.
#include <algorithm>

#include "core/ceil_div.hpp"
#include "cpu/backward/backward.hpp"
#include "cpu/backward/flash_memory.hpp"
#include "cpu/budgets.hpp"
#include "cpu/pairs.hpp"
#include "cpu/tasks.hpp"

namespace attn::cpu {
namespace {

// Packs Q block i of a pair, whose blocks are at `offset` of memory.packed.
void pack_block(const Attention& a, const GradientContext& g, std::int64_t pair, std::int64_t i,
                std::size_t offset, const WaveMemory& memory) {
  GradientBlock& block = memory.block(offset, i);
  Carver carver(reinterpret_cast<std::byte*>(&block));
  GradientBlock* self = nullptr;
  carver.take(self, 1);
  GradientBlock placed;
  placed.carve(carver, a.dim, a.dim_v, a.ops.operand);
  *self = placed;
  g.load(pair, i, *self);
}

// Bytes of `keys` packed rows of K or V, ld elements each; pairs of keys take as many.
std::size_t key_bytes(const Attention& a, std::int64_t keys, int ld) {
  return static_cast<std::size_t>(keys * ld) * size_of(a.ops.operand);
}

// A chunk of keys against every Q block of a pair: a part `split` of the keys has several.
struct ChunkPass {
  const Attention& a;
  const GradientContext& g;
  const WaveMemory& memory;
  std::int64_t pair;
  std::size_t packed_at;       // of the pair's Q blocks in memory.packed, or kNotPacked
  std::int64_t first_in_wave;  // number of its first Q block among those of the wave
  std::int64_t split;
  KeyRange keys;
  FlashScratch& s;

  // Ranges of rows of so many Q blocks.
  expr::Tile rows(std::int64_t block, int blocks) const {
    const auto [sequence, head_k] = pair_at(a, pair);
    const std::int64_t row0 = block * a.ops.rows, count = std::int64_t{blocks} * a.ops.rows;
    return a.tile(sequence, head_k, row0, std::min(count, a.rows(sequence) - row0));
  }
};

// Q blocks of a group against a K, V block of the chunk.
class Tiles {
 public:
  Tiles(const ChunkPass& pass, int key0) : pass_(pass), key0_(key0), at_(key0 - pass.keys.begin) {}

  // Q block `block` of the pair, which sees the first `keys` keys, or some of them.
  void add(const GradientBlock& q, std::int64_t block, expr::Coverage coverage, int keys) {
    if (count_ > 0 && keys != keys_) compute();
    GradientTiles& t = pass_.s.tiles[count_];
    tile_[count_] = {&q, coverage, &t};
    dq_[count_] = {t.ds_pairs, nullptr, pass_.memory.dq(pass_.split, pass_.first_in_wave + block)};
    d_o_[count_] = {t.tile.p, q.do_rows, q.q.count};
    queries_[count_] = {t.ds_rows, q.q_rows, q.q.count};
    keys_ = keys;
    ++count_;
  }

  // Adds what was added gives to dQ, dK and dV.
  void compute() {
    if (count_ == 0) return;
    const Attention& a = pass_.a;
    const GradientContext& g = pass_.g;
    FlashScratch& s = pass_.s;
    const int ld = leading_dim(a.dim), ld_v = leading_dim(a.dim_v);
    const std::size_t k_at = key_bytes(a, at_, ld), v_at = key_bytes(a, at_, ld_v);
    float* const dk = s.dk + at_ * ld;
    float* const dv = s.dv + at_ * ld_v;
    const KeyBlock block{key0_, keys_, s.k + k_at, s.v + v_at, s.k_apart[at_ / kBlockK]};
    for (int i = 0; i < count_; i += a.ops.q_blocks) {
      const int n = std::min(a.ops.q_blocks, count_ - i);
      // Lines 11 to 14: S = Q K^T, P = exp(S - L), dP = dO V^T, dS = P (dP - D).
      g.tile_gradients(tile_ + i, n, block);
      // Line 15: dQ <- dQ + dS K.
      a.ops.accumulate(dq_ + i, n, s.k_pairs + k_at, keys_, a.dim);
    }
    // Line 12: dV <- dV + P^T dO. Line 16: dK <- dK + dS^T Q.
    a.ops.accumulate_rows(d_o_, count_, keys_, a.dim_v, dv);
    a.ops.accumulate_rows(queries_, count_, keys_, a.dim, dk);
    for (int i = 0; i < count_; ++i) {
      g.add_keys_apart(block, tile_[i], dq_[i].o_t);
      g.add_rows_apart(tile_[i], keys_, dk, dv);
    }
    count_ = 0;
  }

 private:
  const ChunkPass& pass_;
  const int key0_;
  const std::int64_t at_;  // in the chunk
  GradientTile tile_[kGradientGroup];
  OutputTile dq_[kGradientGroup];
  WeightedRows queries_[kGradientGroup], d_o_[kGradientGroup];
  int count_ = 0;
  int keys_ = 0;  // of each
};

// Q blocks [first, first + count) of the pair: dQ is added to theirs, dK and dV to those of the
// chunk in s.
void group_gradient(const ChunkPass& pass, std::int64_t first, int count) {
  const Attention& a = pass.a;
  const bool packed = pass.packed_at != kNotPacked;
  GradientBlock* q[kGradientGroup] = {};
  const auto visit = [&](int key0, int keys, expr::Coverage coverage) {
    Tiles tiles(pass, key0);
    for (int i = 0; i < count; ++i) {
      const expr::Tile rows = pass.rows(first + i, 1);
      const expr::Coverage own =
          coverage == expr::Coverage::full || count == 1 ? coverage : a.coverage(rows, key0, keys);
      if (own == expr::Coverage::empty) continue;
      if (q[i] == nullptr) {
        q[i] = packed ? &pass.memory.block(pass.packed_at, first + i) : pass.s.block + i;
        if (!packed) pass.g.load(pass.pair, first + i, *q[i]);
      }
      tiles.add(*q[i], first + i, own,
                own == expr::Coverage::mixed ? a.visible_keys(rows, key0, keys) : keys);
    }
    tiles.compute();
  };
  for_visible_blocks(a, pass.rows(first, count), pass.keys.begin, pass.keys.end, visit);
}

// All Q blocks of the pair; dK and dV of the chunk are left in s.
void chunk_gradient(const ChunkPass& pass) {
  const Attention& a = pass.a;
  FlashScratch& s = pass.s;
  const auto [sequence, head_k] = pair_at(a, pass.pair);
  const int ld = leading_dim(a.dim);
  const int ld_v = leading_dim(a.dim_v);
  const auto count = static_cast<int>(pass.keys.end - pass.keys.begin);
  for (int j = 0; j < count; j += kBlockK) {
    KeyBlock block{0, 0, s.k + key_bytes(a, j, ld), s.v + key_bytes(a, j, ld_v)};
    pass.g.load_keys(sequence, head_k, static_cast<int>(pass.keys.begin) + j,
                     std::min(kBlockK, count - j), block,
                     s.k_pairs != s.k ? s.k_pairs + key_bytes(a, j, ld) : nullptr);
    s.k_apart[j / kBlockK] = block.k_apart;
  }
  std::fill_n(s.dk, count * ld, 0.0f);
  std::fill_n(s.dv, count * ld_v, 0.0f);
  const std::int64_t blocks = pass.g.blocks(pass.pair);
  for (std::int64_t i = 0; i < blocks; i += kGradientGroup) {
    group_gradient(pass, i, static_cast<int>(std::min<std::int64_t>(kGradientGroup, blocks - i)));
  }
}

// dQ of one Q block: the ranges' sums, in order. `memory` is that of the Q blocks from `first` on.
void store_query_gradient(const Attention& a, const GradientContext& g, std::int64_t first,
                          std::int64_t block, int splits, const Tensor& tensor,
                          const WaveMemory& memory) {
  const std::int64_t pair = g.pair_of_block(block);
  const auto [sequence, head_k] = pair_at(a, pair);
  float* sum = memory.dq(0, block - first);
  for (int split = 1; split < splits; ++split) {
    const float* part = memory.dq(split, block - first);
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

// A range of keys of a pair: its dQ is left in `memory`, dK and dV are stored.
void range_gradient(const Attention& a, const GradientContext& g, const Gradients& gradients,
                    const WaveMemory& memory, std::int64_t pair, std::size_t packed_at,
                    std::int64_t first_in_wave, int splits, std::int64_t split, FlashScratch& s) {
  const auto [sequence, head_k] = pair_at(a, pair);
  std::fill_n(memory.dq(split, first_in_wave), g.blocks(pair) * memory.block_floats, 0.0f);
  const KeyRange range = split_range(sequence.length_k, splits, split);
  for (std::int64_t key = range.begin; key < range.end; key += kChunkKeys) {
    const KeyRange chunk{key, std::min<std::int64_t>(key + kChunkKeys, range.end)};
    chunk_gradient({a, g, memory, pair, packed_at, first_in_wave, split, chunk, s});
    const auto keys = static_cast<int>(chunk.end - chunk.begin);
    g.store_key_gradients(gradients, sequence, head_k, static_cast<int>(key), keys, s.dk, s.dv);
  }
}

// Bytes of packed Q blocks that a wave may have: little, but four tasks a thread, so that none
// waits long at the end of a wave. `largest`: those of a pair.
std::size_t wave_bytes(const Workers& workers, int splits, std::size_t largest) {
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
  FlashScratch sizes;
  sizes.dim = a.dim;
  sizes.dim_v = a.dim_v;
  sizes.blocks = a.most_blocks(kGradientGroup);
  sizes.tile = g.tiles();
  Workspace& workspace = workers.workspace();
  const WorkerScratch<FlashScratch> scratch(workspace, workers.count(), sizes);

  WaveMemory memory{};
  Carver block_size;
  GradientBlock* self = nullptr;
  block_size.take(self, 1);
  GradientBlock counted;
  counted.carve(block_size, a.dim, a.dim_v, a.ops.operand);
  memory.block_bytes = block_size.used().bytes();
  memory.block_floats = std::int64_t{a.dim} * a.ops.rows;
  const auto packed_bytes_of = [&](const Pair& pair) {
    // A single chunk of keys reads each Q block once and packs it as it goes.
    if (pair.sequence.length_k <= kChunkKeys) return kNotPacked;
    return (core::Size(core::ceil_div(a.rows(pair.sequence), a.ops.rows)) * memory.block_bytes)
        .bytes();
  };
  WaveMemory own = memory;  // of a worker with a whole pair
  std::size_t largest = 0;  // bytes of the packed Q blocks of a pair
  for (std::int64_t pair = 0; pair < pair_count(a); ++pair) {
    const std::size_t bytes = packed_bytes_of(pair_at(a, pair));
    if (bytes != kNotPacked) largest = std::max(largest, bytes);
    own.blocks = std::max(own.blocks, g.blocks(pair));
  }
  const std::int64_t whole = whole_pairs(pair_count(a), workers.count(), splits, largest);
  const Waves all = waves(a, static_cast<std::size_t>(kQueryPackBudget),
                          wave_bytes(workers, splits, largest), packed_bytes_of, workspace, whole);
  for (const Wave& wave : all.list) {
    memory.blocks = std::max(memory.blocks, g.first_block(wave.last) - g.first_block(wave.first));
  }
  const std::int64_t owners = whole > 0 ? workers.count() : 0;
  memory.packed = workspace.take(
      std::max(static_cast<std::size_t>(owners) * largest, largest_wave(all)), "packed Q blocks");
  memory.dq_t = workspace.take_array<float>(
      core::Size(splits) * std::max(owners * own.blocks, memory.blocks) * memory.block_floats,
      "dQ of the splits");

  workers.parallel_for(whole, [&](std::int64_t pair, int worker) {
    WaveMemory of_worker = own;
    of_worker.packed = memory.packed + static_cast<std::size_t>(worker) * largest;
    of_worker.dq_t = memory.dq_t + worker * splits * own.blocks * memory.block_floats;
    const bool packed = packed_bytes_of(pair_at(a, pair)) != kNotPacked;
    const std::int64_t first = g.first_block(pair), blocks = g.blocks(pair);
    for (std::int64_t i = 0; packed && i < blocks; ++i) pack_block(a, g, pair, i, 0, of_worker);
    const TileState tile_state(a.ops);
    FlashScratch s = scratch.of(worker);
    for (int split = 0; split < splits; ++split) {
      range_gradient(a, g, gradients, of_worker, pair, packed ? 0 : kNotPacked, 0, splits, split,
                     s);
    }
    for (std::int64_t i = 0; gradients.dq.given() && i < blocks; ++i) {
      store_query_gradient(a, g, first, first + i, splits, gradients.dq, of_worker);
    }
  });
  for (const Wave& wave : all.list) {
    const std::int64_t pairs = wave.last - wave.first;
    const std::int64_t first = g.first_block(wave.first);
    const std::int64_t blocks = g.first_block(wave.last) - first;
    if (wave.bytes > 0) {
      workers.parallel_for(blocks, [&](std::int64_t index, int) {
        const std::int64_t pair = g.pair_of_block(first + index);
        const std::size_t offset = all.offset_of(pair);
        if (offset == kNotPacked) return;
        pack_block(a, g, pair, first + index - g.first_block(pair), offset, memory);
      });
    }
    // Ranges of the first keys come first: under a causal mask they are the costly ones.
    workers.parallel_for(pairs * splits, [&](std::int64_t index, int worker) {
      const std::int64_t pair = wave.first + index % pairs;
      const TileState tile_state(a.ops);
      FlashScratch s = scratch.of(worker);
      range_gradient(a, g, gradients, memory, pair, all.offset_of(pair),
                     g.first_block(pair) - first, splits, index / pairs, s);
    });
    if (!gradients.dq.given()) continue;
    workers.parallel_for(blocks, [&](std::int64_t index, int) {
      store_query_gradient(a, g, first, first + index, splits, gradients.dq, memory);
    });
  }
}

}  // namespace attn::cpu
