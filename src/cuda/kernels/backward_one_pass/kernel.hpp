// What the kernels that compute S once, backward_sm90 and backward_sm80, have in common: they add
// dQ to memory, and read LSE and D of whole blocks of queries there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "core/tensor/size.hpp"
#include "cuda/kernels/backward_kernel.hpp"

namespace attn::cuda {

// Why one that takes head sizes up to `most` does not take the problem; empty where it may.
std::string one_pass_obstacle(const Problem& problem, const BackwardTensors& tensors,
                              std::int64_t most);
// Why a shape of so many bytes of shared memory does not fit; empty where it does.
std::string shared_memory_obstacle(std::int64_t bytes, Arch arch);

// Constants that they and the kernels around them read. piece_columns: of the pieces in which dQ is
// added.
void print_one_pass(const BackwardConfig& config, int piece_columns, bool scales_late,
                    ConfigText& to);

// Bytes of the workspace: of each query of each head LSE and D, and a row of dQ in float32, for
// whole blocks of queries; for kernels that read query words 8 bytes for what each 32 of these see
// of a tile of keys, and where tiles take turns the words of schedule/dq_turns.cuh. Linear in the
// length but for these last, which are 8 bytes for 2048 queries x 128 keys.
core::Size one_pass_workspace(const Problem& problem, const BackwardConfig& config);
// dQ is first.
void place_one_pass(device::BackwardParams& to, const Problem& problem,
                    const BackwardConfig& config, std::byte* at);

}  // namespace attn::cuda
