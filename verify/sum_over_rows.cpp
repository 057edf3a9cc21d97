#include "verify/sum_over_rows.hpp"

#include <cmath>

#include "verify/square.hpp"

namespace attn::verify {
namespace {}  // namespace

SumOverRows::SumOverRows(std::size_t elements) : elements_(elements) {}

void SumOverRows::add(std::size_t element, double term, double weight, double error) {
  Element& e = elements_[element];
  if (!e.in_row) row_.push_back(element);
  e.in_row = true;
  e.row_value += term;
  e.weight += weight;
  e.squares += square(error);
}

void SumOverRows::end_row(double d_error, double lse_error) {
  for (const std::size_t element : row_) {
    Element& e = elements_[element];
    e.value += e.row_value;
    e.squares += square(e.weight * d_error) + square(e.row_value * lse_error);
    e.row_value = e.weight = 0;
    e.in_row = false;
  }
  row_.clear();
}

std::vector<double> SumOverRows::scales(double own) const {
  std::vector<double> out;
  out.reserve(elements_.size());
  for (const Element& e : elements_) out.push_back(std::sqrt(e.squares + square(own * e.value)));
  return out;
}

}  // namespace attn::verify
