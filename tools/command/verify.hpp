// Comparing results with the fp64 reference under the error rule, whatever the size of the problem.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "attn/run.hpp"
#include "verify/compare.hpp"

namespace attn::command {

struct Verification {
  std::string extent;                           // "all rows" or "256 rows of 16 heads"
  std::vector<verify::Comparison> comparisons;  // positions are those of the whole problem
  bool passed() const;
  // The comparison that comes closest to what is allowed, or passes furthest beyond it. The list
  // must not be empty.
  const verify::Comparison& worst() const;
};

// Whether all rows are compared: up to 2^22 scores, about a second of the reference.
bool is_small(const Problem& problem);

// `outputs` hold the result of a complete problem. Small problems, and those with dropout, are
// compared whole. Of others rows are drawn, spread over sequences and heads, and compared with the
// reference of exactly these rows (SampledProblem); everywhere else O and LSE are looked through
// for NaN, which the caller put there before. max_logit is compared where is_small holds alone. The
// error rule is that of `attn check`, all three parts of it (verify/expectation.hpp). Where so few
// rows are compared that the largest error of standard attention over them is a matter of luck, it
// is taken over several orders of the keys, and where results fail, over inputs much like the given
// ones too (similar_inputs.hpp). device: what computed them; a GPU's tensor cores have a yardstick
// of their own.
Verification verify_forward(const Problem& problem, const Inputs& inputs, const Outputs& outputs,
                            DeviceType device);

// The gradients of a complete problem. Where is_small holds, and with dropout, all of them are
// compared after run(d_outputs), which computes `gradients`, as in verify_forward; otherwise as
// verify_backward_sampled says, dQ, dK and dV only, for a loss that does not use LSE.
Verification verify_backward(const Problem& problem, const Inputs& inputs,
                             const OutputGradients& d_outputs, const Gradients& gradients,
                             DeviceType device,
                             const std::function<void(const OutputGradients& d_outputs)>& run);

// Verifies large problems without dropout. Calls `run(d_o)`, which computes `gradients` for a
// gradient d_o of O that equals `d_o` at the drawn rows and is zero elsewhere: dK and dV then
// depend on these rows only and are compared at every key, dQ at the rows. Which of two roundings
// comes off better in the row that decides a largest error is luck: what one draw of rows fails is
// judged again, over 8 draws, as `attn check` looks again at what it fails.
Verification verify_backward_sampled(
    const Problem& problem, const Inputs& inputs, const Tensor& d_o, const Gradients& gradients,
    DeviceType device, const std::function<void(const OutputGradients& d_outputs)>& run);

}  // namespace attn::command
