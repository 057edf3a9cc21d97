// Q, K and V of types of their own, converted to the type of O before a kernel that multiplies
// operands of that type: each element is read by many tiles there. Q is converted wherever it is
// not taken as it is; K and V before the kernels that take most rows a second.
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

// What a run converts first.
struct Copies {
  bool q = false, keys = false;
  bool any() const noexcept { return q || keys; }
};
// kernel: that is asked for by name, or empty. tensors: of a call; scales of rows and addresses
// that tensor cores do not take are converted where others are not.
Copies choose_copies(const Problem& problem, Arch arch, std::string_view kernel,
                     const ForwardTensors& tensors = {});
// The tensors for which most is converted.
inline constexpr ForwardTensors kTensorsToCopy{.cache_aligned = false, .row_scales = true};
// The problem over the copies: what is copied is of the type of O; keys are dense where they were
// paged.
Problem over_copies(const Problem& problem, Copies copies);
// Bytes of the copies, of all sequences at their longest.
core::Size copied_bytes(const Problem& problem, Copies copies);

Source copy_source(const Problem& problem, const ForwardTensors& tensors, Copies copies);

// Where the copies are, as over_copies() has them; no scales of what is copied. workspace:
// copied_bytes(), aligned to 128 bytes.
Inputs copied_inputs(const Problem& problem, const Inputs& inputs, Copies copies,
                     std::byte* workspace);
// Fills the copies. copied: what copied_inputs() gave.
void launch_copy(const Kernel& kernel, const Problem& problem, const Inputs& inputs,
                 const Inputs& copied, Copies copies, void* stream);

}  // namespace attn::cuda
