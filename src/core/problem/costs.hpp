// Arithmetic and traffic of a problem.
#pragma once

#include "attn/plan.hpp"
#include "attn/run.hpp"

namespace attn::core {

// Visible (batch, query head, query, key) elements of a problem whose sequences have their full
// lengths. Masks that read buffers without data are counted as full.
double visible_elements(const Problem& problem);

// Floating-point operations that a visible element of S takes.
double flops_per_element(const Problem& problem, Phase phase);

// Plan::bytes.
double bytes(const Problem& problem, Phase phase);

// Plan::flops and Plan::bytes of the lengths that cu_seqlens and seqused give; these are read on
// the CPU.
double flops(const Problem& problem, Phase phase, const Inputs& inputs);
double bytes(const Problem& problem, Phase phase, const Inputs& inputs);

}  // namespace attn::core
