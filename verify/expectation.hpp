// What the results of a phase should be, how far off standard attention is, and the verdict of the
// error rule (docs/numerics.md) about what was computed.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "attn/run.hpp"
#include "reference/reference.hpp"
#include "verify/compare.hpp"
#include "verify/element_rule.hpp"

namespace attn::verify {

// One tensor of the results of a phase.
struct Expected {
  std::string name;           // "o", "lse", "dq", ...
  Tensor got;                 // where the result is, or will be
  Elements exact{}, scale{};  // of the reference, and of errors
  double standard_error = 0;
  ElementYardstick yardstick{};
  std::size_t measured = 0;  // yardsticks
};

// How many orders of operations standard attention is computed in for a problem with so many
// scores: as many as cost little, 1 to 8.
std::int64_t yardstick_orders(std::int64_t scores);

// Computes, for the tensors that `got` names, the exact results of a complete problem of any size
// with valid inputs on the host, and the errors of `orders` orders of operations in which standard
// attention in the precision of the problem is computed. places: those of dropout's bits, here and
// below.
std::vector<Expected> expect_forward(const Problem& problem, const Inputs& inputs,
                                     const Outputs& got, std::int64_t orders,
                                     const reference::DropoutPlaces& places = {});
std::vector<Expected> expect_backward(const Problem& problem, const Inputs& inputs,
                                      const OutputGradients& d_outputs, const Gradients& got,
                                      std::int64_t orders,
                                      const reference::DropoutPlaces& places = {});
// Adds the errors of standard attention where tensor cores of a GPU compute the products of a
// 16-bit problem, which cut sums off instead of rounding them, and where they compute those of
// 8-bit floats, of a problem of these: for results of `expected` that a GPU computed. Does nothing
// in float32, unless Q, K and V are e4m3.
void measure_tensor_cores(const Problem& problem, const Inputs& inputs,
                          std::vector<Expected>& expected,
                          const reference::DropoutPlaces& places = {});
void measure_tensor_cores(const Problem& problem, const Inputs& inputs,
                          const OutputGradients& d_outputs, std::vector<Expected>& expected,
                          const reference::DropoutPlaces& places = {});
// Adds yardsticks for the same results of forward: those of a problem whose results are those of
// `expected`, as one with its keys in another order.
void measure_forward(const Problem& problem, const Inputs& inputs, std::int64_t orders,
                     std::vector<Expected>& expected, const reference::DropoutPlaces& places = {});

// Results that are judged together with others of the same names: one draw, or one part.
struct Part {
  std::vector<Expected>& expected;
  // Changes a position in a tensor of the part to the one in what it is a part of; empty: they are
  // the same.
  std::function<void(std::string_view name, std::vector<std::int64_t>& where)> to_whole{};
};

// How far off standard attention is in one tensor, over several parts.
struct StandardErrors {
  double largest = 0;
  ElementYardstick yardstick{};
};
// One a tensor; every part has the same tensors.
std::vector<StandardErrors> standard_errors(std::span<const Part> parts);

// Reads what was computed. One comparison a tensor, over all parts; every part has the same
// tensors. similar: those of problems much like this one, from which the rule learns what standard
// attention may be off by (ElementYardstick::learn).
std::vector<Comparison> judge(std::span<const Part> parts,
                              std::span<const std::vector<StandardErrors>> similar = {});

}  // namespace attn::verify
