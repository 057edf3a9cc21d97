// Appending to caches.
#include "attn/append_kv.hpp"

#include "attn/attn.h"
#include "c/boundary.hpp"
#include "c/convert.hpp"

using attn::c::needed;
using attn::c::tensor_of;

namespace {

attn::AppendInputs append_inputs_of(const attn_append_inputs* given) {
  const attn_append_inputs from = attn::c::taken("inputs", &needed("inputs", given));
  return {.q = tensor_of("q", from.q),
          .k = tensor_of("k", from.k),
          .v = tensor_of("v", from.v),
          .cu_seqlens = tensor_of("cu_seqlens", from.cu_seqlens),
          .seqused = tensor_of("seqused", from.seqused),
          .cache_seqlens = tensor_of("cache_seqlens", from.cache_seqlens),
          .positions = tensor_of("positions", from.positions),
          .rope_positions = tensor_of("rope_positions", from.rope_positions),
          .page_table = tensor_of("page_table", from.page_table),
          .inv_freq = tensor_of("inv_freq", from.inv_freq),
          .cos = tensor_of("cos", from.cos),
          .sin = tensor_of("sin", from.sin),
          .norm_weight_q = tensor_of("norm_weight_q", from.norm_weight_q),
          .norm_weight_k = tensor_of("norm_weight_k", from.norm_weight_k),
          .scale_k = tensor_of("scale_k", from.scale_k),
          .scale_v = tensor_of("scale_v", from.scale_v)};
}

attn::AppendOutputs append_outputs_of(const attn_append_outputs* given) {
  const attn_append_outputs from = attn::c::taken("outputs", &needed("outputs", given));
  return {.q = tensor_of("q of the outputs", from.q),
          .k = tensor_of("k of the outputs", from.k),
          .v = tensor_of("v of the outputs", from.v),
          .scale_k = tensor_of("scale_k of the outputs", from.scale_k),
          .scale_v = tensor_of("scale_v of the outputs", from.scale_v)};
}

attn::AppendProblem append_problem_of(const attn_append_options* given) {
  const attn_append_options from = attn::c::taken("options", given);
  attn::AppendProblem problem;
  if (from.type_k != nullptr) problem.type_k = attn::parse_cache_type(from.type_k);
  if (from.type_v != nullptr) problem.type_v = attn::parse_cache_type(from.type_v);
  if (from.rope_pairs != nullptr) problem.rope_pairs = attn::parse_rope_pairs(from.rope_pairs);
  if (from.backend != nullptr) problem.backend = attn::parse_backend(from.backend);
  if (from.norm_eps != 0) problem.norm_eps = from.norm_eps;
  problem.ring = attn::c::flag("ring", from.ring);
  problem.norm = attn::c::flag("norm", from.norm);
  problem.hadamard = attn::c::flag("hadamard", from.hadamard);
  problem.hadamard_v = attn::c::flag("hadamard_v", from.hadamard_v);
  return problem;
}

}  // namespace

attn_status attn_append_kv(const attn_append_inputs* inputs, const attn_append_outputs* outputs,
                           const attn_append_options* options, const attn_context* context) {
  return attn::c::guarded([&] {
    const attn::AppendInputs from = append_inputs_of(inputs);
    const attn::AppendOutputs to = append_outputs_of(outputs);
    attn::append_kv(append_problem_of(options), from, to, attn::c::context_of(context));
  });
}
