// GGML_OP_FLASH_ATTN_EXT in terms of attn, without ggml.
#pragma once

#include "attn/attn.hpp"

namespace attn_ggml {

// O <- softmax(c tanh(scale q.k / c) + slope[head] mask) V, with a logit `sink` of each head in the
// denominator where it is given; c is softcap, and the score stays as it is where c is 0. slope is
// 1 where max_bias is 0, else that of ALiBi: with n the largest power of two up to the heads, head
// h has 2^(-max_bias (h + 1) / n) below n and 2^(-max_bias (2 (h - n) + 1) / (2 n)) from n on.
struct Attention {
  attn::Tensor q{};  // f32 [batch, rows, heads, head_dim]
  attn::Tensor k{};  // [batch, keys, heads_k, row_size()] as attn::Inputs::k
  attn::Tensor v{};  // likewise, with head_dim_v
  attn::CacheType type_k = attn::CacheType::f16;
  attn::CacheType type_v = attn::CacheType::f16;
  attn::Tensor o{};     // f32 [batch, rows, heads, head_dim_v]
  attn::Tensor sink{};  // f32 [heads]; optional
  // f16 [batch_m, heads_m, rows, keys], batch_m dividing batch and heads_m heads; optional. Entry b
  // of the batch reads entry b % batch_m of it, heads likewise.
  attn::Tensor mask{};
  float scale = 1;
  float max_bias = 0;  // 0, or above with a mask
  float softcap = 0;   // 0 or above
};

// All memory is of the CPU. Computes in f32 whatever the types of K and V. Throws attn::Error as
// attn::forward. Thread-safe.
void run(const Attention& attention, const attn::Context& context);

}  // namespace attn_ggml
