// Gradients of the buffers that a score expression reads (bias, slopes, ...): each element of dS,
// times the expression's derivative with respect to a load, is added to the element that was
// loaded. What a tile has for one element is added up first, where the indices show that it is one:
// over the keys where they do not vary with the key, over the rows where they do not vary with the
// row. Sums are kept in f64. A buffer that is indexed by head (or batch) has tasks for each head
// (or batch), which cannot meet; other buffers are summed in one task. So the order of additions
// never depends on the threads.
#include <algorithm>
#include <cstring>

#include "cpu/backward/backward.hpp"
#include "cpu/pairs.hpp"

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
  KeyBlock keys;
  float* index[kMaxRank] = {};  // int32 bits, [kBlockK][rows]
  double* sums = nullptr;       // as TileOps::sum_gradient leaves them

  void carve(Carver& c) {
    float* k = nullptr;
    float* v = nullptr;
    tiles.carve(c);
    c.take(block, 1);
    GradientBlock placed;
    placed.carve(c, dim, dim_v, tiles.tile.operand);
    if (block != nullptr) *block = placed;
    c.take(k, static_cast<std::size_t>(kBlockK * leading_dim(dim)));
    c.take(v, static_cast<std::size_t>(kBlockK * leading_dim(dim_v)));
    keys.k = k;
    keys.v = v;
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
  BufferGradient(const Attention& a, const GradientContext& g, const std::string& name,
                 const Tensor& tensor, Workspace& workspace)
      : a_(a),
        g_(g),
        tensor_(tensor),
        loads_(&workspace),
        sums_(static_cast<std::size_t>(tensor.size()), 0.0, &workspace) {
    const std::vector<LoadProgram>& loads = a.programs.loads(name);
    loads_.reserve(loads.size());
    by_head_ = indexed_by(loads, tensor, expr::Op::head);
    by_batch_ = indexed_by(loads, tensor, expr::Op::batch);
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

  void run(const Workers& workers) {
    Scratch sizes;
    sizes.dim = a_.dim;
    sizes.dim_v = a_.dim_v;
    sizes.tiles = g_.tiles();
    const WorkerScratch<Scratch> scratch(workers.workspace(), workers.count(), sizes);
    const std::int64_t heads = by_head_ ? a_.problem.heads_k : 1;
    const std::int64_t batches = by_batch_ ? a_.problem.batch : 1;
    workers.parallel_for(heads * batches, [&](std::int64_t task, int worker) {
      Scratch s = scratch.of(worker);
      for (std::int64_t pair = 0; pair < pair_count(a_); ++pair) {
        const bool own_head = !by_head_ || pair % a_.problem.heads_k == task % heads;
        const bool own_batch = !by_batch_ || pair / a_.problem.heads_k == task / heads;
        if (own_head && own_batch) add_pair(pair, s);
      }
    });
    store();
  }

 private:
  void add_pair(std::int64_t pair, Scratch& s) {
    const Pair p = pair_at(a_, pair);
    for (std::int64_t i = 0; i < g_.blocks(pair); ++i) {
      g_.load(pair, i, *s.block);
      for_visible_blocks(a_, s.block->q.tile, 0, p.sequence.length_k,
                         [&](int key0, int keys, expr::Coverage coverage) {
                           g_.load_keys(p.sequence, p.head_k, key0, keys, s.keys);
                           const GradientTile tile{s.block, coverage, &s.tiles};
                           g_.tile_value_gradients(&tile, 1, s.keys);
                           for (const Load& load : loads_) add_tile(load, key0, keys, s);
                         });
    }
  }

  void add_tile(const Load& load, int key0, int keys, Scratch& s) {
    GradientTiles& t = s.tiles;
    const QueryBlock& q = s.block->q;
    expr::TileContext context = a_.expression_context(q, key0, keys, t.tile);
    if (load.has_factor) a_.ops.evaluate(load.factor, context, t.raw, t.factor);
    a_.ops.sum_gradient(t.ds, load.has_factor ? t.factor : nullptr, keys, q.count, load.by, s.sums);
    const bool by_row = load.by == expr::Dependence::row || load.by == expr::Dependence::full;
    const bool by_key = load.by == expr::Dependence::key || load.by == expr::Dependence::full;
    if (!by_key) context.keys = 1;  // every key has the indices of the first
    for (int d = 0; d < load.indices; ++d)
      a_.ops.evaluate(load.index[d], context, t.raw, s.index[d]);
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

  void store() const {
    for (std::int64_t i = 0; i < tensor_.size(); ++i) {
      std::int64_t rest = i;
      std::int64_t offset = 0;
      for (int d = tensor_.rank - 1; d >= 0; --d) {
        const auto dim = static_cast<std::size_t>(d);
        offset += rest % tensor_.shape[dim] * tensor_.strides[dim];
        rest /= tensor_.shape[dim];
      }
      static_cast<float*>(tensor_.data)[offset] =
          static_cast<float>(sums_[static_cast<std::size_t>(i)]);
    }
  }

  const Attention& a_;
  const GradientContext& g_;
  const Tensor& tensor_;
  std::pmr::vector<Load> loads_;
  std::pmr::vector<double> sums_;
  bool by_head_ = false, by_batch_ = false;
};

}  // namespace

void backward_buffers(const Attention& a, const GradientContext& g, const Gradients& gradients,
                      const Workers& workers) {
  for (const auto& [name, tensor] : gradients.buffers) {
    const Workspace::Scope of_buffer(workers.workspace());
    BufferGradient(a, g, name, tensor, workers.workspace()).run(workers);
  }
}

}  // namespace attn::cpu
