#include "cuda/forward/parameters.hpp"

#include <algorithm>
#include <array>
#include <cstddef>

#include "cuda/heuristics/choose_forward.hpp"
#include "cuda/heuristics/forward_tiles.hpp"
#include "cuda/problem_parameters.hpp"
#include "cuda/tensor_map.hpp"

namespace attn::cuda {
namespace {

using core::divide_up;
using core::Size;

// How many rows partial results have: one for each batch entry, query head and query, in each
// split.
Size partial_rows(const Problem& p, std::int32_t num_splits) {
  return Size(num_splits) * p.batch * p.heads_q * p.seqlen_q;
}
Size partial_bytes(const Problem& p, std::int32_t num_splits) {
  if (num_splits == 1) return 0;
  return partial_rows(p, num_splits) * (p.head_dim_v + 1) * sizeof(float);
}
// Bytes of O that flash_attention keeps between blocks of keys; what follows is aligned to 8 bytes.
Size row_o_bytes(const Problem& p) {
  return core::round_up(partial_rows(p, 1) * p.head_dim_v * sizeof(float),
                        alignof(device::RowSums));
}
Size key_windows(const Problem& p, const ForwardConfig& config) {
  constexpr int kBlocks = 32;  // of a word
  return divide_up(divide_up(p.seqlen_k, config.block_n), kBlocks);
}

bool encode_q(CUtensorMap& map, const Problem& p, const ForwardConfig& config, const Tensor& q) {
  const device::Strides s = strides_of(q, p.layout_q);
  const std::int64_t group = p.heads_q / p.heads_k;
  const std::int64_t rows = config.features.packed_q ? q.shape[0] : p.seqlen_q;
  return encode_map(map, q, 5,
                    {unsigned_of(p.head_dim), unsigned_of(group), unsigned_of(rows),
                     unsigned_of(p.heads_k), unsigned_of(config.features.packed_q ? 1 : p.batch)},
                    {unsigned_of(s.head), unsigned_of(s.row), unsigned_of(s.head * group),
                     unsigned_of(config.features.packed_q ? s.row : s.batch), 0},
                    {kMapPanel, static_cast<std::uint32_t>(config.group),
                     static_cast<std::uint32_t>(64 / config.group), 1, 1});
}

// Makes the map of K or V, whose dimensions are columns, keys (of a page), heads, batch entries
// (pages).
bool encode_k(CUtensorMap& map, const Problem& p, const ForwardConfig& config, const Tensor& k,
              std::int64_t columns) {
  const device::Strides s = strides_of(k, p.layout_k);
  std::int64_t rows = p.seqlen_k, last = p.batch;
  if (config.features.packed_k) {
    rows = k.shape[0];
    last = 1;
  } else if (config.features.paged) {
    rows = p.page_size;
    last = k.shape[0];
  }
  const int box = config.features.paged ? config.page_rows : config.block_n;
  return encode_map(
      map, k, 4,
      {unsigned_of(columns), unsigned_of(rows), unsigned_of(p.heads_k), unsigned_of(last), 1},
      {unsigned_of(s.row), unsigned_of(s.head),
       unsigned_of(config.features.packed_k ? s.row : s.batch), 0, 0},
      {kMapPanel, static_cast<std::uint32_t>(box), 1, 1, 1});
}

// Makes the map of O, of which a warp writes 16 rows at once.
bool encode_o(CUtensorMap& map, const Problem& p, const ForwardConfig& config, const Tensor& o) {
  if (!config.stores_boxes()) return true;
  const device::Strides s = strides_of(o, p.layout_q);
  return encode_map(map, o, 4,
                    {unsigned_of(p.head_dim_v), unsigned_of(p.seqlen_q), unsigned_of(p.heads_q),
                     unsigned_of(p.batch), 1},
                    {unsigned_of(s.row), unsigned_of(s.head), unsigned_of(s.batch), 0, 0},
                    {kMapPanel, 16, 1, 1, 1});
}

}  // namespace

Size key_words_offset(const Problem& p, std::int32_t num_splits) {
  return core::round_up(partial_bytes(p, num_splits), alignof(device::KeyWord));
}

Size num_key_words(const Problem& p, const ForwardConfig& config) {
  if (!config.classified) return 0;
  const Size batches = config.features.mask_batches ? p.batch : 1;
  const std::int64_t heads = config.features.mask_heads ? p.heads_q / config.group : 1;
  return batches * heads * m_blocks(p, config) * key_windows(p, config) * config.parts();
}

Size workspace_bytes(const Problem& p, Arch arch, std::int32_t num_splits,
                     std::string_view kernel) {
  Size words = 0;
  for (const ForwardConfig& config : possible_forwards(p, arch, num_splits, kernel)) {
    if (config.kernel == ForwardKernel::flash_attention) {
      return row_o_bytes(p) + partial_rows(p, 1) * sizeof(device::RowSums);
    }
    if (config.kernel == ForwardKernel::standard) {
      return partial_rows(p, 1) * p.seqlen_k * sizeof(float);
    }
    words = std::max(words, num_key_words(p, config));
  }
  if (words == 0) return partial_bytes(p, num_splits);
  return key_words_offset(p, num_splits) + words * sizeof(device::KeyWord);
}

Size most_blocks(const Problem& p, Arch arch, std::int32_t num_splits, std::string_view kernel) {
  Size most = num_splits > 1 ? partial_rows(p, 1) : 0;  // more than the blocks of combine
  for (const ForwardConfig& config : possible_forwards(p, arch, num_splits, kernel)) {
    most = std::max({most, num_tiles(p, config, num_splits),
                     divide_up(num_key_words(p, config), config.parts())});
  }
  return most;
}

device::ForwardParams forward_parameters(const Problem& p, const ForwardConfig& config,
                                         std::int32_t num_splits) {
  device::ForwardParams out{};
  fill_problem_parameters(out, p);
  if (config.classified) out.key_windows = static_cast<int>(key_windows(p, config).value());
  out.page_size = static_cast<int>(p.page_size);
  out.num_splits = num_splits;
  out.counter = device::kNoCounter;
  out.blocks_per_split =
      static_cast<int>(divide_up(divide_up(p.seqlen_k, config.block_n), num_splits).value());
  out.m_blocks = static_cast<int>(m_blocks(p, config).value());
  out.heads_at_once = heads_at_once(p, config);
  out.num_tiles = static_cast<int>(num_tiles(p, config, num_splits).value());
  return out;
}

void fill_forward_tensors(device::ForwardParams& to, const Problem& p, const ForwardConfig& config,
                          const Inputs& inputs, const Outputs& outputs, const Tensor& workspace) {
  fill_tensors(to, p, inputs, outputs);
  to.o = outputs.o.data;
  if (outputs.lse.given()) to.lse = static_cast<float*>(outputs.lse.data);
  if (inputs.page_table.given()) {
    to.page_table = static_cast<const int*>(inputs.page_table.data);
    to.page_table_stride = inputs.page_table.strides[0];
  }
  if (config.features.paged) to.num_pages = static_cast<int>(inputs.k.shape[0]);
  if (to.num_splits > 1) {
    to.partial_o = static_cast<float*>(workspace.data);
    to.partial_lse = to.partial_o + (partial_rows(p, to.num_splits) * p.head_dim_v).value();
  }
  if (config.kernel == ForwardKernel::standard) {
    to.scores = static_cast<float*>(workspace.data);
  } else if (config.kernel == ForwardKernel::flash_attention) {
    to.row_o = static_cast<float*>(workspace.data);
    to.row_sums = reinterpret_cast<device::RowSums*>(static_cast<std::byte*>(workspace.data) +
                                                     row_o_bytes(p).value());
  }
  if (num_key_words(p, config) > 0) {
    to.key_words = reinterpret_cast<device::KeyWord*>(static_cast<std::byte*>(workspace.data) +
                                                      key_words_offset(p, to.num_splits).value());
  }
}

std::optional<ForwardMaps> forward_maps(const Problem& p, const ForwardConfig& config,
                                        const Inputs& inputs, const Outputs& outputs) {
  ForwardMaps maps{};
  if (encode_q(maps.q, p, config, inputs.q) && encode_k(maps.k, p, config, inputs.k, p.head_dim) &&
      encode_k(maps.v, p, config, inputs.v, p.head_dim_v) &&
      encode_o(maps.o, p, config, outputs.o)) {
    return maps;
  }
  return std::nullopt;
}

}  // namespace attn::cuda
