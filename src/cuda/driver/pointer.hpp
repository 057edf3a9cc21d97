// What the driver knows of the tensors' memory.
#pragma once

#include <cstdint>
#include <span>

#include "attn/problem.hpp"
#include "core/validate/argument_check.hpp"

namespace attn::cuda {

// Refuses tensors whose memory is not of cuda:`device`: device memory allocated there, or managed
// memory. Tensors that are not given (rank 0) or have no elements have none. Throws
// Error(invalid_argument | unavailable | device).
void check_memory(const core::ArgumentCheck& check, std::span<const core::NamedTensor> tensors,
                  int device);
void check_memory(const Problem& problem, std::span<const core::NamedTensor> tensors, int device);

// The largest power of two, up to 128, of which the address and every stride of the tensor but a
// last one of 1 are multiples, in bytes: 16 is what 16-byte loads and tensor maps need.
std::int64_t alignment_of(const Tensor& tensor);

}  // namespace attn::cuda
