#include "cpu/f64/row_expression.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include "core/tensor/element.hpp"

namespace attn::cpu::f64 {
namespace {

using expr::Instruction;
using expr::Op;
using expr::Value;

bool varies(const Instruction& in) {
  return in.dependence == expr::Dependence::key || in.dependence == expr::Dependence::full;
}

template <class Real>
struct Operand {
  const Value<Real>* values = nullptr;
  int step = 0;
  const Value<Real>& operator[](int j) const { return values[j * step]; }
};

template <class Real>
using Operands = std::array<Operand<Real>, kMaxRank>;

// One loop for each operation: inside, the compiler knows which it is.
template <class Real, Op kOp>
void apply(const Instruction& in, const Operands<Real>& args, int n, Value<Real>* out) {
  for (int j = 0; j < n; ++j) {
    out[j] =
        kOp == Op::select
            ? expr::apply_scalar<Real>(kOp, in.operands, args[1][j], args[2][j], args[0][j].i != 0)
            : expr::apply_scalar<Real>(kOp, in.operands, args[0][j], args[1][j], false);
  }
}
template <class Real, std::size_t... kOps>
constexpr auto apply_table(std::index_sequence<kOps...>) {
  return std::array{&apply<Real, static_cast<Op>(kOps)>...};
}

template <class Real>
Value<Real> element(const expr::BufferView& view, std::int64_t offset, expr::Type type) {
  if (type == expr::Type::int32) {
    return {view.dtype == DType::u8 ? static_cast<const std::uint8_t*>(view.data)[offset]
                                    : static_cast<const std::int32_t*>(view.data)[offset],
            0};
  }
  const auto size = static_cast<std::int64_t>(size_of(view.dtype));
  const auto* const at = static_cast<const std::byte*>(view.data) + offset * size;
  return {0, static_cast<Real>(core::load_element(at, view.dtype))};
}

template <class Real>
void load(const Instruction& in, const expr::BufferView& view, const Operands<Real>& indices, int n,
          Value<Real>* out) {
  for (int j = 0; j < n; ++j) {
    std::int64_t offset = 0;
    bool inside = true;
    for (std::size_t d = 0; d < static_cast<std::size_t>(in.num_args); ++d) {
      const std::int64_t index = view.shape[d] == 1 ? 0 : indices[d][j].i;
      inside = inside && index >= 0 && index < view.shape[d];
      offset += inside ? index * view.strides[d] : 0;
    }
    out[j] = inside ? element<Real>(view, offset, in.type) : Value<Real>{};
  }
}

// False where the instruction is no leaf.
template <class Real>
bool fill_leaf(const Instruction& in, const RowPoint& at, int n, Value<Real>* out) {
  switch (in.op) {
    case Op::constant:
      *out = {in.int_value, static_cast<Real>(in.float_value)};
      return true;
    case Op::score:
      for (int j = 0; j < n; ++j) out[j] = {0, static_cast<Real>(at.score[j])};
      return true;
    case Op::query:
      *out = {at.query, 0};
      return true;
    case Op::key:
      for (int j = 0; j < n; ++j) out[j] = {at.key0 + j, 0};
      return true;
    case Op::batch:
      *out = {at.batch, 0};
      return true;
    case Op::head:
      *out = {at.head, 0};
      return true;
    case Op::seqlen_q:
      *out = {at.seqlen_q, 0};
      return true;
    case Op::seqlen_k:
      *out = {at.seqlen_k, 0};
      return true;
    default:
      return false;
  }
}

// floats: where Real is double, the values in float.
template <class Real>
void run(const expr::BoundProgram& program, const RowPoint& at, const Value<float>* floats,
         Value<Real>* values) {
  static constexpr auto kApply =
      apply_table<Real>(std::make_index_sequence<static_cast<std::size_t>(Op::select) + 1>());
  for (std::int32_t i = 0; i < program.count; ++i) {
    const Instruction& in = program.instructions[i];
    const int n = varies(in) ? at.keys : 1;
    const std::ptrdiff_t place = std::ptrdiff_t{i} * expr::kMaxTileKeys;
    Value<Real>* const out = values + place;
    if (fill_leaf(in, at, n, out)) continue;
    if (floats != nullptr && (in.op == Op::floor || in.op == Op::to_int)) {
      for (int j = 0; j < n; ++j) {
        out[j] = {floats[place + j].i, static_cast<Real>(floats[place + j].f)};
      }
      continue;
    }
    Operands<Real> args;
    for (std::size_t a = 0; a < static_cast<std::size_t>(in.num_args); ++a) {
      const std::int32_t from = in.args[a];
      args[a] = {values + std::ptrdiff_t{from} * expr::kMaxTileKeys,
                 varies(program.instructions[from]) ? 1 : 0};
    }
    if (in.op == Op::load) {
      load(in, program.buffers[in.buffer], args, n, out);
    } else {
      if (in.num_args == 1) args[1] = args[0];  // ignored, and there to be read
      kApply[static_cast<std::size_t>(in.op)](in, args, n, out);
    }
  }
}

}  // namespace

RowResult evaluate_row(const expr::BoundProgram& program, const RowPoint& at,
                       const RowValues& memory) {
  const Instruction* const end = program.instructions + program.count;
  const bool rounds = std::any_of(program.instructions, end, [](const Instruction& in) {
    return in.op == Op::floor || in.op == Op::to_int;
  });
  if (rounds) run<float>(program, at, nullptr, memory.of_float);
  run<double>(program, at, rounds ? memory.of_float : nullptr, memory.of_double);
  const std::int32_t last = program.count - 1;
  return {memory.of_double + std::ptrdiff_t{last} * expr::kMaxTileKeys,
          varies(program.instructions[last]) ? 1 : 0};
}

}  // namespace attn::cpu::f64
