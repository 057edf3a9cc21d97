// One operation of an expression over a grid of vectors.
#pragma once

#include "core/expr/program.hpp"
#include "cpu/kernels/math.hpp"
#include "cpu/kernels/trigonometry.hpp"

namespace attn::cpu::ATTN_ISA {

// keys x vectors of results, vector v of key j at j * key_stride + v * kLanes. Instructions that do
// not vary with the key use one key; those that do not vary with the row lay keys in lanes.
struct Grid {
  int keys = 1;
  int vectors = 1;
  std::ptrdiff_t key_stride = 0;
};

// 4-byte values of any type: a stride of 0 repeats a vector.
struct Operand {
  const float* data = nullptr;
  std::ptrdiff_t key_stride = 0;
  std::ptrdiff_t vector_stride = 0;
};

// One vector of an operand for each key, in turn.
struct Cursor {
  const float* at;
  std::ptrdiff_t step;
};
template <class V>
ATTN_INLINE V next(Cursor& cursor) {
  const V value = load_as<V>(cursor.at);
  cursor.at += cursor.step;
  return value;
}
ATTN_INLINE Cursor cursor(const Operand& o, int v) {
  return {o.data + v * o.vector_stride, o.key_stride};
}

// out <- f of the values. out may be the memory of an operand with the same strides. Operands are
// copied first: as far as the compiler knows, a store to out could change them.
template <class V, class Function>
ATTN_INLINE void map1(const Operand* args, const Grid& grid, float* out, const Function& f) {
  const int keys = grid.keys;
  const std::ptrdiff_t step = grid.key_stride;
  for (int v = 0; v < grid.vectors; ++v) {
    Cursor a = cursor(args[0], v);
    float* to = out + v * kLanes;
#pragma GCC unroll 4
    for (int j = 0; j < keys; ++j, to += step) store(to, bit_cast<F>(f(next<V>(a))));
  }
}

template <class V, class Function>
ATTN_INLINE void map2(const Operand* args, const Grid& grid, float* out, const Function& f) {
  const int keys = grid.keys;
  const std::ptrdiff_t step = grid.key_stride;
  for (int v = 0; v < grid.vectors; ++v) {
    Cursor a = cursor(args[0], v);
    Cursor b = cursor(args[1], v);
    float* to = out + v * kLanes;
#pragma GCC unroll 4
    for (int j = 0; j < keys; ++j, to += step) {
      const V x = next<V>(a);
      store(to, bit_cast<F>(f(x, next<V>(b))));
    }
  }
}

static void map_select(const Operand* args, const Grid& grid, float* out) {
  const int keys = grid.keys;
  const std::ptrdiff_t step = grid.key_stride;
  for (int v = 0; v < grid.vectors; ++v) {
    Cursor condition = cursor(args[0], v);
    Cursor a = cursor(args[1], v);
    Cursor b = cursor(args[2], v);
    float* to = out + v * kLanes;
    for (int j = 0; j < keys; ++j, to += step) {
      const I chosen = next<I>(condition);
      const I x = next<I>(a);
      store(to, bit_cast<F>(select(chosen, x, next<I>(b))));
    }
  }
}

// Toward minus infinity; division by zero gives 0 and remainder 0; -2^31 / -1 wraps. Lane by lane:
// divisions by anything but a key or a row are rare, and those run once a vector.
ATTN_INLINE std::int32_t floor_quotient(std::int32_t a, std::int32_t b) {
  if (b == 0) return 0;
  if (b == -1) return static_cast<std::int32_t>(-static_cast<std::uint32_t>(a));
  const std::int32_t quotient = a / b;
  return a - quotient * b != 0 && (a ^ b) < 0 ? quotient - 1 : quotient;
}
static U floor_div(U a, U b) {
  U out = {};
  for (int i = 0; i < kLanes; ++i) {
    out[i] = static_cast<std::uint32_t>(
        floor_quotient(static_cast<std::int32_t>(a[i]), static_cast<std::int32_t>(b[i])));
  }
  return out;
}
// a - floor(a / b) b modulo 2^32 is the remainder itself, which fits.
ATTN_INLINE U floor_mod(U a, U b) { return b == 0 ? U{} : a - floor_div(a, b) * b; }

// An amount outside of 0 to 31 shifts every bit out.
ATTN_INLINE U shift_left(U a, U amount) {
  return bit_cast<U>(select(bit_cast<I>(amount < 32u), bit_cast<I>(a << (amount & 31u)), I{}));
}
ATTN_INLINE I shift_right(I a, I amount) {
  return a >> select(bit_cast<I>(bit_cast<U>(amount) < 32u), amount, set1(31));
}

// Toward zero, saturating; 0 of NaN. The conversion itself is only for what fits.
ATTN_INLINE I truncate(F x) {
  const F number = select(x == x, x, F{});
  const F most = set1(0x1.fffffep30f);  // the largest float that fits
  const F fits = min(most, max(set1(-0x1p31f), number));
  return select(number > most, set1(0x7fffffff), to_int(fits));
}

static void execute_int(expr::Op op, const Operand* args, const Grid& grid, float* out) {
  using expr::Op;
  // Unsigned where the result may wrap: signed overflow is undefined.
  switch (op) {
    case Op::neg:
      return map1<U>(args, grid, out, [](U a) { return -a; });
    case Op::abs:
      return map1<U>(args, grid, out, [](U a) {
        const U sign = bit_cast<U>(bit_cast<I>(a) >> 31);
        return (a ^ sign) - sign;
      });
    case Op::logical_not:
      return map1<U>(args, grid, out, [](U a) { return ~a; });
    case Op::to_float:
      return map1<I>(args, grid, out, [](I a) { return to_float(a); });
    case Op::add:
      return map2<U>(args, grid, out, [](U a, U b) { return a + b; });
    case Op::sub:
      return map2<U>(args, grid, out, [](U a, U b) { return a - b; });
    case Op::mul:
      return map2<U>(args, grid, out, [](U a, U b) { return a * b; });
    case Op::div:
      return map2<U>(args, grid, out, [](U a, U b) { return floor_div(a, b); });
    case Op::mod:
      return map2<U>(args, grid, out, [](U a, U b) { return floor_mod(a, b); });
    case Op::bit_and:
    case Op::logical_and:
      return map2<U>(args, grid, out, [](U a, U b) { return a & b; });
    case Op::bit_or:
    case Op::logical_or:
      return map2<U>(args, grid, out, [](U a, U b) { return a | b; });
    case Op::bit_xor:
      return map2<U>(args, grid, out, [](U a, U b) { return a ^ b; });
    case Op::shift_left:
      return map2<U>(args, grid, out, [](U a, U b) { return shift_left(a, b); });
    case Op::shift_right:
      return map2<I>(args, grid, out, [](I a, I b) { return shift_right(a, b); });
    case Op::min:
      return map2<I>(args, grid, out, [](I a, I b) { return select(a < b, a, b); });
    case Op::max:
      return map2<I>(args, grid, out, [](I a, I b) { return select(a > b, a, b); });
    case Op::lt:
      return map2<I>(args, grid, out, [](I a, I b) { return a < b; });
    case Op::le:
      return map2<I>(args, grid, out, [](I a, I b) { return a <= b; });
    case Op::eq:
      return map2<I>(args, grid, out, [](I a, I b) { return a == b; });
    case Op::ne:
      return map2<I>(args, grid, out, [](I a, I b) { return a != b; });
    default:
      return;
  }
}

static void execute_float(expr::Op op, const Operand* args, const Grid& grid, float* out) {
  using expr::Op;
  switch (op) {
    case Op::neg:
      return map1<U>(args, grid, out, [](U a) { return a ^ 0x80000000u; });
    case Op::abs:
      return map1<U>(args, grid, out, [](U a) { return a & 0x7fffffffu; });
    case Op::exp:
      return map1<F>(args, grid, out, [](F a) { return exp(a); });
    case Op::exp2:
      return map1<F>(args, grid, out, [](F a) { return full_exp2(a); });
    case Op::log:
      return map1<F>(args, grid, out, [](F a) { return log(a); });
    case Op::tanh:
      return map1<F>(args, grid, out, [](F a) { return tanh(a); });
    case Op::erf:
      return map1<F>(args, grid, out, [](F a) { return erf(a); });
    case Op::sin:
      return map1<F>(args, grid, out, [](F a) { return sin(a); });
    case Op::cos:
      return map1<F>(args, grid, out, [](F a) { return cos(a); });
    case Op::sqrt:
      return map1<F>(args, grid, out, [](F a) { return sqrt(a); });
    case Op::floor:
      return map1<F>(args, grid, out, [](F a) { return floor(a); });
    case Op::to_int:
      return map1<F>(args, grid, out, [](F a) { return truncate(a); });
    case Op::add:
      return map2<F>(args, grid, out, [](F a, F b) { return a + b; });
    case Op::sub:
      return map2<F>(args, grid, out, [](F a, F b) { return a - b; });
    case Op::mul:
      return map2<F>(args, grid, out, [](F a, F b) { return a * b; });
    case Op::div:
      return map2<F>(args, grid, out, [](F a, F b) { return a / b; });
    case Op::min:
      return map2<F>(args, grid, out, [](F a, F b) { return select(a < b, a, b); });
    case Op::max:
      return map2<F>(args, grid, out, [](F a, F b) { return select(a > b, a, b); });
    case Op::lt:
      return map2<F>(args, grid, out, [](F a, F b) { return a < b; });
    case Op::le:
      return map2<F>(args, grid, out, [](F a, F b) { return a <= b; });
    case Op::eq:
      return map2<F>(args, grid, out, [](F a, F b) { return a == b; });
    case Op::ne:
      return map2<F>(args, grid, out, [](F a, F b) { return a != b; });
    default:
      return;
  }
}

// Unary, binary and select operations; out <- in.op of args.
ATTN_INLINE void execute(const expr::Instruction& in, const Operand* args, const Grid& grid,
                         float* out) {
  if (in.op == expr::Op::select) {
    map_select(args, grid, out);
  } else if (in.operands == expr::Type::float32) {
    execute_float(in.op, args, grid, out);
  } else {
    execute_int(in.op, args, grid, out);
  }
}

}  // namespace attn::cpu::ATTN_ISA
