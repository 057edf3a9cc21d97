// Arithmetic and traffic of a problem.
#pragma once

#include "attn/plan.hpp"

namespace attn::core {

// Visible (batch, query head, query, key) elements of a problem whose sequences have their full
// lengths. Masks that read buffers without data are counted as full.
double visible_elements(const Problem& problem);

// Sets plan.flops and plan.bytes.
void count_costs(Plan& plan);

}  // namespace attn::core
