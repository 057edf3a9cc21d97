// What a problem and the tensors of a call ask of a forward kernel, whatever its tile shape.
#pragma once

#include <cstdint>

#include "attn/problem.hpp"
#include "attn/tensor.hpp"

namespace attn::cuda {

// What the tensors of a call add to the problem.
struct ForwardTensors {
  bool seqused_q = false, seqused_k = false;
  bool whole_k = false;  // sequences in pages have seqlen_k keys, without seqused_k
  // Addresses and strides of Q, K, V and O are multiples of 16 bytes.
  bool aligned = true;
  // Q, K and V in types of their own do not count there; theirs are multiples of cache_alignment().
  bool cache_aligned = true;
  bool scale_q = false, scale_k = false, scale_v = false;  // given
  // Where Q, K and V are 8-bit floats: some scale differs between rows of a sequence; LSE is asked
  // for.
  bool row_scales = false, lse = false;
  bool max_logit = false;  // the largest score of each head is asked for
  bool v_in_k = false;     // V is the first columns of K, in memory: same address and strides
  // A packed Q has few rows for its sequences and the longest of them: their numbers of queries
  // differ much (plan/decoding_part.hpp).
  bool uneven_q = false;
  bool mapped = true;  // the driver makes tensor maps of them, which forward_sm90 needs
  unsigned wide = 0;   // bits of device::WideTensor
  bool operator==(const ForwardTensors&) const = default;
};

struct ForwardFeatures {
  DType dtype = DType::bf16;
  DType type_o = DType::bf16;  // of O
  int head_dim = 0, head_dim_v = 0;
  bool packed_q = false, packed_k = false, used_q = false, used_k = false, paged = false;
  int page_size = 0;      // when paged
  bool key_list = false;  // keys by list
  unsigned wide = 0;      // bits of device::WideTensor
  // How Q, K and V are stored, never as_q; cached: K or V in a type of its own.
  CacheType type_q = CacheType::bf16, type_k = CacheType::bf16, type_v = CacheType::bf16;
  bool cached = false;
  bool scale_q = false, scale_k = false, scale_v = false;  // whether there are scales of Inputs
  bool sink = false, dropout = false;
  bool dropout_flipped = false;  // core::DropoutRule::flipped
  bool rng_state = false;        // seed and offset of dropout are read by the kernel
  bool vector_o = true;          // O may be written 16 bytes at a time
  bool max_logit = false;        // ForwardTensors::max_logit
  // What the mask says of blocks of keys differs between heads, and between batch entries.
  bool mask_heads = false, mask_batches = false;
  // The mask reads buffers for more than the last keys: what these hold says which blocks of keys
  // are worth reading, so that a kernel looks at them ahead (ForwardConfig::classified).
  bool mask_scans_buffers = false;
  // The mask is not empty, or a score may be -inf: rows of O that are not finite are looked at
  // again (device/softmax/visible_row.cuh).
  bool hides_keys = false;
};

// Whether rows of one sequence have other numbers of keys than those of another.
inline bool has_own_lengths(const ForwardFeatures& f) noexcept {
  return (f.used_k || f.packed_k) && !f.key_list;
}

// To which Q, K or V of a type of its own are aligned, at least: the largest power of two, up to
// 16, that divides the bytes of a row.
std::int64_t cache_alignment(CacheType type, std::int64_t dim);

ForwardFeatures forward_features(const Problem& problem, const ForwardTensors& tensors);

}  // namespace attn::cuda
