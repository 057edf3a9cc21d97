// A score expression, its derivatives and the indices of its loads over a row of a tile in double,
// as expr::evaluate<double> gives them, to the bit.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/expr/program.hpp"
#include "core/expr/scalar.hpp"

namespace attn::cpu::f64 {

// Some keys of one row.
struct RowPoint {
  std::int32_t query = 0, head = 0;
  std::int32_t key0 = 0;
  int keys = 0;  // at most kMaxTileKeys
  std::int32_t batch = 0, seqlen_q = 0, seqlen_k = 0;
  const double* score = nullptr;  // [keys]
};

// Memory of the values of all instructions, one for each thread.
struct RowValues {
  expr::Value<double>* of_double = nullptr;
  expr::Value<float>* of_float = nullptr;  // floor and to_int round what float arithmetic gives
};
// Values of either kind that a program needs.
inline std::size_t row_values(const expr::Program& program) {
  return program.instructions.size() * expr::kMaxTileKeys;
}

// The value at key key0 + j.
class RowResult {
 public:
  RowResult(const expr::Value<double>* values, int step) : values_(values), step_(step) {}
  double number(int j) const { return values_[j * step_].f; }
  std::int32_t index(int j) const { return values_[j * step_].i; }

 private:
  const expr::Value<double>* values_;
  int step_;  // 0: the same for every key
};

// Valid until the memory is used again.
RowResult evaluate_row(const expr::BoundProgram& program, const RowPoint& at,
                       const RowValues& memory);

}  // namespace attn::cpu::f64
