// Whether a mask is true nowhere, everywhere or perhaps somewhere in a tile: the bounds of its
// subexpressions, from the leaves up.
#include <array>
#include <cstddef>

#include "attn/error.hpp"
#include "core/expr/bindings.hpp"
#include "core/expr/bounds.hpp"
#include "core/text/echo.hpp"

namespace attn::expr {
namespace {

class Classification {
 public:
  Classification(const Tile& tile, const Bindings& bindings) : tile_(tile), bindings_(bindings) {}

  Bounds operator()(const Expr& e) const {
    const Node& node = e.node();
    switch (node.op) {
      case Op::constant:
        if (node.float_value != node.float_value) return any_float();
        return {node.int_value, node.int_value, node.float_value, node.float_value, false};
      case Op::score:
        return any_float();
      case Op::query:
        return int_bounds(tile_.query_min, tile_.query_max);
      case Op::key:
        return int_bounds(tile_.key_min, tile_.key_max);
      case Op::batch:
        return int_bounds(tile_.batch, tile_.batch);
      case Op::head:
        return int_bounds(tile_.head_min, tile_.head_max);
      case Op::seqlen_q:
        return int_bounds(tile_.seqlen_q, tile_.seqlen_q);
      case Op::seqlen_k:
        return int_bounds(tile_.seqlen_k, tile_.seqlen_k);
      case Op::load:
        return load(node);
      default:
        return operation(node);
    }
  }

 private:
  // These call each other at each level of a tree, so they are apart: none takes the stack of both.
  [[gnu::noinline]] Bounds load(const Node& node) const {
    std::array<IndexRange, kMaxRank> index;
    for (std::size_t d = 0; d < node.args.size(); ++d) {
      const Bounds bounds = (*this)(node.args[d]);
      index[d] = {bounds.lo, bounds.hi};
    }
    return load_bounds(resolve(*node.buffer, bindings_), node.type, index.data());
  }
  [[gnu::noinline]] Bounds operation(const Node& node) const {
    Bounds a = (*this)(node.args[0]);
    if (node.op == Op::logical_and && a.hi == 0) return a;
    if (node.op == Op::logical_or && a.lo == 1) return a;
    if (node.op == Op::select) {
      if (a.lo == 1) return (*this)(node.args[1]);
      if (a.hi == 0) return (*this)(node.args[2]);
      a = (*this)(node.args[1]);
    }
    return combined(node, a, node.args.size() > 1 ? (*this)(node.args.back()) : Bounds{});
  }
  [[gnu::noinline]] static Bounds combined(const Node& node, const Bounds& a, const Bounds& b) {
    if (node.op == Op::select) return hull(a, b);
    if (node.op == Op::to_float) return to_float(a);
    return node.args[0].node().type == Type::float32 ? apply_float(node.op, a, b)
                                                     : apply_int(node.op, a, b);
  }

  const Tile& tile_;
  const Bindings& bindings_;
};

}  // namespace

Bounds bounds_of(const Expr& e, const Tile& tile, const Bindings& bindings) {
  return Classification(tile, bindings)(e);
}

Coverage classify(const Expr& mask, const Tile& tile, const Bindings& bindings) {
  if (mask.type() != Type::boolean) {
    throw Error(ErrorCode::invalid_argument, "classify: the mask '" + core::echo(to_string(mask)) +
                                                 "' is not boolean; a boolean is accepted");
  }
  const Bounds bounds = bounds_of(mask, tile, bindings);
  if (bounds.lo == 1) return Coverage::full;
  return bounds.hi == 0 ? Coverage::empty : Coverage::mixed;
}

}  // namespace attn::expr
