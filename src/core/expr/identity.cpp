#include "core/expr/identity.hpp"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/expr/build.hpp"

namespace attn::expr {
namespace {

std::uint64_t mixed(std::uint64_t hash, std::uint64_t value) noexcept {
  hash = (hash ^ value) * 0x9e3779b97f4a7c15;  // 2^64 / golden ratio
  return hash ^ hash >> 32;
}

bool alike(const Buffer& a, const Buffer& b) noexcept {
  const Tensor& x = a.tensor();
  const Tensor& y = b.tensor();
  const auto rank = x.rank;
  // A size declared as 0 is open where there is no data (Inputs::buffers).
  const bool open = x.size() == 0 && (x.data == nullptr) != (y.data == nullptr);
  return !open && x.dtype == y.dtype && rank == y.rank && x.device == y.device &&
         std::equal(x.shape.begin(), x.shape.begin() + rank, y.shape.begin()) &&
         std::equal(x.strides.begin(), x.strides.begin() + rank, y.strides.begin()) &&
         a.name() == b.name();
}

}  // namespace

bool plans_alike(const Expr& a, const Expr& b) noexcept {
  if (a.get() == b.get()) return true;
  if (a.empty() || b.empty()) return false;
  const Node& m = a.node();
  const Node& n = b.node();
  if (m.op != n.op || m.type != n.type || m.int_value != n.int_value ||
      std::bit_cast<std::uint32_t>(m.float_value) != std::bit_cast<std::uint32_t>(n.float_value) ||
      m.args.size() != n.args.size()) {
    return false;
  }
  if (m.buffer != nullptr && !alike(*m.buffer, *n.buffer)) return false;
  return std::equal(m.args.begin(), m.args.end(), n.args.begin(), plans_alike);
}

std::uint64_t plan_hash(const Expr& e) noexcept {
  if (e.empty()) return 0;
  const Node& node = e.node();
  std::uint64_t hash = static_cast<std::uint64_t>(node.op) << 8 |
                       static_cast<std::uint64_t>(node.type) |
                       std::uint64_t{static_cast<std::uint32_t>(node.int_value)} << 32;
  hash = mixed(hash, std::bit_cast<std::uint32_t>(node.float_value));
  for (const Expr& arg : node.args) hash = mixed(hash, plan_hash(arg));
  if (node.buffer == nullptr) return hash;
  const Tensor& tensor = node.buffer->tensor();
  hash = mixed(hash, std::hash<std::string>()(node.buffer->name()));
  hash = mixed(hash, static_cast<std::uint64_t>(tensor.dtype));
  for (std::int32_t d = 0; d < tensor.rank; ++d) {
    hash = mixed(hash, static_cast<std::uint64_t>(tensor.shape[static_cast<std::size_t>(d)]));
  }
  return hash;
}

Expr without_data(const Expr& e) {
  if (e.empty()) return e;
  return rewrite(e, [](const Expr& part, const std::vector<Expr>& args) {
    const bool same_args = std::ranges::equal(args, part.node().args, {}, &Expr::get, &Expr::get);
    if (same_args && part.node().buffer == nullptr) return part;
    Node copy = part.node();
    copy.args = args;
    if (copy.buffer != nullptr) {
      Tensor tensor = copy.buffer->tensor();
      if (tensor.size() != 0) tensor.data = nullptr;  // nothing is read of one without elements
      copy.buffer = std::make_shared<const Buffer>(copy.buffer->name(), tensor);
    }
    return Expr(std::make_shared<const Node>(std::move(copy)));
  });
}

}  // namespace attn::expr
