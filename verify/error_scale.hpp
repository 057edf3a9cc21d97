// How large the rounding errors of the elements of a result are, relative to each other.
#pragma once

#include "attn/run.hpp"
#include "reference/reference.hpp"

namespace attn::verify {

// Computes for each element of O, LSE, dQ, dK and dV a scale, the root of the sum of the squares of
// the terms that it is summed from, and of its own square: with errors of the terms that are
// independent and all of the same relative size u, the element is off by about u times this. An
// element without terms (a row that sees no key, a key that no query sees) has scale 0: it must be
// exact. Terms of visible keys count as no smaller than the smallest normal number of the problem's
// type, below which relative precision ends. Example: O of a row with 100 equal P = 0.01 and V
// about 1 has a scale of 0.01 sqrt(100) = 0.1; O of a row with one key has about 1. Errors of the
// former are a tenth of those of the latter. Sums over rows, dsink and the gradients of buffers,
// are off by what rounding O and P to the type of the problem does to the rows (sum_over_rows.hpp);
// u is then at least the largest relative error of that rounding. scales: f64, of the shapes of
// outputs and gradients, LSE optional. visible: of the problem, or null.
void forward_error_scales(const Problem& problem, const Inputs& inputs, const Outputs& scales,
                          const reference::DropoutPlaces& places = {},
                          const reference::VisibleKeys* visible = nullptr);
void backward_error_scales(const Problem& problem, const Inputs& inputs,
                           const OutputGradients& d_outputs, const Gradients& scales,
                           const reference::DropoutPlaces& places = {},
                           const reference::VisibleKeys* visible = nullptr);

}  // namespace attn::verify
