// The forward algorithms, each in a file of its own that follows its pseudo-code.
#pragma once

#include "attn/run.hpp"
#include "cpu/attention.hpp"
#include "cpu/workers.hpp"

namespace attn::cpu {

// Each writes O and, where given, LSE of every row in use. plan says blocks, splits and rows a
// task.
void forward_standard(const Attention& a, const Plan& plan, const Outputs& outputs,
                      const Workers& workers);
void forward_flash_attention(const Attention& a, const Plan& plan, const Outputs& outputs,
                             const Workers& workers);
void forward_flash_attention_2(const Attention& a, const Plan& plan, const Outputs& outputs,
                               const Workers& workers);
void forward_flash_decoding(const Attention& a, const Plan& plan, const Outputs& outputs,
                            const Workers& workers);
void forward_memory_efficient(const Attention& a, const Plan& plan, const Outputs& outputs,
                              const Workers& workers);
// flash_attention_2 of problems with lists of keys.
void forward_key_list(const Attention& a, const Plan& plan, const Outputs& outputs,
                      const Workers& workers);

}  // namespace attn::cpu
