// How far off the scores of standard attention are.
#pragma once

#include "attn/run.hpp"
#include "reference/reference.hpp"

namespace attn::verify {

// max |score in `precision` - exact score| over all rows in use and the keys that they see, of
// scores as they enter softmax; those that are not finite are left out. The problem is complete and
// the inputs, on the host, are valid. visible: of the problem, or null.
double score_error(const Problem& problem, const Inputs& inputs, reference::Precision precision,
                   reference::Order order, const reference::VisibleKeys* visible = nullptr);

}  // namespace attn::verify
