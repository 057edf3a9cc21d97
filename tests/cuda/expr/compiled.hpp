// The device text of device_expressions(), compiled for the host.
#pragma once

#include <cstddef>

#include "attn/expr.hpp"

namespace attn::test {

// expressions: the bytes of the struct.
struct Compiled {
  bool (*mask)(const std::byte* expressions, const expr::Point& at);
  float (*score)(const std::byte* expressions, const expr::Point& at);
  // NaN where there is none.
  float (*exponent)(const std::byte* expressions, const expr::Point& at, float addend);
  int (*classify)(const std::byte* expressions, const expr::Tile& tile);  // a device::Coverage
  std::size_t size;
};
extern const Compiled kCompiledExpressions[];
extern const std::size_t kNumCompiledExpressions;

}  // namespace attn::test
