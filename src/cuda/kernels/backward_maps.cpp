#include "cuda/kernels/backward_maps.hpp"

#include "cuda/problem_parameters.hpp"
#include "cuda/tensor_map.hpp"

namespace attn::cuda {
namespace {

bool encode_rows(CUtensorMap& map, const Tensor& t, Layout layout, const Problem& p,
                 std::int64_t rows, std::int64_t heads, std::int64_t columns, int box) {
  const device::Strides s = strides_of(t, layout);
  const bool packed = layout == Layout::packed;
  return encode_map(
      map, t, 4,
      {unsigned_of(columns), unsigned_of(packed ? t.shape[0] : rows), unsigned_of(heads),
       unsigned_of(packed ? 1 : p.batch), 1},
      {unsigned_of(s.row), unsigned_of(s.head), unsigned_of(packed ? s.row : s.batch), 0, 0},
      {kMapPanel, static_cast<std::uint32_t>(box), 1, 1, 1});
}

}  // namespace

std::optional<BackwardMaps> backward_maps(const Problem& p, const Inputs& inputs, const Tensor& d_o,
                                          int query_rows, int key_rows) {
  BackwardMaps maps{};
  const auto queries = [&](CUtensorMap& map, const Tensor& t, std::int64_t columns) {
    return encode_rows(map, t, p.layout_q, p, p.seqlen_q, p.heads_q, columns, query_rows);
  };
  const auto keys = [&](CUtensorMap& map, const Tensor& t, std::int64_t columns) {
    return encode_rows(map, t, p.layout_k, p, p.seqlen_k, p.heads_k, columns, key_rows);
  };
  if (queries(maps.q, inputs.q, p.head_dim) && queries(maps.d_o, d_o, p.head_dim_v) &&
      keys(maps.k, inputs.k, p.head_dim) && keys(maps.v, inputs.v, p.head_dim_v)) {
    return maps;
  }
  return std::nullopt;
}

}  // namespace attn::cuda
