#include "core/cached_rows.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/float8.hpp"
#include "core/tensor/element.hpp"
#include "core/text/enum_names.hpp"

namespace attn {
namespace {

constexpr core::EnumName<CacheType> kCacheTypes[] = {
    {CacheType::as_q, "as_q"}, {CacheType::f64, "f64"}, {CacheType::f32, "f32"},
    {CacheType::bf16, "bf16"}, {CacheType::f16, "f16"}, {CacheType::e4m3, "e4m3"},
    {CacheType::e5m2, "e5m2"}, {CacheType::i8, "i8"},   {CacheType::q8_0, "q8_0"},
    {CacheType::q4_0, "q4_0"},
};

}  // namespace

std::string_view name(CacheType type) noexcept { return core::name_of(kCacheTypes, type); }
CacheType parse_cache_type(std::string_view text) {
  return core::parse_name(kCacheTypes, "cache type", text);
}

DType storage_dtype(CacheType type) noexcept {
  switch (type) {
    case CacheType::f64:
      return DType::f64;
    case CacheType::as_q:
    case CacheType::f32:
      break;
    case CacheType::bf16:
      return DType::bf16;
    case CacheType::f16:
      return DType::f16;
    case CacheType::e4m3:
    case CacheType::e5m2:
    case CacheType::i8:
    case CacheType::q8_0:
    case CacheType::q4_0:
      return DType::u8;
  }
  return DType::f32;
}

std::int64_t row_size(CacheType type, std::int64_t head_dim) noexcept {
  return core::is_blocked(type) ? core::row_bytes(type, head_dim) : head_dim;
}

namespace core {
namespace {

// The scale of the block that holds element i, and the bytes behind it.
struct Block {
  double scale;
  const std::byte* codes;
  std::int64_t at;  // of i within the block
};
Block block_of(const std::byte* row, std::int64_t i, CacheType type) {
  const std::byte* const block = row + i / kCacheBlock * row_bytes(type, kCacheBlock);
  return {load_element(block, DType::f16), block + 2, i % kCacheBlock};
}

double integer(double x, double low, double high) {
  return std::clamp(std::nearbyint(x), low, high);
}

std::byte as_byte(double x) {
  return static_cast<std::byte>(static_cast<std::uint8_t>(static_cast<std::int8_t>(x)));
}

// x / scale of a block whose scale is 0 is 0.
double quotient(double x, double scale) { return scale == 0 ? 0 : x / scale; }

void store_q8_0(std::byte* block, const double* x) {
  double largest = 0;
  for (std::int64_t i = 0; i < kCacheBlock; ++i) largest = std::max(largest, std::abs(x[i]));
  store_element(block, DType::f16, largest / 127);
  const double scale = load_element(block, DType::f16);
  for (std::int64_t i = 0; i < kCacheBlock; ++i) {
    block[2 + i] = as_byte(integer(quotient(x[i], scale), -128, 127));
  }
}

void store_q4_0(std::byte* block, const double* x) {
  double largest = 0;
  for (std::int64_t i = 0; i < kCacheBlock; ++i) {
    if (std::abs(x[i]) > std::abs(largest)) largest = x[i];
  }
  store_element(block, DType::f16, largest / -8);
  const double scale = load_element(block, DType::f16);
  const auto code = [&](std::int64_t i) {
    return static_cast<unsigned>(integer(quotient(x[i], scale) + 8, 0, 15));
  };
  constexpr std::int64_t kHalf = kCacheBlock / 2;
  for (std::int64_t i = 0; i < kHalf; ++i) {
    block[2 + i] = static_cast<std::byte>(code(i) | code(i + kHalf) << 4);
  }
}

// One scale, or one a head.
Rows scales_of_heads(const Tensor& scale) {
  return {.base = static_cast<std::byte*>(scale.data),
          .head_stride = scale.shape[0] == 1 ? 0 : scale.strides[0] * 4};
}

Rows scale_rows(const Problem& problem, const Inputs& inputs, const Tensor& scale,
                std::int64_t batch) {
  if (!scale.given()) return {};
  if (scale.rank == 1) return scales_of_heads(scale);
  return rows_of_scales(problem, inputs, scale, batch);
}

}  // namespace

double cached_element(const std::byte* row, std::int64_t i, CacheType type) {
  switch (type) {
    case CacheType::as_q:
    case CacheType::f64:
    case CacheType::f32:
    case CacheType::bf16:
    case CacheType::f16:
      break;
    case CacheType::e4m3:
      return float8_value(static_cast<std::uint8_t>(row[i]), Float8::e4m3);
    case CacheType::e5m2:
      return float8_value(static_cast<std::uint8_t>(row[i]), Float8::e5m2);
    case CacheType::i8:
      return static_cast<std::int8_t>(row[i]);
    case CacheType::q8_0: {
      const Block block = block_of(row, i, type);
      return block.scale * static_cast<std::int8_t>(block.codes[block.at]);
    }
    case CacheType::q4_0: {
      const Block block = block_of(row, i, type);
      const auto pair = static_cast<unsigned>(block.codes[block.at % 16]);
      const unsigned code = block.at < 16 ? pair & 15 : pair >> 4;
      return block.scale * (static_cast<int>(code) - 8);
    }
  }
  const DType dtype = storage_dtype(type);
  return load_element(row + i * static_cast<std::int64_t>(size_of(dtype)), dtype);
}

void store_cached_row(std::byte* row, const double* values, std::int64_t dim, CacheType type,
                      double scale) {
  if (is_blocked(type)) {
    for (std::int64_t i = 0; i < dim; i += kCacheBlock) {
      std::byte* const block = row + row_bytes(type, i);
      type == CacheType::q8_0 ? store_q8_0(block, values + i) : store_q4_0(block, values + i);
    }
    return;
  }
  for (std::int64_t i = 0; i < dim; ++i) {
    if (is_float8(type)) {
      const Float8 format = type == CacheType::e4m3 ? Float8::e4m3 : Float8::e5m2;
      row[i] = static_cast<std::byte>(float8_bits(quotient(values[i], scale), format));
    } else if (type == CacheType::i8) {
      row[i] = as_byte(integer(quotient(values[i], scale), -128, 127));
    } else {
      const DType dtype = storage_dtype(type);
      store_element(row + i * static_cast<std::int64_t>(size_of(dtype)), dtype, values[i]);
    }
  }
}

Scales::Scales(const Problem& problem, const Inputs& inputs, const Tensor& scale,
               std::int64_t batch)
    : given_(scale.given()), rows_(scale_rows(problem, inputs, scale, batch)) {}

Scales Scales::of_q(const Problem& problem, const Inputs& inputs, std::int64_t batch) {
  const Tensor& scale = inputs.scale_q;
  if (!scale.given()) return {false, {}};
  return {true,
          scale.rank == 1 ? scales_of_heads(scale) : rows_like_q(problem, inputs, scale, batch)};
}

}  // namespace core
}  // namespace attn
