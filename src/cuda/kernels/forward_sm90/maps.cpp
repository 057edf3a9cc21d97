// Tensor maps of forward_sm90.
#include "cuda/kernels/forward_sm90/kernel.hpp"
#include "cuda/problem_parameters.hpp"
#include "cuda/tensor_map.hpp"

namespace attn::cuda {

bool encode_q(CUtensorMap& map, const Problem& p, const ForwardConfig& config, const Tensor& q,
              std::uint32_t panel) {
  const device::Strides s = strides_of(q, p.layout_q);
  const std::int64_t group = p.heads_q / p.heads_k;
  const std::int64_t rows = config.features.packed_q ? q.shape[0] : p.seqlen_q;
  return encode_map(map, q, 5,
                    {unsigned_of(p.head_dim), unsigned_of(group), unsigned_of(rows),
                     unsigned_of(p.heads_k), unsigned_of(config.features.packed_q ? 1 : p.batch)},
                    {unsigned_of(s.head), unsigned_of(s.row), unsigned_of(s.head * group),
                     unsigned_of(config.features.packed_q ? s.row : s.batch), 0},
                    {panel, static_cast<std::uint32_t>(config.tiling.group),
                     static_cast<std::uint32_t>(64 / config.tiling.group), 1, 1});
}

// Makes the map of K or V, whose dimensions are columns, keys (of a page), heads, batch entries
// (pages).
bool encode_k(CUtensorMap& map, const Problem& p, const ForwardConfig& config, const Tensor& k,
              std::int64_t columns, int box, std::uint32_t panel) {
  const device::Strides s = strides_of(k, p.layout_k);
  std::int64_t rows = p.seqlen_k, last = p.batch;
  if (config.features.packed_k) {
    rows = k.shape[0];
    last = 1;
  } else if (config.features.paged) {
    rows = p.page_size;
    last = k.shape[0];
  }
  return encode_map(
      map, k, 4,
      {unsigned_of(columns), unsigned_of(rows), unsigned_of(p.heads_k), unsigned_of(last), 1},
      {unsigned_of(s.row), unsigned_of(s.head),
       unsigned_of(config.features.packed_k ? s.row : s.batch), 0, 0},
      {panel, static_cast<std::uint32_t>(box), 1, 1, 1});
}

bool encode_o(CUtensorMap& map, const Problem& p, const Tensor& o) {
  const device::Strides s = strides_of(o, p.layout_q);
  return encode_map(map, o, 4,
                    {unsigned_of(p.head_dim_v), unsigned_of(p.seqlen_q), unsigned_of(p.heads_q),
                     unsigned_of(p.batch), 1},
                    {unsigned_of(s.row), unsigned_of(s.head), unsigned_of(s.batch), 0, 0},
                    {kMapPanel, 16, 1, 1, 1});
}

std::optional<ForwardMaps> ForwardSm90::maps(const ForwardConfig& config, const Problem& p,
                                             const Inputs& inputs, const Outputs& outputs) const {
  const int box = config.features.paged ? page_rows
                  : gathers             ? config.tiling.gathered_keys
                                        : config.tiling.keys;
  ForwardMaps maps{};
  if (encode_q(maps.q, p, config, inputs.q, kMapPanel) &&
      encode_k(maps.k, p, config, inputs.k, p.head_dim, box, kMapPanel) &&
      encode_k(maps.v, p, config, inputs.v, p.head_dim_v, box, kMapPanel) &&
      (!stores_boxes || encode_o(maps.o, p, outputs.o))) {
    return maps;
  }
  return std::nullopt;
}

}  // namespace attn::cuda
