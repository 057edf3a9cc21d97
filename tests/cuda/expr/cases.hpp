// The expressions whose device text is compiled for the host and compared with evaluate().
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "attn/expr.hpp"
#include "expr/random_expr.hpp"

namespace attn::test {

struct DeviceExpressions {
  std::string name;
  expr::Expr mask, score;
  std::shared_ptr<const void> owner;  // of the buffers' elements
};

// The same list in every process.
std::vector<DeviceExpressions> device_expressions();

// The declared tensors of an expression as tensors of a CUDA device: host memory behind them.
expr::Bindings as_device_tensors(const DeviceExpressions& expressions);

}  // namespace attn::test
