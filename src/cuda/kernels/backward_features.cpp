#include "cuda/kernels/backward_features.hpp"

#include "cuda/codegen/expression_factors.hpp"

namespace attn::cuda {

BackwardFeatures backward_features(const Problem& p, const BackwardTensors& tensors) {
  BackwardFeatures f;
  f.dtype = p.dtype;
  f.head_dim = static_cast<int>(p.head_dim);
  f.head_dim_v = static_cast<int>(p.head_dim_v);
  f.packed_q = p.layout_q == Layout::packed;
  f.packed_k = p.layout_k == Layout::packed;
  f.key_list = p.key_list > 0;
  f.wide = tensors.wide;
  f.used_q = tensors.seqused_q;
  f.used_k = tensors.seqused_k;
  f.float_sums = tensors.float_sums;
  f.dropout = p.dropout.probability > 0;
  f.rng_state = f.dropout && p.dropout.rng_state;
  f.score_hides = may_hide_keys(p.score);
  f.far_rows = may_add_far(p);
  f.masked = !p.mask.empty();
  f.mask_heads = expr::depends_on(p.mask, expr::Op::head);
  f.mask_batches = expr::depends_on(p.mask, expr::Op::batch) || f.lengths_differ();
  return f;
}

}  // namespace attn::cuda
