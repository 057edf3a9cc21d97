// Questions about whole trees, and substitution.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <string>
#include <unordered_set>
#include <utility>

#include "attn/error.hpp"
#include "core/expr/bindings.hpp"
#include "core/expr/build.hpp"
#include "core/text/echo.hpp"

namespace attn::expr {
namespace {

bool same_float(float a, float b) {
  if (a != a || b != b) return a != a && b != b;
  return a == b && __builtin_signbit(a) == __builtin_signbit(b);
}

// A tensor of a Buffer in a message: a scalar by its value.
std::string text_of(const Tensor& t) {
  if (t.rank != 0) return to_string(t);
  if (t.data == nullptr) return fmt::format("a scalar of {} without a value", name(t.dtype));
  return t.dtype == DType::f32 ? fmt::format("the scalar {} of f32", read_float(t, 0))
                               : fmt::format("the scalar {} of {}", read_int(t, 0), name(t.dtype));
}

// Calls visit(buffer) for the buffer of each load, operands first. Of a function that is not known
// here, so that its stack is not taken at each level.
using VisitBuffer = std::function<void(const std::shared_ptr<const Buffer>&)>;
void for_each_load(const Node& node, const VisitBuffer& visit) {
  for (const Expr& arg : node.args) for_each_load(arg.node(), visit);
  if (node.op == Op::load) visit(node.buffer);
}

// Whether a buffer of this one's name was found. A name must stand for one tensor.
template <class Found>
bool is_found(const Found& found, const Buffer& buffer) {
  const auto named = std::find_if(found.begin(), found.end(), [&](const auto& other) {
    return other->name() == buffer.name();
  });
  if (named == found.end()) return false;
  const Tensor& a = (*named)->tensor();
  const Tensor& b = buffer.tensor();
  if (!same_tensor(a, b)) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("buffer name '{}' stands for two tensors in one expression, {} and {}; "
                            "accepted is a name of its own for each",
                            buffer.name(), text_of(a), text_of(b)));
  }
  return true;
}

}  // namespace

bool same_tensor(const Tensor& a, const Tensor& b) noexcept {
  const bool same_number = a.rank == 0 && a.data != nullptr && b.data != nullptr &&
                           a.dtype == b.dtype && std::memcmp(a.data, b.data, size_of(a.dtype)) == 0;
  return (a.data == b.data || same_number) && a.dtype == b.dtype && a.rank == b.rank &&
         std::equal(a.shape.begin(), a.shape.begin() + a.rank, b.shape.begin()) &&
         std::equal(a.strides.begin(), a.strides.begin() + a.rank, b.strides.begin());
}

bool same(const Expr& a, const Expr& b) {
  if (a.get() == b.get()) return true;
  if (a.empty() || b.empty()) return false;
  const Node& m = a.node();
  const Node& n = b.node();
  if (m.op != n.op || m.type != n.type || m.size != n.size || m.int_value != n.int_value ||
      !same_float(m.float_value, n.float_value) || m.args.size() != n.args.size()) {
    return false;
  }
  if (m.op == Op::load && m.buffer->name() != n.buffer->name()) return false;
  return std::equal(m.args.begin(), m.args.end(), n.args.begin(), same);
}

bool depends_on(const Expr& e, Op symbol) {
  if (e.empty()) return false;
  const Node& node = e.node();
  return node.op == symbol || std::any_of(node.args.begin(), node.args.end(),
                                          [&](const Expr& arg) { return depends_on(arg, symbol); });
}

std::vector<const Expr*> operands_first(const Expr& e) {
  struct Visit {
    const Expr* part;
    std::size_t next;  // of its operands
  };
  std::vector<const Expr*> order;
  std::vector<Visit> open{{&e, 0}};
  std::unordered_set<const Node*> seen{e.get()};
  while (!open.empty()) {
    Visit& visit = open.back();
    const std::vector<Expr>& args = visit.part->node().args;
    if (visit.next == args.size()) {
      order.push_back(visit.part);
      open.pop_back();
    } else if (const Expr& arg = args[visit.next++]; seen.insert(arg.get()).second) {
      open.push_back({&arg, 0});
    }
  }
  return order;
}

std::vector<std::shared_ptr<const Buffer>> buffers(const Expr& e) {
  std::vector<std::shared_ptr<const Buffer>> found;
  if (e.empty()) return found;
  for_each_load(e.node(), [&](const std::shared_ptr<const Buffer>& buffer) {
    if (!is_found(found, *buffer)) found.push_back(buffer);
  });
  return found;
}

void collect_buffers(const Expr& e, std::pmr::vector<const Buffer*>& found) {
  for_each_load(e.node(), [&](const std::shared_ptr<const Buffer>& buffer) {
    if (!is_found(found, *buffer)) found.push_back(buffer.get());
  });
}

Expr substitute(const Expr& e, Op symbol, const Expr& replacement) {
  if (e.empty()) return e;
  const Type expected = symbol == Op::score ? Type::float32 : Type::int32;
  if (!is_symbol(symbol) || replacement.type() != expected) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("substitute: '{}' ({}) for '{}'; a symbol is replaced by an expression "
                            "of its type",
                            core::echo(to_string(replacement)), name(replacement.type()),
                            spelling(symbol)));
  }
  return rewrite(e, [&](const Expr& part, const std::vector<Expr>& args) {
    return part.node().op == symbol ? replacement : rebuild(part, args);
  });
}

}  // namespace attn::expr
