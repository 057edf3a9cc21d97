#include "core/problem/numbers.hpp"

#include <bit>

#include "core/cache_type.hpp"

namespace attn::core {

ProblemNumbers numbers_of(const Problem& p) noexcept {
  const auto unsigned_of = [](std::int64_t size) { return static_cast<std::uint64_t>(size); };
  return {unsigned_of(p.batch),
          unsigned_of(p.seqlen_q),
          unsigned_of(p.seqlen_k),
          unsigned_of(p.heads_q),
          unsigned_of(p.heads_k),
          unsigned_of(p.head_dim),
          unsigned_of(p.head_dim_v),
          unsigned_of(p.page_size),
          unsigned_of(p.seqlen_prefix),
          unsigned_of(p.key_list),
          static_cast<std::uint64_t>(DType{p.dtype}) | static_cast<std::uint64_t>(p.layout_q) << 8 |
              static_cast<std::uint64_t>(p.layout_k) << 16 | std::uint64_t{p.sink} << 24 |
              std::uint64_t{p.softmax_scale.has_value()} << 25 |
              std::uint64_t{p.dropout.rng_state} << 26 | std::uint64_t{p.paged_prefix} << 27 |
              static_cast<std::uint64_t>(p.type_k) << 32 |
              static_cast<std::uint64_t>(p.type_v) << 40 |
              static_cast<std::uint64_t>(p.type_q) << 48 |
              static_cast<std::uint64_t>(core::type_of_o(p)) << 56,
          std::bit_cast<std::uint64_t>(p.softmax_scale.value_or(0)),
          std::bit_cast<std::uint64_t>(p.dropout.probability)};
}

}  // namespace attn::core
