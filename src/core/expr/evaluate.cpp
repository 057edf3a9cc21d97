// The value of an expression at one point, by walking its tree: what every other reader of the tree
// is compared with.
#include <cstddef>

#include "core/expr/bindings.hpp"
#include "core/expr/scalar.hpp"

namespace attn::expr {
namespace {

template <class Real>
class Evaluation {
 public:
  Evaluation(const Point& at, const Bindings& bindings) : at_(at), bindings_(bindings) {}

  Value<Real> operator()(const Expr& e) const {
    const Node& node = e.node();
    switch (node.op) {
      case Op::constant:
        return {node.int_value, static_cast<Real>(node.float_value)};
      case Op::score:
        return {0, static_cast<Real>(at_.score)};
      case Op::query:
        return {at_.query, 0};
      case Op::key:
        return {at_.key, 0};
      case Op::batch:
        return {at_.batch, 0};
      case Op::head:
        return {at_.head, 0};
      case Op::seqlen_q:
        return {at_.seqlen_q, 0};
      case Op::seqlen_k:
        return {at_.seqlen_k, 0};
      case Op::load:
        return load(node);
      case Op::select: {
        const bool condition = (*this)(node.args[0]).i != 0;
        return apply_scalar<Real>(node.op, node.type, (*this)(node.args[1]), (*this)(node.args[2]),
                                  condition);
      }
      case Op::floor:
      case Op::to_int: {
        const Value<float> a = Evaluation<float>(at_, bindings_)(node.args[0]);
        const Value<float> result =
            apply_scalar<float>(node.op, node.args[0].node().type, a, {}, false);
        return {result.i, static_cast<Real>(result.f)};
      }
      default: {
        const Value<Real> a = (*this)(node.args[0]);
        const Value<Real> b = node.args.size() == 2 ? (*this)(node.args[1]) : Value<Real>{};
        return apply_scalar<Real>(node.op, node.args[0].node().type, a, b, false);
      }
    }
  }

 private:
  Value<Real> load(const Node& node) const {
    const Tensor& tensor = resolve(*node.buffer, bindings_);
    std::int64_t offset = 0;
    bool inside = true;
    for (std::size_t d = 0; d < node.args.size(); ++d) {
      std::int64_t index = (*this)(node.args[d]).i;
      if (tensor.shape[d] == 1) index = 0;
      inside = inside && index >= 0 && index < tensor.shape[d];
      offset += inside ? index * tensor.strides[d] : 0;
    }
    if (!inside) return {};
    if (node.type == Type::int32) return {read_int(tensor, offset), 0};
    return {0, static_cast<Real>(read_float(tensor, offset))};
  }

  const Point& at_;
  const Bindings& bindings_;
};

}  // namespace

template <class Real>
Real evaluate(const Expr& e, const Point& at, const Bindings& bindings) {
  const Type type = e.type();
  const Value<Real> value = Evaluation<Real>(at, bindings)(e);
  return type == Type::float32 ? value.f : static_cast<Real>(value.i);
}

template float evaluate<float>(const Expr&, const Point&, const Bindings&);
template double evaluate<double>(const Expr&, const Point&, const Bindings&);

}  // namespace attn::expr
