// Q, K and V in types of their own (Problem::type_q, type_k, type_v), and their scales.
#include <algorithm>
#include <cmath>

#include "core/cached_rows.hpp"
#include "verify/data.hpp"

namespace attn::verify {

// One for all, one a head, or one a row and head. Of numbers near 1 integers up to 127 need scales
// near 1 / 32; 8-bit floats take any.
void CaseData::make_scales() {
  const auto make = [&](std::string name, CacheType type, bool of_q) -> Tensor {
    if (!core::is_scaled(type)) return {};
    std::vector<std::int64_t> shape{1};
    const std::int64_t kind = below(hints_.headscales ? 2 : 3);
    if (kind == 1) shape = {of_q ? problem.heads_q : problem.heads_k};
    const bool of_rows = kind == 2 && (of_q || problem.seqlen_prefix == 0 || problem.paged_prefix);
    if (of_rows) {
      shape = shape_like(of_q, 0);
      shape.pop_back();
    }
    const Tensor scale = input(std::move(name), DType::f32, shape, {.strided = hints_.strided});
    if (!of_rows) {
      for (std::int64_t i = 0; i < shape[0]; ++i) {
        store_element(scale, i * scale.strides[0], random_scale());
      }
    }
    return scale;
  };
  inputs.scale_k = make("scale_k", problem.type_k, false);
  inputs.scale_v = make("scale_v", problem.type_v, false);
  inputs.scale_q = make("scale_q", problem.type_q, true);
}

double CaseData::random_scale() { return 0.02 * std::exp(uniform()); }

CacheType CaseData::type_of(const Tensor& tensor) const {
  if (tensor.data == inputs.k.data || tensor.data == inputs.prefix_k.data) return problem.type_k;
  if (tensor.data == inputs.v.data || tensor.data == inputs.prefix_v.data) return problem.type_v;
  return tensor.data == inputs.q.data ? problem.type_q : CacheType::as_q;
}

std::int64_t CaseData::columns(const Tensor& tensor) const {
  const std::int64_t size = tensor.shape[static_cast<std::size_t>(tensor.rank) - 1];
  const CacheType type = type_of(tensor);
  if (!core::is_blocked(type)) return size;
  return size / core::row_bytes(type, core::kCacheBlock) * core::kCacheBlock;
}

void CaseData::store_row(const Tensor& tensor, const std::vector<std::int64_t>& index,
                         const std::vector<double>& values) {
  const auto offset = [&](const Tensor& t) {
    std::int64_t at = 0;
    for (std::size_t i = 0; i < index.size(); ++i) at += index[i] * t.strides[i];
    return at;
  };
  const CacheType type = type_of(tensor);
  if (type == CacheType::as_q) {
    for (std::size_t c = 0; c < values.size(); ++c) {
      store_element(tensor, offset(tensor) + static_cast<std::int64_t>(c), values[c]);
    }
    return;
  }
  const bool of_k = tensor.data == inputs.k.data || tensor.data == inputs.prefix_k.data;
  const bool of_q = tensor.data == inputs.q.data;
  const Tensor& scales = of_q ? inputs.scale_q : of_k ? inputs.scale_k : inputs.scale_v;
  double scale = 1;
  if (scales.rank == 1) {
    const std::int64_t head = scales.shape[0] == 1 ? 0 : index.back();
    scale = load_element(scales, head * scales.strides[0]);
  } else if (scales.given()) {
    store_element(scales, offset(scales), random_scale());
    scale = load_element(scales, offset(scales));
  }
  core::store_cached_row(static_cast<std::byte*>(tensor.data) +
                             offset(tensor) * static_cast<std::int64_t>(size_of(tensor.dtype)),
                         values.data(), static_cast<std::int64_t>(values.size()), type, scale);
}

}  // namespace attn::verify
