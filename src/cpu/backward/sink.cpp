// The sink is one more key with v = 0: dS_sink = P_sink (0 - D), so d sink_h = -sum over batch and
// queries of exp(sink_h - LSE) D.
#include <cmath>

#include "core/tensor/element.hpp"
#include "cpu/backward/backward.hpp"

namespace attn::cpu {

void backward_sink(const Attention& a, const GradientContext& g, const Gradients& gradients) {
  const auto* sink = static_cast<const float*>(a.inputs.sink.data);
  const Tensor& d_sink = gradients.dsink;
  const auto size = static_cast<std::int64_t>(size_of(d_sink.dtype));
  for (std::int64_t head = 0; head < a.problem.heads_q; ++head) {
    const auto head_k = static_cast<int>(head / a.group);
    const double logit = sink[head];
    double sum = 0;
    for (const core::Sequence& sequence : a.sequences) {
      const std::int64_t first = g.first_block(sequence.batch * a.problem.heads_k + head_k);
      const float* lse = g.lse(first);
      const float* delta = g.delta(first);
      const float* weight = g.weight(first);
      for (std::int64_t row = head % a.group; row < a.rows(sequence); row += a.group) {
        // A row without keys has P_sink = 1, be the sink infinite or NaN. A row with keys that sees
        // such a sink has an O, and so a D, that is NaN.
        const std::int64_t lane = g.lane_of(row);
        const bool all = double{lse[lane]} == logit || std::isnan(logit);
        const double p = all ? 1 : std::exp(logit - double{lse[lane]});
        // Of a row far from 0 that sees keys, LSE may be the sink all the same.
        sum -= p * (weight != nullptr ? double{weight[lane]} : 1.0) * double{delta[lane]};
      }
    }
    core::store_element(static_cast<std::byte*>(d_sink.data) + head * d_sink.strides[0] * size,
                        d_sink.dtype, sum);
  }
}

}  // namespace attn::cpu
