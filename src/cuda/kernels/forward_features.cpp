#include "cuda/kernels/forward_features.hpp"

#include "core/philox.hpp"
#include "cuda/codegen/expression_factors.hpp"
#include "cuda/codegen/expression_text.hpp"

namespace attn::cuda {

ForwardFeatures forward_features(const Problem& p, const ForwardTensors& tensors) {
  ForwardFeatures f;
  f.dtype = p.dtype;
  f.head_dim = static_cast<int>(p.head_dim);
  f.head_dim_v = static_cast<int>(p.head_dim_v);
  f.packed_q = p.layout_q == Layout::packed;
  f.packed_k = p.layout_k == Layout::packed;
  f.paged = p.layout_k == Layout::paged;
  f.page_size = f.paged ? static_cast<int>(p.page_size) : 0;
  f.used_q = tensors.seqused_q;
  f.used_k = tensors.seqused_k || f.paged;
  f.sink = p.sink;
  f.dropout = p.dropout.probability > 0;
  f.dropout_flipped = core::dropout_rule(core::dropout_threshold(p.dropout.probability)).flipped;
  f.rng_state = f.dropout && p.dropout.rng_state;
  f.vector_o = tensors.aligned;
  f.mask_heads = depends_on(p.mask, expr::Op::head);
  f.mask_batches =
      depends_on(p.mask, expr::Op::batch) || f.packed_q || f.packed_k || f.used_q || f.used_k;
  f.mask_reads_buffers = mask_reads_buffers(p.mask);
  f.hides_keys = !p.mask.empty() || may_hide_keys(p.score);
  return f;
}

}  // namespace attn::cuda
