// K and V of types of their own, converted to the type of Q before a kernel for many rows of Q:
// each element is read by many tiles there, and the kernels that take most rows a second read
// operands as tensor cores do.
#pragma once

#include <cstdint>
#include <string_view>

#include "attn/run.hpp"
#include "core/tensor/size.hpp"
#include "cuda/device/params.cuh"
#include "cuda/jit/compile.hpp"
#include "cuda/jit/kernel.hpp"
#include "cuda/kernels/forward_features.hpp"

namespace attn::cuda {

// Whether a run converts all keys first. kernel: that is asked for by name, or empty.
bool copies_keys(const Problem& problem, Arch arch, std::string_view kernel);
// The problem over the copies: K and V of the type of Q, dense where they were paged.
Problem over_copies(const Problem& problem);
// Bytes of the copies of K and of V, of all sequences at their longest.
core::Size copied_bytes(const Problem& problem);

Source copy_keys_source(const Problem& problem, const ForwardTensors& tensors);

// Where the copies are, as over_copies() has them; no scales. workspace: copied_bytes(), aligned to
// 128 bytes.
Inputs copied_inputs(const Problem& problem, const Inputs& inputs, std::byte* workspace);
// Fills the copies. copies: what copied_inputs() gave.
void launch_copy(const Kernel& kernel, const Problem& problem, const Inputs& inputs,
                 const Inputs& copies, void* stream);

}  // namespace attn::cuda
