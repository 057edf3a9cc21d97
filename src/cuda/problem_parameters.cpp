#include "cuda/problem_parameters.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "core/philox.hpp"

namespace attn::cuda {
void fill_dropout(device::ProblemParams& to, const Dropout& dropout, const Tensor& rng_state) {
  const std::uint32_t threshold = core::dropout_threshold(dropout.probability);
  to.dropout_threshold = threshold;
  const core::DropoutRule rule = core::dropout_rule(threshold);
  to.dropout_rule = {rule.least * 0x10001, rule.flipped ? ~0U : 0U};
  to.dropout_scale = static_cast<float>(core::dropout_scale(threshold));
  if (dropout.rng_state) {
    const auto address = reinterpret_cast<std::uintptr_t>(rng_state.data);
    to.rng_state[0] = static_cast<std::uint32_t>(address);
    to.rng_state[1] = static_cast<std::uint32_t>(address >> 32);
    return;
  }
  static_assert(device::kPhiloxRounds == core::kPhiloxRounds);
  const core::PhiloxKey philox = core::dropout_key(dropout.seed, dropout.offset);
  for (std::uint32_t round = 0; round < core::kPhiloxRounds; ++round) {
    std::ranges::copy(core::philox_round_key(philox, round).word, to.dropout_round_keys[round]);
  }
  to.dropout_counter3 = static_cast<std::uint32_t>(dropout.offset);
}

device::Strides strides_of(const Tensor& t, Layout layout) {
  if (layout == Layout::packed) return {0, t.strides[0], t.strides[1]};
  return {t.strides[0], t.strides[1], t.strides[2]};
}

device::Strides lse_strides_of(const Tensor& t, Layout layout) {
  if (layout == Layout::packed) return {0, t.strides[1], t.strides[0]};
  return {t.strides[0], t.strides[2], t.strides[1]};
}

device::Strides key_list_strides_of(const Tensor& t, Layout layout_q) {
  const bool packed = layout_q == Layout::packed;
  const std::size_t heads = packed ? 0 : 1, rows = packed ? 1 : 2;
  return {packed ? 0 : t.strides[0], t.strides[rows], t.shape[heads] == 1 ? 0 : t.strides[heads]};
}

void fill_problem_parameters(device::ProblemParams& to, const Problem& p) {
  constexpr double kLog2E = 1.4426950408889634;
  to.batch = static_cast<int>(p.batch);
  to.seqlen_q = static_cast<int>(p.seqlen_q);
  to.seqlen_k = static_cast<int>(p.seqlen_k);
  to.heads_q = static_cast<int>(p.heads_q);
  to.heads_k = static_cast<int>(p.heads_k);
  to.head_dim = static_cast<int>(p.head_dim);
  to.head_dim_v = static_cast<int>(p.head_dim_v);
  to.scale = static_cast<float>(p.scale());
  to.scale_log2 = static_cast<float>(p.scale() * kLog2E);
}

unsigned wide_tensors(const Inputs& inputs) {
  const auto bit = [](const Tensor& t, device::WideTensor wide) {
    return t.given() && t.dtype == DType::i64 ? unsigned{wide} : 0;
  };
  return bit(inputs.cu_seqlens_q, device::kWideCuSeqlensQ) |
         bit(inputs.cu_seqlens_k, device::kWideCuSeqlensK) |
         bit(inputs.seqused_q, device::kWideSequsedQ) |
         bit(inputs.seqused_k, device::kWideSequsedK) |
         bit(inputs.page_table, device::kWidePageTable) |
         bit(inputs.key_list, device::kWideKeyLists);
}

void fill_tensors(device::ProblemParams& to, const Problem& p, const Inputs& inputs,
                  const Outputs& outputs) {
  to.q = inputs.q.data;
  to.k = inputs.k.data;
  to.v = inputs.v.data;
  to.q_strides = strides_of(inputs.q, p.layout_q);
  to.k_strides = strides_of(inputs.k, p.layout_k);
  to.v_strides = strides_of(inputs.v, p.layout_k);
  to.o_strides = strides_of(outputs.o, p.layout_q);
  if (const Tensor& lse = outputs.lse; lse.given()) {
    to.lse_strides = lse_strides_of(lse, p.layout_q);
  }
  to.cu_seqlens_q = inputs.cu_seqlens_q.data;
  to.cu_seqlens_k = inputs.cu_seqlens_k.data;
  to.seqused_q = inputs.seqused_q.data;
  to.seqused_k = inputs.seqused_k.data;
  if (p.sink) to.sink = static_cast<const float*>(inputs.sink.data);
  fill_dropout(to, p.dropout, inputs.rng_state);
}

}  // namespace attn::cuda
