#include "cuda/kernels/forward_sm90_float8/kernel.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "attn/error.hpp"
#include "core/cache_type.hpp"
#include "core/ceil_div.hpp"
#include "cuda/codegen/config_text.hpp"
#include "cuda/codegen/wgmma_text.hpp"
#include "cuda/kernels/forward_tiles.hpp"
#include "cuda/problem_parameters.hpp"
#include "cuda/tensor_map.hpp"

namespace attn::cuda {
namespace {

using core::ceil_div;
using enum Condition;

constexpr std::uint32_t kPanel = 128;  // columns of Q and K, and keys of V, in 128 bytes
constexpr int kMostKeysWithin = 128;   // of a tile that is transposed in place
constexpr int kTransposers = 2;        // warps that do
constexpr int kWidest = 256;           // head size

struct Row {
  ForwardSm90Shape shape;  // but for `transposers`
  // Tiles of V are best transposed by each tile of queries that reads them where a K, V head has no
  // more than so many of these (measured: ahead is as fast at twice as many), else once by a kernel
  // ahead.
  std::int64_t most_readers;
};

// As forward_sm90_shapes(). A consumer thread holds O (head_dim_v / 2), S (block_n / 2) and P
// (block_n / 8).
constexpr std::array<Row, 4> kRows{{
    {{64, always, 3, 128, 4, 4, 2, true, false, 32, 160, 148, "as in 16 bits"}, 16},
    {{128, plain_from_4096, 3, 96, 3, 2, 2, true, false, 32, 160, 140,
      "three warpgroups hide the exponentials, which take as long as the products, and have "
      "registers for 96 keys; +6 % from 4096 keys on, +5 % there under a causal mask"},
     8},
    {{128, always, 2, 128, 3, 3, 2, true, false, 40, 232, 0,
      "128 rows and 128 keys; at 512 keys 13 % faster than 192 rows"},
     8},
    {{256, always, 2, 128, 2, 2, 1, true, false, 24, 240, 360,
      "128 keys need 240 registers, which leave producers 24, so that these spill; with a kernel "
      "ahead 5 to 13 % faster than 96 keys"},
     8},
}};

std::string obstacle(const ForwardRequest& request) {
  const Problem& p = request.problem;
  if (request.arch.number != 90) {
    return fmt::format("the architecture is {}; accepted is sm_90a", to_string(request.arch));
  }
  if (!core::is_float8(p)) {
    return fmt::format("type_q is {}, type_k {} and type_v {}; accepted are e4m3 and e5m2 of all",
                       name(p.type_q), name(p.type_k), name(p.type_v));
  }
  if (p.dtype != DType::bf16 && p.dtype != DType::f16) {
    return fmt::format("dtype is {}; accepted are bf16 and f16", name(p.dtype));
  }
  for (const auto& [name, d] :
       {std::pair{"head_dim", p.head_dim}, std::pair{"head_dim_v", p.head_dim_v}}) {
    if (d % 16 != 0 || d > kWidest) {
      return fmt::format("{} is {}; accepted are multiples of 16 up to {}", name, d, kWidest);
    }
  }
  if (request.features.dropout) {
    return fmt::format("dropout is {}; accepted is 0", p.dropout.probability);
  }
  if (p.seqlen_prefix > 0) {
    return fmt::format("seqlen_prefix is {}; accepted is 0", p.seqlen_prefix);
  }
  if (!request.tensors.aligned || !request.tensors.cache_aligned) {
    return "an address or stride is not a multiple of 16 bytes";
  }
  if (request.tensors.row_scales) {
    return "rows have scales of their own; accepted are those of a batch entry and head";
  }
  return {};
}

// A product's, in device code and in PTX. P is e4m3.
struct Operands {
  std::string elements, formats;
};
Operands operands(CacheType a, CacheType b) {
  return {fmt::format("Float8Pair<{}, {}>", float8_element(a), float8_element(b)),
          fmt::format("{}.{}", name(a), name(b))};
}

// The shape of a row with the parts that are named, and if the way of V is not, with the one that
// is best for the problem.
ForwardSm90Shape shape_for(const Problem& p, const Row& row, std::string_view parts) {
  constexpr int kNotNamed = -1;
  ForwardSm90Shape shape = row.shape;
  shape.transposers = kNotNamed;
  shape = with_parts(shape, parts, true);
  if (shape.transposers == kNotNamed) {
    const std::int64_t rows = std::int64_t{64} * shape.warpgroups;
    const std::int64_t readers = ceil_div(p.seqlen_q, rows) * (p.heads_q / p.heads_k);
    const bool within = readers <= row.most_readers && shape.block_n <= kMostKeysWithin;
    shape.transposers = within ? kTransposers : 0;
  }
  return shape;
}

bool encode_v(CUtensorMap& map, const Problem& p, const Tensor& v, int rows) {
  return encode_map(
      map, v, 4,
      {unsigned_of(v.shape[3]), unsigned_of(v.shape[2]), unsigned_of(p.heads_k),
       unsigned_of(v.shape[0]), 1},
      {unsigned_of(v.strides[2]), unsigned_of(v.strides[1]), unsigned_of(v.strides[0]), 0, 0},
      {kPanel, static_cast<std::uint32_t>(rows), 1, 1, 1});
}

}  // namespace

ForwardChoice choose_forward_sm90_float8(const ForwardRequest& request) {
  if (std::string why = obstacle(request); !why.empty()) {
    return ForwardChoice::refused(std::move(why));
  }
  const Problem& p = request.problem;
  const ForwardFeatures& f = request.features;
  const auto widest = static_cast<int>(std::max(p.head_dim, p.head_dim_v));
  const auto row = std::ranges::find_if(
      kRows, [&](const Row& r) { return widest <= r.shape.head_dim && holds(r.shape.when, p); });
  auto made = std::make_shared<ForwardSm90Float8>(shape_for(p, *row, request.parts));
  const ForwardSm90Shape& s = made->shape;
  Tiling tiling;
  tiling.rows = 64 * s.warpgroups;
  tiling.keys = s.block_n;
  if (tiling.keys % 32 != 0) {
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("kernel is 'forward_sm90_float8/{}', of {} keys; accepted are multiples "
                    "of 32",
                    request.parts, tiling.keys));
  }
  if (s.transposers > 0 && tiling.keys > kMostKeysWithin) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("kernel is 'forward_sm90_float8/{}', of {} keys whose V is transposed "
                            "within; accepted are up to {}",
                            request.parts, tiling.keys, kMostKeysWithin));
  }
  if (f.paged && !fit_pages(tiling.keys, made->page_rows, p.page_size)) {
    return ForwardChoice::refused("no tile shape suits page_size " + std::to_string(p.page_size));
  }
  tiling.threads = 128 * (s.warpgroups + 1);
  tiling.parts = s.warpgroups;
  tiling.stages = s.stages_v;
  const std::int64_t panels = ceil_div(f.head_dim, kPanel), qs = s.stages_q * s.warpgroups;
  made->sums_by_product = !request.tensors.lse;
  made->stores_boxes = !request.splits && f.type_o == f.dtype && !f.packed_q;
  // Of a warp, ForwardSm90Layout::kPart.
  const std::int64_t ones =
      made->sums_by_product && !made->has_ones_in_v(f) ? 128 * ForwardSm90Float8::kRowsOfOnes : 0;
  const std::int64_t number = f.head_dim_v > 128 ? 2 : 4;
  const std::int64_t part = 16 * std::max(128 * ceil_div(f.head_dim_v, 64), number * f.head_dim_v);
  tiling.shared_bytes = qs * 64 * 128 * panels + s.stages_k * tiling.keys * 128 * panels +
                        s.stages_v * made->bytes_of_v(f, tiling.keys) + 4 * s.warpgroups * part +
                        ones + forward_sm90_barrier_bytes(s) +
                        (s.transposers > 0 ? 8 * s.stages_v : 0);
  tiling.reason = s.reason;
  tiling.spill_bytes = s.spill_bytes + kForwardSm90FollowerSpills;
  if (widest <= 128 && holds(Condition::few_masked_keys, p)) made->near_blocks = 1;
  return {.tiling = tiling, .shape = std::move(made)};
}

