// Gradients of the buffers that a score expression reads (bias, slopes, ...): each element of dS,
// times the expression's derivative with respect to a load, is added to the element that was
// loaded. What a tile has for one element is added up first, where the indices show that it is one:
// over the keys where they do not vary with the key, over the rows where they do not vary with the
// row. Sums are kept in f64. A buffer that is indexed by head (or batch) has tasks for each head
// (or batch), which cannot meet; other buffers are summed in one task. So the order of additions
// never depends on the threads. Buffers with the same tasks share one pass over the tiles.
#include <algorithm>
#include <cstring>

#include "core/tensor/element.hpp"
#include "cpu/backward/backward.hpp"
#include "cpu/budgets.hpp"
#include "cpu/pairs.hpp"
#include "cpu/tasks.hpp"

namespace attn::cpu {
namespace {

// A load of the buffer, bound to the tensors of the call.
struct Load {
  bool has_factor = false;    // the derivative is not 1
  expr::BoundProgram factor;  // derivative with respect to the load
  int indices = 0;
  expr::BoundProgram index[kMaxRank];
  // What the loaded element varies with in a tile: what some index does, over a dimension of more
  // than one element.
  expr::Dependence by = expr::Dependence::uniform;
};

struct Scratch {
  int dim = 0, dim_v = 0;
  GradientTiles tiles;
  GradientBlock* block = nullptr;
  std::byte *k = nullptr, *v = nullptr;  // [kChunkKeys][leading dimension]
  float* index[kMaxRank] = {};           // int32 bits, [kBlockK][rows]
  double* sums = nullptr;                // as TileOps::sum_gradient leaves them

  void carve(Carver& c) {
    const DType operand = tiles.tile.operand;
    tiles.carve(c);
    GradientBlock::carve_one(c, block, dim, dim_v, operand);
    c.take(k, static_cast<std::size_t>(kChunkKeys * leading_dim(dim)) * size_of(operand));
    c.take(v, static_cast<std::size_t>(kChunkKeys * leading_dim(dim_v)) * size_of(operand));
    for (float*& values : index) c.take(values, static_cast<std::size_t>(kBlockK * kMaxRows));
    c.take(sums, static_cast<std::size_t>(kBlockK * kMaxRows));
  }
};

// Whether every load uses `symbol` itself as an index over a dimension where all its values differ.
bool indexed_by(const std::vector<LoadProgram>& loads, const Tensor& tensor, expr::Op symbol) {
  return std::all_of(loads.begin(), loads.end(), [&](const LoadProgram& load) {
    const std::vector<expr::Expr>& args = load.load.node().args;
    for (std::size_t d = 0; d < args.size(); ++d) {
      if (args[d].node().op == symbol && tensor.shape[d] > 1) return true;
    }
    return false;
  });
}

class BufferGradient {
 public:
  BufferGradient(const Attention& a, const std::vector<LoadProgram>& loads, const Tensor& tensor,
                 Workspace& workspace)
      : a_(a),
        tensor_(tensor),
        loads_(&workspace),
        sums_(static_cast<std::size_t>(tensor.size()), 0.0, &workspace) {
    loads_.reserve(loads.size());
    for (const LoadProgram& load : loads) {
      Load& l = loads_.emplace_back();
      l.has_factor = load.has_factor;
      if (l.has_factor) l.factor = a.bind(load.factor, workspace);
      for (const expr::Program& index : load.index) {
        if (tensor.shape[static_cast<std::size_t>(l.indices)] != 1) {
          l.by = expr::join(l.by, index.instructions.back().dependence);
        }
        l.index[l.indices++] = a.bind(index, workspace);
      }
    }
  }

  // Adds keys [first, first + keys) of the tile that tile_value_gradients left in s, which are key0
  // and those after it.
  void add_tile(int first, int keys, int key0, Scratch& s) {
    for (const Load& load : loads_) add_load(load, first, keys, key0, s);
  }

