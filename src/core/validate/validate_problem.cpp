// Checks of a complete Problem: ranges, products of sizes that must fit 63 bits, layouts, and the
// types of mask and score.
#include <fmt/format.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <string_view>
#include <vector>

#include "attn/error.hpp"
#include "core/cache_type.hpp"
#include "core/text/echo.hpp"
#include "core/validate/argument_check.hpp"
#include "core/validate/validate.hpp"

namespace attn::core {
namespace {

constexpr std::int64_t kMaxInt32 = std::numeric_limits<std::int32_t>::max();
constexpr std::int64_t kAboveHeadDim = 1024;  // a power of two above kMaxHeadDim

void check_range(const ArgumentCheck& check, std::string_view name, std::int64_t value,
                 std::int64_t min, std::int64_t max) {
  if (value < min || value > max) {
    check.refuse(fmt::format("{} is {}; accepted are {} to {}", name, value, min, max));
  }
}

void check_sizes(const ArgumentCheck& check, const Problem& p) {
  // Expressions count batches, heads, queries and keys in int32.
  check_range(check, "batch", p.batch, 0, kMaxInt32);
  check_range(check, "seqlen_q", p.seqlen_q, 0, kMaxInt32);
  check_range(check, "seqlen_k", p.seqlen_k, 0, kMaxInt32);
  check_range(check, "seqlen_prefix", p.seqlen_prefix, 0, kMaxInt32 - p.seqlen_k);
  check_range(check, "heads_q", p.heads_q, 1, kMaxInt32);
  check_range(check, "heads_k", p.heads_k, 1, kMaxInt32);
  check_range(check, "key_list", p.key_list, 0, kMaxInt32);
  check_range(check, "head_dim", p.head_dim, 1, kMaxHeadDim);
  check_range(check, "head_dim_v", p.head_dim_v, 1, kMaxHeadDim);
  if (p.heads_q % p.heads_k != 0) {
    check.refuse(fmt::format("heads_q is {} and heads_k is {}; accepted are multiples of heads_k",
                             p.heads_q, p.heads_k));
  }
  // Philox counts (batch, head) pairs in 32 bits.
  constexpr std::int64_t kMaxPairs = std::numeric_limits<std::uint32_t>::max();
  if (p.batch * p.heads_q > kMaxPairs) {
    check.refuse(fmt::format("batch * heads_q is {} * {}; accepted are products up to {}", p.batch,
                             p.heads_q, kMaxPairs));
  }
}

// Elements of Q, K, V and O in dense layout, of which any offset in bytes fits in int64. Packed and
// paged tensors say their sizes themselves.
void check_products(const ArgumentCheck& check, const Problem& p) {
  const auto check_product = [&](std::string_view what, std::int64_t seqlen, std::int64_t heads) {
    std::int64_t bytes = 8;  // of the largest element
    for (const std::int64_t size : {p.batch, seqlen, heads, kAboveHeadDim}) {
      if (__builtin_mul_overflow(bytes, size, &bytes)) {
        check.refuse(
            fmt::format("{} is {} * {} * {}; accepted are products below 2^50, so that offsets in "
                        "bytes fit in 64 bits",
                        what, p.batch, seqlen, heads));
      }
    }
  };
  if (p.layout_q == Layout::dense)
    check_product("batch * seqlen_q * heads_q", p.seqlen_q, p.heads_q);
  if (p.layout_k == Layout::dense)
    check_product("batch * seqlen_k * heads_k", p.seqlen_k, p.heads_k);
}

void check_layouts(const ArgumentCheck& check, const Problem& p) {
  if (p.layout_q != Layout::dense && p.layout_q != Layout::packed) {
    check.refuse(fmt::format("layout_q is {}; accepted are dense and packed",
                             p.layout_q == Layout::paged ? "paged" : "unknown"));
  }
  if (p.paged_prefix && p.layout_k != Layout::paged) {
    check.refuse("paged_prefix is true but layout_k is not paged; accepted is false");
  }
  if (p.layout_k == Layout::paged) {
    check_range(check, "page_size", p.page_size, 1, kMaxInt32);
  } else if (p.layout_k != Layout::dense && p.layout_k != Layout::packed) {
    check.refuse("layout_k is unknown; accepted are dense, packed and paged");
  } else if (p.page_size != 0) {
    check.refuse(
        fmt::format("page_size is {} but layout_k is not paged; accepted is 0", p.page_size));
  }
}

void check_cache_type(const ArgumentCheck& check, const Problem& p, std::string_view field,
                      CacheType type, std::int64_t dim) {
  if (name(type) == "unknown") {
    check.refuse(fmt::format("{} is {}; accepted are the types of cache_type.hpp", field,
                             static_cast<int>(type)));
  }
  const bool f64 = p.dtype == DType::f64;
  if (type != CacheType::as_q && f64 != (type == CacheType::f64)) {
    check.refuse(
        fmt::format("{} is {} and dtype is {}; accepted are {}", field, name(type), name(p.dtype),
                    f64 ? "as_q and f64" : "as_q, f32, bf16, f16, e4m3, e5m2, i8, q8_0 and q4_0"));
  }
  if (is_blocked(type) && dim % kCacheBlock != 0) {
    check.refuse(
        fmt::format("{} is {}, of blocks of {} elements, and the head size is {}; accepted "
                    "are multiples of {}",
                    field, name(type), kCacheBlock, dim, kCacheBlock));
  }
}

void check_type_q(const ArgumentCheck& check, const Problem& p) {
  if (!has_own_type_q(p)) return;
  if (name(p.type_q) == "unknown") {
    check.refuse(fmt::format("type_q is {}; accepted are as_q, e4m3 and e5m2 of cache_type.hpp",
                             static_cast<int>(p.type_q)));
  }
  if (!is_float8(p.type_q)) {
    check.refuse(fmt::format("type_q is {}; accepted are as_q, e4m3 and e5m2", name(p.type_q)));
  }
  if (p.dtype == DType::f64) {
    check.refuse(fmt::format("type_q is {} and dtype is f64; accepted is as_q", name(p.type_q)));
  }
}

void check_type_o(const ArgumentCheck& check, const Problem& p) {
  const bool sixteen_bits = p.dtype == DType::bf16 || p.dtype == DType::f16;
  if (!has_own_type_o(p) || (sixteen_bits && p.type_o == DType::f32)) return;
  check.refuse(fmt::format("type_o is {} and dtype is {}; accepted are {}{}", name(p.type_o),
                           name(p.dtype), name(p.dtype), sixteen_bits ? " and f32" : ""));
}

void check_expressions(const ArgumentCheck& check, const Problem& p) {
  using attn::expr::Op;
  using attn::expr::Type;
  if (!p.mask.empty()) {
    if (p.mask.type() != Type::boolean) {
      check.refuse(fmt::format("mask is {}, which is not boolean; accepted are boolean expressions",
                               to_string(p.mask)));
    }
    if (depends_on(p.mask, Op::score)) {
      check.refuse(
          fmt::format("mask is {}, which depends on score; accepted are query, key, position, "
                      "batch, head, seqlen_q, seqlen_k and buffers",
                      to_string(p.mask)));
    }
  }
  if (!p.score.empty() && p.score.type() != Type::float32) {
    check.refuse(fmt::format("score is {}, which is not float32; accepted are float32 expressions",
                             to_string(p.score)));
  }
}

}  // namespace

void validate_problem(const Problem& problem) {
  const ArgumentCheck check(&problem);
  if (!is_floating(problem.dtype)) {
    check.refuse(
        fmt::format("dtype is {}; accepted are f32, bf16, f16 and f64", name(problem.dtype)));
  }
  check_layouts(check, problem);
  check_sizes(check, problem);
  check_products(check, problem);
  check_type_o(check, problem);
  check_type_q(check, problem);
  check_cache_type(check, problem, "type_k", problem.type_k, problem.head_dim);
  check_cache_type(check, problem, "type_v", problem.type_v, problem.head_dim_v);
  if (problem.softmax_scale && !std::isfinite(*problem.softmax_scale)) {
    check.refuse(
        fmt::format("softmax_scale is {}; accepted are finite numbers", *problem.softmax_scale));
  }
  // The scale is used in float32, times log2(e), and must be finite there.
  const double largest = problem.dtype == DType::f64 ? std::numeric_limits<double>::max() : 0x1p127;
  if (problem.softmax_scale && std::abs(*problem.softmax_scale) > largest) {
    check.refuse(fmt::format("softmax_scale is {}; accepted for {} are magnitudes up to 2^127",
                             *problem.softmax_scale, name(problem.dtype)));
  }
  const double probability = problem.dropout.probability;
  if (!(probability >= 0 && probability < 1)) {
    check.refuse(fmt::format("dropout probability is {}; accepted are 0 up to, not including, 1",
                             probability));
  }
  if (problem.seqlen_prefix > 0 && probability > 0) {
    throw Error(ErrorCode::unsupported,
                fmt::format("dropout probability is {} and seqlen_prefix is {}; accepted with a "
                            "shared prefix is 0 (problem {})",
                            probability, problem.seqlen_prefix, echo(problem)));
  }
  check_expressions(check, problem);
}

}  // namespace attn::core
