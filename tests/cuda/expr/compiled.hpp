// The device text of device_expressions(), compiled for the host.
#pragma once

#include <cstddef>

#include "attn/expr.hpp"

namespace attn::test {

// A score in powers of 2; good: it may be used.
struct SmallScore {
  float score = 0;
  bool good = false;
};

// expressions: the bytes of the struct.
struct Compiled {
  bool (*mask)(const std::byte* expressions, const expr::Point& at);
  float (*score)(const std::byte* expressions, const expr::Point& at);
  // Never good where there is no such function.
  SmallScore (*small_score)(const std::byte* expressions, const expr::Point& at);
  int (*classify)(const std::byte* expressions, const expr::Tile& tile);  // a device::Coverage
  std::size_t size;
};
extern const Compiled kCompiledExpressions[];
extern const std::size_t kNumCompiledExpressions;

}  // namespace attn::test
