#include "cuda/codegen/mask_buffers.hpp"

#include <algorithm>

#include "core/expr/bounds.hpp"
#include "core/expr/build.hpp"

namespace attn::cuda {
namespace {

using expr::Expr;
using expr::Op;

// Whether a boolean that reads nothing has the value at every point of the tile.
bool always(const Expr& e, bool value, const expr::Tile& tile) {
  if (e.node().reads || depends_on(e, Op::batch)) return false;
  const expr::Bounds bounds = expr::bounds_of(e, tile);
  return value ? bounds.lo == 1 : bounds.hi == 0;
}

}  // namespace

bool buffers_matter(const Expr& mask, const expr::Tile& tile) {
  if (mask.empty() || !mask.node().reads) return false;
  const expr::Node& node = mask.node();
  const auto matter = [&](const Expr& arg) { return buffers_matter(arg, tile); };
  switch (node.op) {
    case Op::load:
      return !expr::is_scalar(*node.buffer);
    case Op::logical_and:
    case Op::logical_or: {
      const bool deciding = node.op == Op::logical_or;
      const auto decides = [&](const Expr& arg) { return always(arg, deciding, tile); };
      return std::ranges::none_of(node.args, decides) && std::ranges::any_of(node.args, matter);
    }
    case Op::select:
      if (always(node.args[0], true, tile)) return matter(node.args[1]);
      if (always(node.args[0], false, tile)) return matter(node.args[2]);
      return std::ranges::any_of(node.args, matter);
    default:
      return std::ranges::any_of(node.args, matter);
  }
}

}  // namespace attn::cuda
