// Bytes that an algorithm moves between a slow and a fast memory, by what they are part of.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "attn/problem.hpp"

namespace attn::traffic {

enum class Operand : std::uint8_t {
  q,
  k,
  v,
  o,
  lse,  // l and m, or LSE: f32, as D
  s,
  p,
  d_o,
  dq,
  dk,
  dv,
  dp,
  ds,
  d,        // rowsum(dO * O)
  packed,   // copies of Q, K, V and dO that a plan makes once and reads often
  partial,  // results over some of the keys, of a plan that splits them; f32
  scratch,  // tiles of S and P and sums that an algorithm means to keep in fast memory; f32
};
inline constexpr std::size_t kOperands = 17;
std::string_view name(Operand operand) noexcept;

// Bytes of an element: the problem's dtype, or f32.
std::int64_t element_bytes(const Problem& problem, Operand operand);

struct Moved {
  double read = 0, written = 0;
  double bytes() const { return read + written; }
  bool operator==(const Moved&) const = default;
};

// Doubles: counts are whole numbers, exact up to 2^53.
class Traffic {
 public:
  Moved& operator[](Operand operand) { return moved_[static_cast<std::size_t>(operand)]; }
  const Moved& operator[](Operand operand) const {
    return moved_[static_cast<std::size_t>(operand)];
  }
  double read() const;
  double written() const;
  double bytes() const { return read() + written(); }
  Traffic& operator+=(const Traffic& other);
  Traffic& operator*=(double factor);
  bool operator==(const Traffic&) const = default;

 private:
  std::array<Moved, kOperands> moved_{};
};

}  // namespace attn::traffic
