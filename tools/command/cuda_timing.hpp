// A line of `attn bench` on a GPU.
#pragma once

#include "command/bench_row.hpp"

namespace attn::command {

// row.plan is made. Verifies on poisoned outputs, then times the forward pass with events: many
// calls in one graph, so that the host's share does not count, going round copies of the tensors
// that together are four times the L2 cache, so that every call finds its inputs in memory; at last
// the result must still have the bits that were verified. Throws as forward.
void measure_on_gpu(BenchRow& row, harness::CaseData& data, const Context& context,
                    const TimingRule& rule, Peaks& peaks);

}  // namespace attn::command
