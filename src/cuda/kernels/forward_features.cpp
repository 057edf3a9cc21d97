#include "cuda/kernels/forward_features.hpp"

#include <algorithm>
#include <cstdint>

#include "core/cache_type.hpp"
#include "core/philox.hpp"
#include "cuda/codegen/expression_factors.hpp"
#include "cuda/codegen/mask_buffers.hpp"

namespace attn::cuda {
namespace {

// Where buffers matter for the last eighth of the keys alone, or for as many of them as there are
// draft tokens (attn::tree_mask), at most a tile of 128, looking at their elements could save no
// more than reading these keys, and would take a launch before the kernel. Lengths may differ from
// call to call, so those of the problem stand for all: the answer changes no result.
bool mask_scans_buffers(const Problem& p) {
  constexpr std::int64_t kTile = 128;
  const std::int64_t last = std::max(p.seqlen_k / 8, std::min(p.seqlen_q, kTile));
  expr::Tile tile{.query_max = static_cast<std::int32_t>(p.seqlen_q - 1),
                  .key_max = static_cast<std::int32_t>(p.seqlen_k - 1),
                  .head_max = static_cast<std::int32_t>(p.heads_q - 1),
                  .seqlen_q = static_cast<std::int32_t>(p.seqlen_q),
                  .seqlen_k = static_cast<std::int32_t>(p.seqlen_k)};
  if (2 * last < p.seqlen_k) tile.key_max -= static_cast<std::int32_t>(last);
  return buffers_matter(p.mask, tile);
}

}  // namespace

std::int64_t cache_alignment(CacheType type, std::int64_t dim) {
  std::int64_t most = 16;
  while (core::row_bytes(type, dim) % most != 0) most /= 2;
  return most;
}

ForwardFeatures forward_features(const Problem& p, const ForwardTensors& tensors) {
  ForwardFeatures f;
  f.dtype = p.dtype;
  f.type_o = core::type_of_o(p);
  f.head_dim = static_cast<int>(p.head_dim);
  f.head_dim_v = static_cast<int>(p.head_dim_v);
  f.type_q = core::type_of_q(p);
  f.type_k = core::type_of_k(p);
  f.type_v = core::type_of_v(p);
  f.cached = core::has_own_types(p);
  f.scale_q = tensors.scale_q;
  f.scale_k = tensors.scale_k;
  f.scale_v = tensors.scale_v;
  f.packed_q = p.layout_q == Layout::packed;
  f.packed_k = p.layout_k == Layout::packed;
  f.paged = p.layout_k == Layout::paged;
  f.page_size = f.paged ? static_cast<int>(p.page_size) : 0;
  f.key_list = p.key_list > 0;
  f.wide = tensors.wide;
  f.used_q = tensors.seqused_q;
  f.used_k = tensors.seqused_k || (f.paged && !tensors.whole_k);
  f.sink = p.sink;
  f.dropout = p.dropout.probability > 0;
  f.dropout_flipped = core::dropout_rule(core::dropout_threshold(p.dropout.probability)).flipped;
  f.rng_state = f.dropout && p.dropout.rng_state;
  f.vector_o = tensors.aligned;
  f.max_logit = tensors.max_logit;
  f.mask_heads = depends_on(p.mask, expr::Op::head);
  f.mask_batches =
      depends_on(p.mask, expr::Op::batch) || f.packed_q || f.packed_k || f.used_q || f.used_k;
  f.mask_scans_buffers = !f.key_list && mask_scans_buffers(p);
  f.hides_keys = !p.mask.empty() || may_hide_keys(p.score);
  return f;
}

}  // namespace attn::cuda
