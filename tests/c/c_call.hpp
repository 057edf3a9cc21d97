// The arguments of a call (tests/core/call.hpp) as the C interface takes them.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <deque>
#include <random>
#include <vector>

#include "attn/attn.h"
#include "core/call.hpp"

namespace attn::testing {

// Views of the same memory, which live as long as this.
class InC {
 public:
  const attn_tensor* of(const Tensor& t) {
    if (t.data == nullptr) return nullptr;
    sizes_.push_back({t.shape, t.strides});
    attn_tensor& view = tensors_.emplace_back();
    view.byte_offset = 24;
    view.data = reinterpret_cast<void*>(reinterpret_cast<std::uintptr_t>(t.data) - 24);
    view.device = {1, 0};
    view.ndim = t.rank;
    view.dtype = dtype(t.dtype);
    view.shape = sizes_.back()[0].data();
    view.strides = sizes_.back()[1].data();
    return &view;
  }
  static attn_dtype dtype(DType type) {
    const auto bits = static_cast<std::uint8_t>(8 * size_of(type));
    switch (type) {
      case DType::f64:
      case DType::f32:
      case DType::f16:
        return {2, bits, 1};
      case DType::bf16:
        return {4, bits, 1};
      case DType::i64:
      case DType::i32:
        return {0, bits, 1};
      case DType::u8:
        break;
    }
    return {1, bits, 1};
  }
  const attn_named_tensor* of(const expr::Bindings& bindings) {
    std::vector<attn_named_tensor>& list = lists_.emplace_back();
    for (const auto& [name, tensor] : bindings) list.push_back({name.c_str(), of(tensor)});
    return list.data();
  }

  attn_inputs of(const Inputs& in) {
    attn_inputs c{};
    c.struct_size = sizeof(c);
    c.q = of(in.q);
    c.k = of(in.k);
    c.v = of(in.v);
    c.cu_seqlens_q = of(in.cu_seqlens_q);
    c.cu_seqlens_k = of(in.cu_seqlens_k);
    c.seqused_q = of(in.seqused_q);
    c.seqused_k = of(in.seqused_k);
    c.page_table = of(in.page_table);
    c.prefix_k = of(in.prefix_k);
    c.prefix_v = of(in.prefix_v);
    c.prefix_page_table = of(in.prefix_page_table);
    c.key_list = of(in.key_list);
    c.sink = of(in.sink);
    c.rng_state = of(in.rng_state);
    c.buffers = of(in.buffers);
    c.num_buffers = in.buffers.size();
    c.scale_k = of(in.scale_k);
    c.scale_v = of(in.scale_v);
    c.scale_q = of(in.scale_q);
    return c;
  }
  attn_outputs of(const Outputs& out) {
    return {sizeof(attn_outputs), of(out.o), of(out.lse), of(out.max_logit)};
  }
  attn_output_gradients of(const Tensor& d_o, const Tensor& d_lse) {
    return {sizeof(attn_output_gradients), of(d_o), of(d_lse)};
  }
  attn_gradients of(const Gradients& grad) {
    return {sizeof(attn_gradients), of(grad.dq),      of(grad.dk),        of(grad.dv),
            of(grad.dsink),         of(grad.buffers), grad.buffers.size()};
  }

 private:
  std::deque<std::array<std::array<std::int64_t, kMaxRank>, 2>> sizes_;
  std::deque<attn_tensor> tensors_;
  std::deque<std::vector<attn_named_tensor>> lists_;
};

// A structure of the C interface that says nothing.
template <class T>
T none() {
  T structure{};
  structure.struct_size = sizeof(T);
  return structure;
}

inline void draw(const Tensor& t, std::mt19937& random) {
  std::normal_distribution<float> normal;
  for (std::int64_t i = 0; i < t.size(); ++i) static_cast<float*>(t.data)[i] = normal(random);
}

inline std::size_t bytes_of(const Tensor& t) {
  return t.data == nullptr ? 0 : static_cast<std::size_t>(t.size()) * size_of(t.dtype);
}
inline std::vector<unsigned char> bits(const Tensor& t) {
  const auto* const from = static_cast<const unsigned char*>(t.data);
  return {from, from + bytes_of(t)};
}
inline void poison(const Tensor& t) {
  if (t.data != nullptr) std::memset(t.data, 0xff, bytes_of(t));
}
inline bool is_poisoned(const Tensor& t) {
  const std::vector<unsigned char> all = bits(t);
  return std::all_of(all.begin(), all.end(), [](unsigned char byte) { return byte == 0xff; });
}

}  // namespace attn::testing
