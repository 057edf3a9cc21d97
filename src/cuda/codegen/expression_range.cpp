#include "cuda/codegen/expression_range.hpp"

#include "core/expr/bounds.hpp"

namespace attn::cuda {
namespace {

using expr::Bounds;
using expr::Instruction;
using expr::Op;
using expr::Type;

constexpr std::int64_t kLongestTile = 1024;
constexpr std::int64_t kSmallInteger = std::int64_t{1} << 22;

Bounds range_of(const Instruction& in, const std::vector<Bounds>& known) {
  const auto operand = [&](int a) { return known[static_cast<std::size_t>(in.args[a])]; };
  switch (in.op) {
    case Op::constant:
      return expr::int_bounds(in.int_value, in.int_value);
    case Op::query:
    case Op::key:
      return expr::int_bounds(0, kShortSequence + kLongestTile);
    case Op::seqlen_q:
    case Op::seqlen_k:
      return expr::int_bounds(0, kShortSequence);
    case Op::batch:
    case Op::head:
    case Op::load:
      return expr::any_int();
    case Op::select:
      return hull(operand(1), operand(2));
    default:
      return apply_int(in.op, operand(0), in.num_args == 2 ? operand(1) : Bounds{});
  }
}

}  // namespace

std::vector<bool> small_in_short_sequences(const expr::Program& program) {
  std::vector<Bounds> known;
  std::vector<bool> small;
  for (const Instruction& in : program.instructions) {
    const bool is_int = in.type == Type::int32;
    const Bounds range = is_int ? range_of(in, known) : expr::any_boolean();
    known.push_back(range);
    small.push_back(is_int && range.lo >= -kSmallInteger && range.hi < kSmallInteger);
  }
  return small;
}

}  // namespace attn::cuda
