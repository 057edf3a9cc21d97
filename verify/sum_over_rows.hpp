// How large the errors are of results that are summed over all rows of a head and more: dsink and
// the gradients of buffers.
#pragma once

#include <cstddef>
#include <vector>

namespace attn::verify {

// Each element is sum_i sum_j w_ij (dP_ij - D_i), with a weight w_ij of the j-th term of row i:
// P_ij times a derivative, or -P of the sink, whose dP is 0. D_i = dO_i . O_i has lost what O and P
// lose when they are rounded to the type of the problem; it moves all terms of its row alike, so
// that the element moves by sum_i (sum_j w_ij) times the error of D_i. All else is float
// arithmetic. What rows, and terms beside D, lose is independent: squares are added. Example: sink,
// 100 rows, P of the sink 0.01 and errors of D about 0.002 in each: 0.0002.
class SumOverRows {
 public:
  explicit SumOverRows(std::size_t elements);
  // A term of the row at work, and its error without those of D and LSE.
  void add(std::size_t element, double term, double weight, double error);
  void end_row(double d_error, double lse_error);
  // The roots of the sums of squares, that of the element times `own` among them.
  std::vector<double> scales(double own) const;

 private:
  struct Element {
    double value = 0, squares = 0;
    double row_value = 0, weight = 0;  // of the row at work
    bool in_row = false;
  };
  std::vector<Element> elements_;
  std::vector<std::size_t> row_;  // elements with terms in the row at work
};

}  // namespace attn::verify
