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
      case Op::load: {
        std::array<Bounds, kMaxRank> index;
        for (std::size_t d = 0; d < node.args.size(); ++d) index[d] = (*this)(node.args[d]);
        return load_bounds(resolve(*node.buffer, bindings_), node.type, index.data());
      }
      case Op::to_float:
        return to_float((*this)(node.args[0]));
      case Op::select: {
        const Bounds condition = (*this)(node.args[0]);
        if (condition.lo == 1) return (*this)(node.args[1]);
        if (condition.hi == 0) return (*this)(node.args[2]);
        return hull((*this)(node.args[1]), (*this)(node.args[2]));
      }
      case Op::logical_and: {
        const Bounds left = (*this)(node.args[0]);
        return left.hi == 0 ? left : apply_int(node.op, left, (*this)(node.args[1]));
      }
      case Op::logical_or: {
        const Bounds left = (*this)(node.args[0]);
        return left.lo == 1 ? left : apply_int(node.op, left, (*this)(node.args[1]));
      }
      default: {
        const Bounds a = (*this)(node.args[0]);
        const Bounds b = node.args.size() == 2 ? (*this)(node.args[1]) : Bounds{};
        return node.args[0].node().type == Type::float32 ? apply_float(node.op, a, b)
                                                         : apply_int(node.op, a, b);
      }
    }
  }

 private:
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
