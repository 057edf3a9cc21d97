#include "cuda/forward/parameters.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <tuple>

#include "core/cache_type.hpp"
#include "cuda/driver/pointer.hpp"
#include "cuda/kernels/forward_tiles.hpp"
#include "cuda/plan/choose_forward.hpp"
#include "cuda/plan/splits.hpp"
#include "cuda/plan/tile_order.hpp"
#include "cuda/problem_parameters.hpp"

namespace attn::cuda {
namespace {

using core::divide_up;
using core::Size;

// How many rows partial results have: one for each batch entry, query head and query, in each
// split.
Size partial_rows(const Problem& p, std::int32_t num_splits) { return all_rows(p) * num_splits; }
Size partial_bytes(const Problem& p, KeySplits splits) {
  if (!splits.apart()) return 0;
  const Size rows = partial_rows(p, splits.count);
  return partial_lse_offset(rows, p.head_dim_v) + rows * sizeof(device::PartialLse) + sizeof(int);
}
Size key_windows(const Problem& p, const ForwardConfig& config) {
  // A list of blocks: how many pairs of them there are, and the pairs.
  if (const int keys = config.tiling.gathered_keys; keys > 0) {
    return divide_up(p.seqlen_k, 2 * keys) + 1;
  }
  constexpr int kBlocks = 32;  // of a word
  return divide_up(divide_up(p.seqlen_k, config.tiling.keys), kBlocks);
}

// Whether some scale is not one of a batch entry and head.
bool has_row_scales(const Problem& p, const Inputs& inputs) {
  const auto differs = [](const Tensor& scale, Layout layout) {
    if (!scale.given() || scale.rank == 1) return false;
    const device::Strides s = strides_of(scale, layout);
    return s.row != 0 || (layout == Layout::paged && s.batch != 0);
  };
  return differs(inputs.scale_q, p.layout_q) || differs(inputs.scale_k, p.layout_k) ||
         differs(inputs.scale_v, p.layout_k);
}

}  // namespace

Size partial_lse_offset(Size rows, std::int64_t head_dim_v) {
  return core::round_up(rows * head_dim_v * sizeof(float), alignof(device::PartialLse));
}

Size key_words_offset(const Problem& p, KeySplits splits) {
  return core::round_up(partial_bytes(p, splits), alignof(device::KeyWord));
}

Size num_key_words(const Problem& p, const ForwardConfig& config) {
  if (!config.classified) return 0;
  const Size batches = config.features.mask_batches ? p.batch : 1;
  const std::int64_t heads = config.features.mask_heads ? p.heads_q / config.tiling.group : 1;
  const int parts = config.tiling.gathered_keys > 0 ? 1 : config.tiling.parts;
  return batches * heads * m_blocks(p, config) * key_windows(p, config) * parts;
}

Size workspace_bytes(const Problem& p, Arch arch, KeySplits splits, std::string_view kernel) {
  Size words = 0;
  for (const ForwardConfig& config : possible_forwards(p, arch, splits, kernel)) {
    if (config.kernel->workspace != nullptr) return config.kernel->workspace(p);
    words = std::max(words, num_key_words(p, config));
  }
  if (words == 0) return partial_bytes(p, splits);
  return key_words_offset(p, splits) + words * sizeof(device::KeyWord);
}

Size decoding_offset(Size workspace) {
  constexpr std::int64_t kAlignment = 256;
  return core::round_up(workspace, kAlignment);
}

Size with_decoding(Size workspace, const DecodingPart& part) {
  const Size bytes = partial_bytes(part.problem, part.splits);
  return !part.splits.apart() ? workspace : decoding_offset(workspace) + bytes;
}

Size most_blocks(const DecodingPart& part) { return all_rows(part.problem); }

Size most_blocks(const Problem& p, Arch arch, KeySplits splits, std::string_view kernel) {
  Size most = splits.apart() ? partial_rows(p, 1) : 0;  // more than the blocks of combine
  for (const ForwardConfig& config : possible_forwards(p, arch, splits, kernel)) {
    most = std::max({most, num_tiles(p, config, splits.count),
                     divide_up(num_key_words(p, config), config.tiling.parts)});
  }
  return most;
}

device::ForwardParams forward_parameters(const Problem& p, const ForwardConfig& config,
                                         KeySplits splits) {
  device::ForwardParams out{};
  fill_problem_parameters(out, p);
  if (config.classified) out.key_windows = static_cast<int>(key_windows(p, config).value());
  out.page_size = static_cast<int>(p.page_size);
  out.list_length = static_cast<int>(p.key_list);
  out.num_splits = splits.count;
  out.counter = device::kNoCounter;
  out.least_blocks = static_cast<int>(least_blocks(p, config, splits));
  out.m_blocks = static_cast<int>(m_blocks(p, config).value());
  out.heads_at_once = heads_at_once(p, config);
  out.num_tiles = static_cast<int>(num_tiles(p, config, splits.count).value());
  return out;
}

void describe_operands(ForwardTensors& to, const Problem& p, const Inputs& inputs, const Tensor& k,
                       const Tensor& v) {
  if (core::has_own_type_q(p)) {
    // Rows of a copy follow each other.
    to.aligned = p.head_dim * static_cast<std::int64_t>(size_of(p.dtype)) % 16 == 0;
    to.cache_aligned = alignment_of(inputs.q) % cache_alignment(p.type_q, p.head_dim) == 0;
  } else {
    to.aligned = alignment_of(inputs.q) % 16 == 0;
  }
  to.scale_q = inputs.scale_q.given();
  to.scale_k = inputs.scale_k.given();
  to.scale_v = inputs.scale_v.given();
  to.row_scales = core::is_float8(p) && has_row_scales(p, inputs);
  if (core::has_own_types(p)) {
    to.cache_aligned = to.cache_aligned &&
                       alignment_of(k) % cache_alignment(core::type_of_k(p), p.head_dim) == 0 &&
                       alignment_of(v) % cache_alignment(core::type_of_v(p), p.head_dim_v) == 0;
    return;
  }
  to.aligned = to.aligned && alignment_of(k) % 16 == 0 && alignment_of(v) % 16 == 0;
  // As of multi-head latent attention: the address of each key's row is that of its row of V.
  to.v_in_k = k.data == v.data && k.strides == v.strides && k.rank == v.rank;
}

void fill_scales(device::CachedForwardParams& to, const Problem& p, const Inputs& inputs) {
  for (const auto& [scale, layout, data, by] :
       {std::tuple{&inputs.scale_q, p.layout_q, &to.scale_q, &to.scale_q_strides},
        std::tuple{&inputs.scale_k, p.layout_k, &to.scale_k, &to.scale_k_strides},
        std::tuple{&inputs.scale_v, p.layout_k, &to.scale_v, &to.scale_v_strides}}) {
    if (!scale->given()) continue;
    *data = static_cast<const float*>(scale->data);
    *by = scale->rank == 1 ? device::Strides{0, 0, scale->shape[0] == 1 ? 0 : scale->strides[0]}
                           : strides_of(*scale, layout);
  }
}

void fill_forward_tensors(device::ForwardParams& to, const Problem& p, const ForwardConfig& config,
                          const Inputs& inputs, const Outputs& outputs, void* workspace) {
  fill_tensors(to, p, inputs, outputs);
  to.o = outputs.o.data;
  if (outputs.lse.given()) to.lse = static_cast<float*>(outputs.lse.data);
  if (config.features.max_logit) {
    to.max_logit = static_cast<float*>(outputs.max_logit.data);
    to.max_logit_stride = outputs.max_logit.strides[0];
  }
  if (inputs.page_table.given()) {
    to.page_table = inputs.page_table.data;
    to.page_table_stride = inputs.page_table.strides[0];
  }
  if (inputs.key_list.given()) {
    to.key_lists = inputs.key_list.data;
    to.key_list_strides = key_list_strides_of(inputs.key_list, p.layout_q);
  }
  if (config.features.paged) to.num_pages = static_cast<int>(inputs.k.shape[0]);
  if (config.splits) {
    auto* const partial = static_cast<std::byte*>(workspace);
    to.partial_o = static_cast<float*>(workspace);
    // A pass over a part of the sequences has fewer queries than the problem.
    const Size rows = Size(p.batch) * p.heads_q * to.seqlen_q * to.num_splits;
    to.partial_lse = reinterpret_cast<device::PartialLse*>(
        partial + partial_lse_offset(rows, p.head_dim_v).value());
    if (config.fills_grid) {
      to.piece_blocks = reinterpret_cast<int*>(to.partial_lse + rows.value());
    }
  }
  if (config.kernel->place != nullptr) config.kernel->place(to, p, workspace);
  if (num_key_words(p, config) > 0) {
    KeySplits splits = to.num_splits;
    splits.keeps_parts = config.keeps_parts;
    to.key_words = reinterpret_cast<device::KeyWord*>(static_cast<std::byte*>(workspace) +
                                                      key_words_offset(p, splits).value());
  }
}

}  // namespace attn::cuda
