// What forward and backward of several ranks have in common: the checks of a rank's arguments, and
// the exchanges.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "attn/dist.hpp"
#include "dist/greeting.hpp"
#include "dist/plan_data.hpp"
#include "dist/row_tensor.hpp"

namespace attn::dist {

// Throws Error(invalid_argument) for a tensor that is not of this rank's rows.
void check_forward(const PlanData& plan, const Inputs& inputs, const Outputs& outputs,
                   const attn::Context& context);
void check_backward(const PlanData& plan, const Inputs& inputs, const Outputs& outputs,
                    const OutputGradients& d_outputs, const Gradients& gradients,
                    const attn::Context& context);

// Whether a scale is of each row, and not one or one a head, which all ranks have.
inline bool is_of_rows(const Tensor& scale) { return scale.rank > 1; }

// The inputs of the rank's own call: its Q, the gathered K and V, and its lengths, which look at
// the plan's.
Inputs local_inputs(const PlanData& plan, const Inputs& inputs, const Tensor& k, const Tensor& v);

// values[i] <- the largest of all ranks, NaN where one is: the same on each rank.
void largest_of_ranks(const Group& group, std::vector<double>& values,
                      std::chrono::milliseconds timeout);

// What this rank takes part in beside its own work.
class Traffic {
 public:
  Traffic(const PlanData& plan, std::chrono::milliseconds timeout)
      : plan_(plan), timeout_(timeout) {}

  int rank() const { return plan_.group->rank(); }
  // Every rank sends the K and V that others see, with scales of rows, and gets what it sees.
  RowMemory gather(const Inputs& inputs) const;
  // This rank's dK and dV: the sums over all ranks of their partial ones, which `partial` has of
  // the rows that this rank gathered.
  RowMemory send_home(const RowMemory& partial) const;
  // values[i] <- the sum over all ranks, in their order; the same bits on each rank.
  void sum(std::vector<double>& values) const;
  void largest(std::vector<double>& values) const {
    largest_of_ranks(*plan_.group, values, timeout_);
  }

  // [batch, ...] of K and V, 0 where they are packed.
  std::int64_t sequences() const { return plan_.k.packed ? 0 : plan_.problem.batch; }
  DType sum_dtype() const { return dist::sum_dtype(plan_.problem); }
  RowMemory memory(const RowList& rows, DType dtype) const {
    const Problem& p = plan_.problem;
    return {sequences(), rows, p.heads_k, {{dtype, p.head_dim}, {dtype, p.head_dim_v}}};
  }

  void exchange(std::span<const Send> sends, std::span<const Receive> receives) const {
    plan_.group->engine().exchange(sends, receives, timeout_);
  }

 private:
  const PlanData& plan_;
  std::chrono::milliseconds timeout_;
};

}  // namespace attn::dist
