// Gradients of the buffers that a score expression reads, in double: every element of dS, times the
// expression's derivative by a load, is added to the element that was loaded, on one thread and in
// the order of rows and keys.
#include <algorithm>

#include "core/tensor/element.hpp"
#include "cpu/f64/gradients.hpp"

namespace attn::cpu::f64 {
namespace {

struct Scratch {
  int dim = 0, dim_v = 0;
  Tile tile;
  GradientRows* rows = nullptr;
  Keys keys;

  void carve(Carver& c) {
    tile.carve(c);
    c.take(rows, 1);
    GradientRows counted;
    (rows == nullptr ? counted : *rows).carve(c, dim, dim_v);
    c.take(keys.k_t, static_cast<std::size_t>(dim) * kTileLd);
    c.take(keys.v_t, static_cast<std::size_t>(dim_v) * kTileLd);
  }
};
Scratch sizes(const Problem& p, const Expressions& expressions) {
  Scratch s;
  s.dim = static_cast<int>(p.head_dim);
  s.dim_v = static_cast<int>(p.head_dim_v);
  s.tile = Tiles::scratch(expressions);
  return s;
}

// A load of a buffer, bound to the tensors of the call.
struct Load {
  bool has_factor = false;    // the derivative is not 1
  expr::BoundProgram factor;  // derivative with respect to the load
  expr::BoundProgram index[kMaxRank];
};

class BufferGradient {
 public:
  BufferGradient(const Attention& a, const std::vector<LoadProgram>& loads, const Tensor& tensor,
                 Workspace& workspace)
      : tensor_(tensor),
        loads_(&workspace),
        sums_(static_cast<std::size_t>(tensor.size()), 0.0, &workspace) {
    loads_.reserve(loads.size());
    for (const LoadProgram& load : loads) {
      Load& l = loads_.emplace_back();
      l.has_factor = load.has_factor;
      if (l.has_factor) l.factor = a.bind(load.factor, workspace);
      for (std::size_t d = 0; d < load.index.size(); ++d)
        l.index[d] = a.bind(load.index[d], workspace);
    }
  }

  // ds: of the row's keys. A row is evaluated for one number a time, as all share the memory.
  void add_row(const RowPoint& at, const RowValues& memory, const double* ds) {
    for (const Load& load : loads_) {
      std::int64_t element[kBlockK] = {};  // -1: outside the buffer
      for (std::int32_t d = 0; d < tensor_.rank; ++d) {
        const std::int64_t size = tensor_.shape[static_cast<std::size_t>(d)];
        const RowResult result = evaluate_row(load.index[d], at, memory);
        for (int j = 0; j < at.keys; ++j) {
          const std::int64_t index = size == 1 ? 0 : result.index(j);
          const bool inside = element[j] >= 0 && index >= 0 && index < size;
          element[j] = inside ? element[j] * size + index : -1;
        }
      }
      double factor[kBlockK];
      std::fill_n(factor, at.keys, 1.0);
      if (load.has_factor) {
        const RowResult result = evaluate_row(load.factor, at, memory);
        for (int j = 0; j < at.keys; ++j) factor[j] = result.number(j);
      }
      for (int j = 0; j < at.keys; ++j) {
        if (element[j] < 0 || ds[j] == 0) continue;
        sums_[static_cast<std::size_t>(element[j])] += ds[j] * factor[j];
      }
    }
  }

  void store() const {
    for (std::int64_t i = 0; i < tensor_.size(); ++i) {
      std::int64_t rest = i, offset = 0;
      for (auto d = static_cast<std::size_t>(tensor_.rank); d-- > 0;) {
        offset += rest % tensor_.shape[d] * tensor_.strides[d];
        rest /= tensor_.shape[d];
      }
      core::store_element(static_cast<std::byte*>(tensor_.data) +
                              offset * static_cast<std::int64_t>(size_of(tensor_.dtype)),
                          tensor_.dtype, sums_[static_cast<std::size_t>(i)]);
    }
  }

 private:
  const Tensor& tensor_;
  std::pmr::vector<Load> loads_;
  std::pmr::vector<double> sums_;
};

}  // namespace

void backward_buffers(const Attention& a, const GradientTiles& g, const Gradients& gradients,
                      const Workers& workers) {
  Workspace& workspace = workers.workspace();
  const WorkerScratch<Scratch> scratch(workspace, 1, sizes(a.problem, a.programs));
  Scratch s = scratch.of(0);
  std::pmr::vector<BufferGradient> sums(&workspace);
  sums.reserve(gradients.buffers.size());
  for (const auto& [name, tensor] : gradients.buffers) {
    sums.emplace_back(a, a.programs.loads(name), tensor, workspace);
  }
  const auto add_tile = [&](expr::Coverage coverage) {
    g.value_gradients(*s.rows, s.keys, coverage, s.tile);
    for (int r = 0; r < s.rows->rows.count; ++r) {
      const std::ptrdiff_t row = std::ptrdiff_t{r} * kTileLd;
      const RowPoint at = g.tiles().point(s.rows->rows, s.keys, r, s.tile.raw + row);
      for (BufferGradient& sum : sums) sum.add_row(at, s.tile.values, s.tile.ds + row);
    }
  };
  for (std::int64_t pair = 0; pair < pair_count(a); ++pair) {
    const core::Sequence& sequence = pair_at(a, pair).sequence;
    const int head_k = pair_at(a, pair).head_k;
    for (std::int64_t row = 0; row < g.rows(pair); row += kRows) {
      g.load(pair, row, *s.rows);
      for_visible_blocks(a, s.rows->rows.tile, 0, sequence.length_k,
                         [&](int key0, int keys, expr::Coverage coverage) {
                           g.tiles().load_keys(sequence, head_k, key0, keys, false, s.keys);
                           add_tile(coverage);
                         });
    }
  }
  for (const BufferGradient& sum : sums) sum.store();
}

core::Size buffer_gradient_bytes(const Problem& problem, const Expressions& expressions) {
  return WorkerScratch<Scratch>::bytes(sizes(problem, expressions)) +
         core::Size(expressions.gradient_elements()) * 8 +
         core::Size(expressions.gradient_buffers()) *
             (core::Size(sizeof(BufferGradient)) + 2 * kAlignment) +
         core::Size(expressions.view_bytes()) + core::Size(kAlignment);
}

}  // namespace attn::cpu::f64