  void store() const {
    for (std::int64_t i = 0; i < tensor_.size(); ++i) {
      std::int64_t rest = i;
      std::int64_t offset = 0;
      for (int d = tensor_.rank - 1; d >= 0; --d) {
        const auto dim = static_cast<std::size_t>(d);
        offset += rest % tensor_.shape[dim] * tensor_.strides[dim];
        rest /= tensor_.shape[dim];
      }
      core::store_element(static_cast<std::byte*>(tensor_.data) +
                              offset * static_cast<std::int64_t>(size_of(tensor_.dtype)),
                          tensor_.dtype, sums_[static_cast<std::size_t>(i)]);
    }
  }

 private:
  void add_load(const Load& load, int first, int keys, int key0, Scratch& s) {
    GradientTiles& t = s.tiles;
    const QueryBlock& q = s.block->q;
    const std::ptrdiff_t at = std::ptrdiff_t{first} * a_.ops.rows;
    const float* const raw = t.raw + at;
    expr::TileContext context = a_.expression_context(q, key0, keys, t.tile);
    if (load.has_factor) a_.ops.evaluate(load.factor, context, raw, t.factor);
    a_.ops.sum_gradient(t.ds + at, load.has_factor ? t.factor : nullptr, keys, q.count, load.by,
                        s.sums);
    const bool by_row = load.by == expr::Dependence::row || load.by == expr::Dependence::full;
    const bool by_key = load.by == expr::Dependence::key || load.by == expr::Dependence::full;
    if (!by_key) context.keys = 1;  // every key has the indices of the first
    for (int d = 0; d < load.indices; ++d) a_.ops.evaluate(load.index[d], context, raw, s.index[d]);
    const double* sum = s.sums;
    for (int j = 0; j < context.keys; ++j, sum += by_row ? a_.ops.rows : 1) {
      for (int r = 0; r < (by_row ? q.count : 1); ++r) {
        if (sum[r] == 0) continue;
        const std::int64_t element = element_of(load, s, std::ptrdiff_t{j} * a_.ops.rows + r);
        if (element >= 0) sums_[static_cast<std::size_t>(element)] += sum[r];
      }
    }
  }

  // Row-major position of the loaded element, or -1 outside the buffer.
  std::int64_t element_of(const Load& load, const Scratch& s, std::ptrdiff_t at) const {
    std::int64_t position = 0;
    for (int d = 0; d < load.indices; ++d) {
      std::int32_t index;
      std::memcpy(&index, s.index[d] + at, sizeof(index));
      if (tensor_.shape[d] == 1) index = 0;
      if (index < 0 || index >= tensor_.shape[d]) return -1;
      position = position * tensor_.shape[d] + index;
    }
    return position;
  }

  const Attention& a_;
  const Tensor& tensor_;
  std::pmr::vector<Load> loads_;
  std::pmr::vector<double> sums_;
};
static_assert(sizeof(BufferGradient) <= kBufferGradientBytes);

// The buffers that have tasks for each head, or batch, or both, or neither.
class Pass {
 public:
  Pass(const Attention& a, const GradientContext& g, bool by_head, bool by_batch,
       const Gradients& gradients, Workspace& workspace)
      : a_(a), g_(g), by_head_(by_head), by_batch_(by_batch), buffers_(&workspace) {
    buffers_.reserve(gradients.buffers.size());
    for (const auto& [name, tensor] : gradients.buffers) {
      const std::vector<LoadProgram>& loads = a.programs.loads(name);
      if (indexed_by(loads, tensor, expr::Op::head) == by_head &&
          indexed_by(loads, tensor, expr::Op::batch) == by_batch) {
        buffers_.emplace_back(a, loads, tensor, workspace);
      }
    }
  }

