// The lines of `attn matmul` on a GPU, of one problem.
#pragma once

#include <vector>

#include "command/cuda_ceilings.hpp"
#include "command/matmul_row.hpp"

namespace attn::command {

inline constexpr const char* kCublas = "cublas";  // MatmulRow::implementation of the peer

// Checks each row that is not refused, then times them in rounds, in an order of chance and after a
// rest, so that no one has the card's best moment: calls in a graph, inputs where they were left.
// A call of more than 0.1 s is timed once. cuBLAS is refused where it is not installed.
void measure_matmuls_on_gpu(std::vector<MatmulRow>& rows, verify::MatmulData& data, Device device,
                            const Context& context, const TimingRule& rule, CudaCeilings& ceilings);

}  // namespace attn::command
