// The backward algorithms, each in a file of its own that follows its pseudo-code.
#pragma once

#include "attn/run.hpp"
#include "core/tensor/size.hpp"
#include "cpu/attention.hpp"
#include "cpu/backward/gradient_context.hpp"

namespace attn::cpu {

// Each writes the gradients of Q, K, V that are given.
void backward_standard(const Attention& a, const GradientContext& g, const Gradients& gradients,
                       const Workers& workers);
void backward_flash(const Attention& a, const GradientContext& g, const Plan& plan,
                    const Gradients& gradients, const Workers& workers);
// With lists of keys.
void backward_key_list(const Attention& a, const GradientContext& g, const Plan& plan,
                       const Gradients& gradients, const Workers& workers);
// Bytes of its workspace, beside those of the context, at most.
core::Size key_list_gradient_bytes(const Plan& plan, const GradientTiles& tiles);
// What a buffer takes beside its loads and sums while its gradient is computed.
inline constexpr std::size_t kBufferGradientBytes = 128;
// Gradients of sink and of named buffers, common to both.
void backward_sink(const Attention& a, const GradientContext& g, const Gradients& gradients);
void backward_buffers(const Attention& a, const GradientContext& g, const Gradients& gradients,
                      const Workers& workers);

}  // namespace attn::cpu
