// The error rule element by element and for a common factor, for one tensor over all its draws.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "attn/tensor.hpp"
#include "verify/compare.hpp"

namespace attn::verify {

// The relative errors that rounding makes: a bound, and the root of the mean of their squares.
struct Roundoff {
  double largest = 0, mean = 0;
};

// What at most 2 in a hundred of the values exceed: of 128 the third from above, of up to 50 the
// largest. 0 of none.
double nearly_largest(std::vector<double> values);

// What is known of a tensor before a result is judged: what it should be, the scales of its errors
// (error_scale.hpp) and what the yardsticks are off by.
class ElementYardstick {
 public:
  ElementYardstick() = default;
  // dtype: of the results. roundoff: the least that relative errors are taken for, whatever the
  // luck of yardsticks. rows: whether elements of the last axis share errors, as those of a row of
  // O do.
  ElementYardstick(DType dtype, Roundoff roundoff, const Elements& expected, const Elements& scale,
                   bool rows);
  // Adds the errors of yardstick `which`.
  void measure(std::size_t which, const Elements& standard, const Elements& expected,
               const Elements& scale);
  // Adds another draw.
  void add(const ElementYardstick& other);
  // Takes for possible here, relative to the scales, what standard attention is off by in problems
  // much like this one, but for the most unlucky of them (nearly_largest): over few elements its
  // largest error is a matter of luck. Nothing of those problems is judged.
  void learn(const std::vector<const ElementYardstick*>& similar);

  double unit() const;  // the largest |error| / scale
  // sum (nearest - expected) expected, nearest being the number of the type that a perfect
  // computation gives: `expected` rounded; itself where it is a tie.
  double projection_of_nearest() const { return nearest_; }
  double projection_allowed() const;     // of |sum (got - nearest) expected|
  double norm() const { return norm_; }  // sum expected^2

 private:
  struct One {
    double squares = 0, projection = 0;
    double rounded = 0;  // the projection of its results rounded to the type
  };

  double mean_unit() const;   // root of the mean square of |error| / scale
  double projection() const;  // the largest of a yardstick

  DType dtype_ = DType::f32;
  Roundoff roundoff_{};
  double unit_ = 0;
  double learnt_mean_ = 0, learnt_gain_ = 0;  // of similar problems: mean_unit, projection / norm
  std::vector<One> yardsticks_{};
  double norm_ = 0, count_ = 0;
  double rounding_ = 0;  // the variance of the projection that rounding the results explains
  double nearest_ = 0;
  double ties_ = 0;    // what rounding all ties one way explains of the projection itself
  double shared_ = 0;  // that of errors of mean size 1 relative to scale
};

// Judges a result, draw after draw, when all draws are measured.
class ElementRule {
 public:
  explicit ElementRule(ElementYardstick yardstick) : yardstick_(std::move(yardstick)) {}
  // Whether the worst element so far is one of these.
  bool add(const Elements& got, const Elements& expected, const Elements& scale);
  Comparison::Element& worst() noexcept { return worst_; }
  // Writes `element` and `gain`.
  void judge(Comparison& comparison) const;

 private:
  ElementYardstick yardstick_;
  Comparison::Element worst_{};
  double worst_share_ = 0;
  double projection_ = 0;
};

}  // namespace attn::verify