std::int64_t ForwardSm90Float8::bytes_of_v(const ForwardFeatures& f, int keys) const noexcept {
  const std::int64_t rows = rows_of_v(f);
  if (shape.transposers == 0) return ceil_div(keys, kPanel) * kPanel * rows;
  // Squares of 128 keys and columns; the last one has no more rows than it needs.
  const std::int64_t whole = 128 * (ceil_div(f.head_dim_v, 128) - 1);
  return 128 * (whole + std::max<std::int64_t>(keys, rows - whole));
}

std::string ForwardSm90Float8::declarations(const ForwardConfig& config) const {
  const ForwardFeatures& f = config.features;
  const Operands scores = operands(f.type_q, f.type_k),
                 values = operands(CacheType::e4m3, f.type_v);
  return product_declarations() +
         print_product_float8(scores.elements, scores.formats, config.tiling.keys) +
         (has_ones_in_v(f) ? print_product_with_sums : print_product_rs_float8)(
             values.elements, values.formats, f.head_dim_v) +
         (sums_by_product ? print_product_rs_float8(values.elements, values.formats, kRowsOfOnes)
                          : "");
}

std::optional<ForwardMaps> ForwardSm90Float8::maps(const ForwardConfig& config, const Problem& p,
                                                   const Inputs& inputs,
                                                   const Outputs& outputs) const {
  ForwardMaps maps{};
  const int box = config.features.paged ? page_rows : config.tiling.keys;
  if (!encode_q(maps.q, p, config, inputs.q, kPanel) ||
      !encode_k(maps.k, p, config, inputs.k, p.head_dim, box, kPanel) ||
      !(shape.transposers > 0 ? encode_k(maps.v, p, config, inputs.v, p.head_dim_v, box, kPanel)
                              : encode_v(maps.v, p, inputs.v, rows_of_v(config.features))) ||
      (stores_boxes && !encode_o(maps.o, p, outputs.o))) {
    return std::nullopt;
  }
  return maps;
}

}  // namespace attn::cuda
