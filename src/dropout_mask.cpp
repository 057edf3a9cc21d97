// attn::dropout_mask: checks its arguments, and writes the mask on the CPU or has the CUDA backend
// write it.
#include "attn/dropout_mask.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>

#include "attn/error.hpp"
#include "core/philox.hpp"
#include "core/problem/dropout_state.hpp"
#include "core/validate/argument_check.hpp"
#include "core/validate/validate_parts.hpp"
#include "cpu/plan_check.hpp"
#include "cuda/driver/device.hpp"
#include "cuda/driver/pointer.hpp"
#include "cuda/dropout_mask.hpp"

namespace attn {
namespace {

// The problem's four sizes, those left at 0 taken from `kept`.
Problem sized(const Problem& problem, const Tensor& kept, const Tensor& rng_state) {
  const core::ArgumentCheck check(nullptr, kept.device);
  check.view("kept", kept);
  if (kept.rank != 4 || kept.dtype != DType::u8) {
    check.refuse(fmt::format("kept is {}; accepted is u8 [batch, heads_q, seqlen_q, seqlen_k]",
                             to_string(kept)));
  }
  Problem p = problem;
  std::size_t d = 0;
  for (std::int64_t* size : {&p.batch, &p.heads_q, &p.seqlen_q, &p.seqlen_k}) {
    if (*size == 0) *size = kept.shape[d];
    ++d;
  }
  check.tensor("kept", kept, DType::u8, {p.batch, p.heads_q, p.seqlen_q, p.seqlen_k});
  // Philox counts keys, queries, and heads of all sequences in 32 bits.
  constexpr std::int64_t kMost = INT32_MAX;
  if (p.seqlen_q > kMost || p.seqlen_k > kMost || (p.batch > 0 && p.heads_q > kMost / p.batch)) {
    check.refuse(
        fmt::format("kept is {}; accepted are seqlen_q, seqlen_k and batch * heads_q below 2^31",
                    to_string(kept)));
  }
  if (!(p.dropout.probability >= 0 && p.dropout.probability < 1)) {
    check.refuse(
        fmt::format("dropout.probability is {}; accepted are 0 to below 1", p.dropout.probability));
  }
  core::check_rng_state(check, p.dropout, rng_state);
  const core::NamedTensor written{"kept", kept}, read{"rng_state", rng_state};
  check.disjoint({&written, 1}, {&read, 1});
  return p;
}

void write_row(const Dropout& dropout, std::uint32_t batch_head, std::uint32_t query,
               std::int64_t seqlen_k, std::uint8_t* kept, std::int64_t stride) {
  const std::uint32_t threshold = core::dropout_threshold(dropout.probability);
  // A call of Philox is of sixteen keys: 64 a + 8 t + 2 c + {0, 1}, t = 0..7.
  for (std::int64_t first = 0; first < seqlen_k; first += first % 8 == 6 ? 58 : 2) {
    const core::PhiloxBlock block = core::dropout_block(dropout.seed, dropout.offset, batch_head,
                                                        query, static_cast<std::uint32_t>(first));
    for (std::int64_t key = first; key < std::min(first + 64, seqlen_k); key += 8) {
      for (std::int64_t j = key; j < std::min(key + 2, seqlen_k); ++j) {
        const std::uint32_t number = core::dropout_number(block, static_cast<std::uint32_t>(j));
        kept[j * stride] = core::dropout_keep(number, threshold) ? 1 : 0;
      }
    }
  }
}

}  // namespace

void dropout_mask(const Problem& problem, const Tensor& kept, const Context& context) {
  dropout_mask(problem, kept, {}, context);
}

void dropout_mask(const Problem& problem, const Tensor& kept, const Tensor& rng_state,
                  const Context& context) {
  const Problem p = sized(problem, kept, rng_state);
  if (kept.device.type == DeviceType::cuda) {
    const core::NamedTensor tensors[] = {{"kept", kept}, {"rng_state", rng_state}};
    const cuda::ContextGuard guard(kept.device.index);
    cuda::check_memory(p, tensors, kept.device.index);
    if (kept.size() > 0) cuda::dropout_mask(p, kept, rng_state, context);
    return;
  }
  const Dropout dropout = core::with_state(p.dropout, rng_state);
  const std::int64_t heads = p.batch * p.heads_q;
  cpu::executor_of(context)->parallel_for(kept.size() > 0 ? heads : 0, [&](std::int64_t head, int) {
    auto* rows =
        static_cast<std::uint8_t*>(kept.data) + kept.offset({head / p.heads_q, head % p.heads_q});
    for (std::int64_t query = 0; query < p.seqlen_q; ++query) {
      write_row(dropout, static_cast<std::uint32_t>(head), static_cast<std::uint32_t>(query),
                p.seqlen_k, rows + query * kept.strides[2], kept.strides[3]);
    }
  });
}

}  // namespace attn
