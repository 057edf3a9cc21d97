// The device text of device_expressions(), compiled for the host.
#pragma once

#include <cstddef>

#include "attn/expr.hpp"

namespace attn::test {

// What exponent() gives; exists: there is such a function; good: arguments of tanh are small
// enough.
struct Exponent {
  float value = 0;
  bool exists = false, good = false;
};

// expressions: the bytes of the struct.
struct Compiled {
  bool (*mask)(const std::byte* expressions, const expr::Point& at);
  float (*score)(const std::byte* expressions, const expr::Point& at);
  Exponent (*exponent)(const std::byte* expressions, const expr::Point& at, float addend);
  int (*classify)(const std::byte* expressions, const expr::Tile& tile);  // a device::Coverage
  std::size_t size;
};
extern const Compiled kCompiledExpressions[];
extern const std::size_t kNumCompiledExpressions;

}  // namespace attn::test
