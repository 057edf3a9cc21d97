#include "operation.hpp"

#include <cmath>
#include <cstring>
#include <optional>

namespace attn_ggml {
namespace {

using attn::CacheType;
using attn::Tensor;

std::optional<CacheType> cache_type(ggml_type type) {
  // ggml has types that attn lacks, and every release has more.
  if (type == GGML_TYPE_F32) return CacheType::f32;
  if (type == GGML_TYPE_F16) return CacheType::f16;
  if (type == GGML_TYPE_BF16) return CacheType::bf16;
  if (type == GGML_TYPE_Q8_0) return CacheType::q8_0;
  if (type == GGML_TYPE_Q4_0) return CacheType::q4_0;
  return std::nullopt;
}

// ggml's dimensions are [dim, rows, heads, batch], attn's [batch, rows, heads, dim] or, of a mask,
// [batch, heads, rows, keys]. `axes` says which of ggml's each of attn's is; the last one is dense.
Tensor view(const ggml_tensor& t, attn::DType dtype, std::array<int, 4> axes,
            std::int64_t row_size) {
  Tensor result{.data = t.data, .dtype = dtype, .rank = 4};
  for (std::size_t i = 0; i < 4; ++i) {
    result.shape[i] = t.ne[axes[i]];
    result.strides[i] = static_cast<std::int64_t>(t.nb[axes[i]] / attn::size_of(dtype));
  }
  result.shape[3] = row_size;
  result.strides[3] = 1;
  return result;
}

constexpr std::array<int, 4> kRowsFirst{3, 1, 2, 0};
constexpr std::array<int, 4> kHeadsFirst{3, 2, 1, 0};

Tensor cache_view(const ggml_tensor& t) {
  const CacheType type = *cache_type(t.type);
  return view(t, attn::storage_dtype(type), kRowsFirst, attn::row_size(type, t.ne[0]));
}

float parameter(const ggml_tensor& op, int index) {
  float value = 0;
  std::memcpy(&value, op.op_params + index, sizeof value);
  return value;
}

// Why rows of the tensor cannot be read, or empty. Rows must be dense, and start at elements.
std::string layout_refusal(const ggml_tensor& t, const char* name, std::size_t element) {
  if (t.nb[0] != ggml_type_size(t.type)) return std::string(name) + " whose rows are not dense";
  for (int i = 1; i < GGML_MAX_DIMS; ++i) {
    if (t.nb[i] % element != 0) return std::string(name) + " whose rows do not start at elements";
  }
  return {};
}

std::string cache_refusal(const ggml_tensor& t, const char* name, const ggml_tensor& q) {
  const auto type = cache_type(t.type);
  if (!type) return std::string(name) + " of type " + ggml_type_name(t.type);
  if (t.ne[0] > attn::kMaxHeadDim) return std::string(name) + " of too large a head size";
  if (t.ne[1] == 0) return std::string(name) + " without keys";
  if (q.ne[2] % t.ne[2] != 0 || q.ne[3] != t.ne[3]) return std::string(name) + " of other heads";
  return layout_refusal(t, name, attn::size_of(attn::storage_dtype(*type)));
}

std::string mask_refusal(const ggml_tensor& mask, const ggml_tensor& q, const ggml_tensor& k) {
  if (mask.type != GGML_TYPE_F16) return "a mask of another type than f16";
  if (mask.ne[0] != k.ne[1] || mask.ne[1] < q.ne[1] || q.ne[2] % mask.ne[2] != 0 ||
      q.ne[3] % mask.ne[3] != 0) {
    return "a mask of another shape";
  }
  return layout_refusal(mask, "a mask", attn::size_of(attn::DType::f16));
}

}  // namespace

std::string refusal(const ggml_tensor& op) {
  if (op.op != GGML_OP_FLASH_ATTN_EXT) return "another operation";
  const ggml_tensor& q = *op.src[0];
  const ggml_tensor& k = *op.src[1];
  const ggml_tensor& v = *op.src[2];
  if (q.type != GGML_TYPE_F32 || op.type != GGML_TYPE_F32) return "Q or O that is not f32";
  if (!ggml_is_contiguous(&op)) return "O that is not contiguous";
  if (ggml_is_empty(&op)) return "O without elements";
  if (k.ne[2] != v.ne[2]) return "K and V of different heads";
  std::string why = layout_refusal(q, "Q", sizeof(float));
  if (why.empty()) why = cache_refusal(k, "K", q);
  if (why.empty()) why = cache_refusal(v, "V", q);
  if (why.empty() && op.src[3] != nullptr) why = mask_refusal(*op.src[3], q, k);
  if (!why.empty()) return why;
  const ggml_tensor* sink = op.src[4];
  if (sink != nullptr && (sink->type != GGML_TYPE_F32 || !ggml_is_contiguous(sink))) {
    return "sinks that are not contiguous f32";
  }
  const float scale = parameter(op, 0), max_bias = parameter(op, 1), softcap = parameter(op, 2);
  if (!std::isfinite(scale) || !std::isfinite(max_bias) || !std::isfinite(softcap) ||
      max_bias < 0 || softcap < 0 || (max_bias > 0 && op.src[3] == nullptr)) {
    return "parameters out of range";
  }
  return {};
}

Attention describe(const ggml_tensor& op) {
  const ggml_tensor& q = *op.src[0];
  const ggml_tensor& k = *op.src[1];
  const ggml_tensor& v = *op.src[2];
  Attention result{.q = view(q, attn::DType::f32, kRowsFirst, q.ne[0]),
                   .k = cache_view(k),
                   .v = cache_view(v),
                   .type_k = *cache_type(k.type),
                   .type_v = *cache_type(v.type),
                   // ggml has O as [dim, heads, rows, batch].
                   .o = view(op, attn::DType::f32, kHeadsFirst, op.ne[0]),
                   .scale = parameter(op, 0),
                   .max_bias = parameter(op, 1),
                   .softcap = parameter(op, 2)};
  if (op.src[3] != nullptr) {
    result.mask = view(*op.src[3], attn::DType::f16, kHeadsFirst, op.src[3]->ne[0]);
    result.mask.shape[2] = q.ne[1];  // some versions of ggml pad its rows
  }
  if (op.src[4] != nullptr) {
    result.sink = attn::tensor(static_cast<const float*>(op.src[4]->data), {q.ne[2]});
  }
  return result;
}

}  // namespace attn_ggml