  void run(const Workers& workers) {
    if (buffers_.empty()) return;
    Scratch sizes;
    sizes.dim = a_.dim;
    sizes.dim_v = a_.dim_v;
    sizes.tiles = g_.tiles();
    const WorkerScratch<Scratch> scratch(workers.workspace(), workers.count(), sizes);
    const std::int64_t heads = by_head_ ? a_.problem.heads_k : 1;
    const std::int64_t batches = by_batch_ ? a_.problem.batch : 1;
    workers.parallel_for(heads * batches, [&](std::int64_t task, int worker) {
      const TileState tile_state(a_.ops);
      Scratch s = scratch.of(worker);
      for (std::int64_t pair = 0; pair < pair_count(a_); ++pair) {
        const bool own_head = !by_head_ || pair % a_.problem.heads_k == task % heads;
        const bool own_batch = !by_batch_ || pair / a_.problem.heads_k == task / heads;
        if (!own_head || !own_batch) continue;
        if (a_.problem.key_list > 0) {
          add_listed(pair, s);
          continue;
        }
        const std::int64_t keys = pair_at(a_, pair).sequence.length_k;
        for (std::int64_t key = 0; key < keys; key += kChunkKeys) {
          add_chunk(pair, {key, std::min<std::int64_t>(key + kChunkKeys, keys)}, s);
        }
      }
    });
    for (const BufferGradient& buffer : buffers_) buffer.store();
  }

 private:
  // Every Q block of the pair against the keys of its list.
  void add_listed(std::int64_t pair, Scratch& s) {
    const auto [sequence, head_k] = pair_at(a_, pair);
    for (std::int64_t i = 0; i < g_.blocks(pair); ++i) {
      g_.load(pair, i, *s.block);
      const core::KeyList list =
          core::key_list(a_.problem, a_.inputs, sequence, i / g_.blocks_of_query(), head_k);
      for (std::int64_t entry = 0; entry < list.count; entry += kBlockK) {
        const ListedKeys listed(list, entry);
        if (!listed.any) continue;
        KeyBlock block{.k = s.k, .v = s.v};
        g_.load_keys(sequence, head_k, listed, block);
        const GradientTile tile{s.block, expr::Coverage::mixed, &s.tiles};
        g_.tile_value_gradients(&tile, 1, block);
        for_each_run(block, [&](int first, int count, int key) {
          for (BufferGradient& buffer : buffers_) buffer.add_tile(first, count, key, s);
        });
      }
    }
  }

  // Every Q block of the pair against a chunk of keys, whose blocks are packed once for all.
  void add_chunk(std::int64_t pair, KeyRange chunk, Scratch& s) {
    const core::Sequence& sequence = pair_at(a_, pair).sequence;
    const int head_k = pair_at(a_, pair).head_k;
    const std::size_t size = size_of(a_.ops.operand);
    KeyBlock blocks[kChunkKeys / kBlockK];  // without keys where not packed yet
    for (std::int64_t i = 0; i < g_.blocks(pair); ++i) {
      const std::int64_t row0 = i * a_.ops.rows;
      const expr::Tile rows = a_.tile(
          sequence, head_k, row0, std::min<std::int64_t>(a_.ops.rows, a_.rows(sequence) - row0));
      bool loaded = false;
      const auto visit = [&](int key0, int keys, expr::Coverage coverage) {
        if (!loaded) g_.load(pair, i, *s.block);
        loaded = true;
        const auto j = static_cast<std::size_t>(key0 - chunk.begin);
        KeyBlock& block = blocks[j / kBlockK];
        if (block.keys == 0) {
          block.k = s.k + j * static_cast<std::size_t>(leading_dim(a_.dim)) * size;
          block.v = s.v + j * static_cast<std::size_t>(leading_dim(a_.dim_v)) * size;
          g_.load_keys(sequence, head_k, key0, keys, block);
        }
        const GradientTile tile{s.block, coverage, &s.tiles};
        g_.tile_value_gradients(&tile, 1, block);
        for (BufferGradient& buffer : buffers_) buffer.add_tile(0, keys, key0, s);
      };
      for_visible_blocks(a_, rows, chunk.begin, chunk.end, visit);
    }
  }

  const Attention& a_;
  const GradientContext& g_;
  bool by_head_, by_batch_;
  std::pmr::vector<BufferGradient> buffers_;
};

}  // namespace

void backward_buffers(const Attention& a, const GradientContext& g, const Gradients& gradients,
                      const Workers& workers) {
  for (const bool by_head : {false, true}) {
    for (const bool by_batch : {false, true}) {
      const Workspace::Scope of_pass(workers.workspace());
      Pass(a, g, by_head, by_batch, gradients, workers.workspace()).run(workers);
    }
  }
}

}  // namespace attn::cpu
