#include "verify/element_rule.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <utility>

#include "verify/square.hpp"

namespace attn::verify {
namespace {

// Two yardsticks are allowed, as in the rule of maxima.
constexpr double kYardsticks = 2;
// A sum of many independent errors that is more than six standard deviations off is no accident:
// one of 5e8 would be.
constexpr double kDeviations = 6;
// Float operations that every element may share, each a rounding or an approximation of two: a
// division by sums that are all alike errs alike in all rows.
constexpr double kSharedRoundings = 4;

// Whether x lies half way between two numbers of the type, as far as float arithmetic tells that is
// given terms of this size: which of the two is nearer is then up to one error that all such
// elements may share, as where each is three times a number of the type and P is 1 less an ulp.
bool is_tie(DType dtype, double x, double size) {
  if (dtype != DType::bf16 && dtype != DType::f16) return false;
  const double half = half_ulp(dtype, x);
  const double in_halves = std::abs(x) / half;
  const double from_odd = std::abs(std::remainder(in_halves - 1, 2)) * half;
  return from_odd <= 0x1p-20 * size;
}

// x rounded to the type. Errors of that are independent as a rule, but not always: of one key, and
// kept elements times 9.9994, every eighth product is just below a tie and rounded down.
double nearest(DType dtype, double x) {
  const double ulp = 2 * half_ulp(dtype, x);
  return std::nearbyint(x / ulp) * ulp;
}

}  // namespace

double nearly_largest(std::vector<double> values) {
  constexpr double kShare = 0.98;
  if (values.empty()) return 0;
  const auto last = static_cast<double>(values.size() - 1);
  const auto at = values.begin() + static_cast<std::ptrdiff_t>(std::ceil(kShare * last));
  std::nth_element(values.begin(), at, values.end());
  return *at;
}

ElementYardstick::ElementYardstick(DType dtype, Roundoff roundoff, const Elements& expected,
                                   const Elements& scale, bool rows)
    : dtype_(dtype), roundoff_(roundoff) {
  const auto columns = static_cast<std::size_t>(rows ? expected.shape.back() : 1);
  double row = 0;  // errors of a row that all have the same sign
  for (std::size_t i = 0; i < expected.values.size(); ++i) {
    const double want = expected.values[i];
    const double size = scale.values[i];
    if (std::isfinite(want) && std::isfinite(size)) {
      norm_ += square(want);
      if (size != 0) count_ += 1;
      row += size * std::abs(want);
      rounding_ += square(half_ulp(dtype, want) * want) / 3;  // uniform between two numbers
      if (is_tie(dtype, want, size)) {
        ties_ += half_ulp(dtype, want) * std::abs(want);
      } else {
        nearest_ += (nearest(dtype, want) - want) * want;
      }
    }
    if ((i + 1) % columns != 0) continue;
    shared_ += square(row);
    row = 0;
  }
}

void ElementYardstick::measure(std::size_t which, const Elements& standard,
                               const Elements& expected, const Elements& scale) {
  yardsticks_.resize(std::max(yardsticks_.size(), which + 1));
  One& one = yardsticks_[which];
  for (std::size_t i = 0; i < standard.values.size(); ++i) {
    const double size = scale.values[i];
    const double error = standard.values[i] - expected.values[i];
    if (!std::isfinite(error) || !std::isfinite(size) || size == 0) continue;
    unit_ = std::max(unit_, std::abs(error) / size);
    one.squares += square(error / size);
    one.projection += error * expected.values[i];
    one.rounded += (nearest(dtype_, standard.values[i]) - expected.values[i]) * expected.values[i];
  }
}

void ElementYardstick::add(const ElementYardstick& other) {
  dtype_ = other.dtype_;
  roundoff_ = other.roundoff_;
  unit_ = std::max(unit_, other.unit_);
  norm_ += other.norm_;
  count_ += other.count_;
  rounding_ += other.rounding_;
  nearest_ += other.nearest_;
  ties_ += other.ties_;
  shared_ += other.shared_;
  learnt_mean_ = std::max(learnt_mean_, other.learnt_mean_);
  learnt_gain_ = std::max(learnt_gain_, other.learnt_gain_);
  yardsticks_.resize(std::max(yardsticks_.size(), other.yardsticks_.size()));
  for (std::size_t i = 0; i < other.yardsticks_.size(); ++i) {
    yardsticks_[i].squares += other.yardsticks_[i].squares;
    yardsticks_[i].projection += other.yardsticks_[i].projection;
    yardsticks_[i].rounded += other.yardsticks_[i].rounded;
  }
}

double ElementYardstick::unit() const { return std::max(unit_, roundoff_.largest); }

void ElementYardstick::learn(const std::vector<const ElementYardstick*>& similar) {
  std::vector<double> units, means, gains;
  for (const ElementYardstick* one : similar) {
    units.push_back(one->unit_);
    means.push_back(one->mean_unit());
    gains.push_back(one->norm_ > 0 ? one->projection() / one->norm_ : 0);
  }
  unit_ = std::max(unit_, nearly_largest(std::move(units)));
  learnt_mean_ = std::max(learnt_mean_, nearly_largest(std::move(means)));
  learnt_gain_ = std::max(learnt_gain_, nearly_largest(std::move(gains)));
}

double ElementYardstick::mean_unit() const {
  double mean_unit = std::max(roundoff_.mean, learnt_mean_);
  for (const One& one : yardsticks_) {
    if (count_ > 0) mean_unit = std::max(mean_unit, std::sqrt(one.squares / count_));
  }
  return mean_unit;
}

double ElementYardstick::projection() const {
  double projection = learnt_gain_ * norm_;
  for (const One& one : yardsticks_) {
    // Rounded results may be off where the exact ones are not: sums of a few equal numbers of the
    // type are ties, and all of them go one way.
    projection = std::max({projection, std::abs(one.projection), std::abs(one.rounded - nearest_)});
  }
  return projection;
}

double ElementYardstick::projection_allowed() const {
  const double shared_rounding = half_ulp(dtype_ == DType::f64 ? dtype_ : DType::f32, 1);
  const double variance = rounding_ + square(mean_unit()) * shared_;
  return kYardsticks * projection() + kDeviations * std::sqrt(variance) +
         kSharedRoundings * shared_rounding * norm_ + ties_;
}

bool ElementRule::add(const Elements& got, const Elements& expected, const Elements& scale) {
  constexpr double kTiny = std::numeric_limits<double>::min();
  const double unit = yardstick_.unit();
  bool found = false;
  for (std::size_t i = 0; i < got.values.size(); ++i) {
    const double size = scale.values[i];
    const double want = expected.values[i];
    const double error = element_error(got.dtype, got.values[i], want);
    if (error == 0) continue;
    const double computed = std::isfinite(size) ? kYardsticks * unit * size : 0;
    if (std::isfinite(error)) projection_ += (got.values[i] - want) * want;
    if (error <= worst_share_ * computed) continue;  // the allowed error is larger still
    const bool rounds = std::isfinite(want) && (size != 0 || want != 0);
    const double allowed = computed + (rounds ? half_ulp(got.dtype, std::abs(want) + computed) : 0);
    const double share = error / std::max(allowed, kTiny);
    if (share <= worst_share_) continue;
    worst_share_ = share;
    worst_ = {error, allowed, got.coordinates(i), want, got.values[i]};
    found = true;
  }
  return found;
}

void ElementRule::judge(Comparison& comparison) const {
  comparison.element = worst_;
  const double norm = yardstick_.norm();
  if (norm == 0) return;
  comparison.gain = (projection_ - yardstick_.projection_of_nearest()) / norm;
  comparison.gain_allowed = yardstick_.projection_allowed() / norm;
}

}  // namespace attn::verify
