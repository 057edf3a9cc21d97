// Loads of expressions over a tile. Elements are gathered as bits and converted as vectors; 0 bits
// are 0 in every dtype, which is what an index outside the shape reads.
#pragma once

#include "core/expr/program.hpp"
#include "cpu/kernels/convert.hpp"
#include "cpu/kernels/expression_ops.hpp"
#include "cpu/kernels/pack_f32.hpp"

namespace attn::cpu::ATTN_ISA {

inline constexpr std::int64_t kOutside = INT64_MIN;

// The contribution of one index to the offset of the element, or kOutside.
ATTN_INLINE std::int64_t offset_of(const expr::BufferView& view, int d, std::int32_t index) {
  if (view.shape[d] == 1) return 0;
  return index >= 0 && index < view.shape[d] ? index * view.strides[d] : kOutside;
}

ATTN_INLINE std::int64_t sum_of(std::int64_t a, std::int64_t b) {
  return a == kOutside || b == kOutside ? kOutside : a + b;
}

template <class Bits>
ATTN_INLINE std::uint32_t element(const void* data, std::int64_t offset) {
  return offset == kOutside ? 0u : static_cast<const Bits*>(data)[offset];
}

ATTN_INLINE std::int32_t int_at(const float* p) {
  std::int32_t value;
  __builtin_memcpy(&value, p, sizeof(value));
  return value;
}
ATTN_INLINE void put_bits(float* p, std::uint32_t bits) {
  __builtin_memcpy(p, &bits, sizeof(bits));
}

// Runs body<Bits>(): the unsigned integer of the size of an element. Loads are of f32, bf16, f16,
// i32 and u8 (expr::Buffer).
template <class Body>
ATTN_INLINE void with_bits(DType dtype, const Body& body) {
  switch (dtype) {
    case DType::u8:
      return body.template operator()<std::uint8_t>();
    case DType::bf16:
    case DType::f16:
      return body.template operator()<std::uint16_t>();
    case DType::f32:
    case DType::i32:
    case DType::f64:
    case DType::i64:
      break;
  }
  body.template operator()<std::uint32_t>();
}

// Bits of an element, as gathered -> its float32 or int32 value.
static void convert_elements(DType dtype, const Grid& grid, float* out) {
  if (dtype != DType::bf16 && dtype != DType::f16) return;
  for (int j = 0; j < grid.keys; ++j) {
    for (int v = 0; v < grid.vectors; ++v) {
      float* p = out + j * grid.key_stride + v * kLanes;
      const U bits = bit_cast<U>(load(p));
      store(p, dtype == DType::bf16 ? bit_cast<F>(bits << 16)
                                    : from_f16(__builtin_convertvector(bits, H)));
    }
  }
}

// Any indices, element by element.
template <class Bits>
static void gather(const expr::BufferView& view, const Operand* index, const Grid& grid,
                   float* out) {
  for (int j = 0; j < grid.keys; ++j) {
    for (int lane = 0; lane < grid.vectors * kLanes; ++lane) {
      std::int64_t offset = 0;
      for (int d = 0; d < view.rank; ++d) {
        const Operand& o = index[d];
        const float* p = o.data + j * o.key_stride + (lane / kLanes) * o.vector_stride;
        offset = sum_of(offset, offset_of(view, d, int_at(p + lane % kLanes)));
      }
      put_bits(out + j * grid.key_stride + lane, element<Bits>(view.data, offset));
    }
  }
}

static void load_elements(const expr::BufferView& view, const Operand* index, const Grid& grid,
                          float* out) {
  with_bits(view.dtype, [&]<class Bits>() { gather<Bits>(view, index, grid, out); });
  convert_elements(view.dtype, grid, out);
}

// Element offsets that split into a part of the row and a part of the key: a row's elements are
// read together, so that the usual layout (keys contiguous) is read along cache lines.
template <class Bits>
static void gather_separable(const expr::BufferView& view, const std::int64_t* of_row,
                             const std::int64_t* of_key, const Grid& grid, float* out) {
  for (int row = 0; row < grid.vectors * kLanes; ++row) {
    for (int j = 0; j < grid.keys; ++j) {
      put_bits(out + j * grid.key_stride + row,
               element<Bits>(view.data, sum_of(of_row[row], of_key[j])));
    }
  }
}

// `count` elements from `offset` on, converted; other lanes are zero.
ATTN_INLINE F load_contiguous(const expr::BufferView& view, std::int64_t offset, int count) {
  typedef std::uint8_t Bytes __attribute__((vector_size(kLanes)));
  if (view.dtype == DType::u8) {
    Bytes bytes{};
    __builtin_memcpy(&bytes, static_cast<const std::uint8_t*>(view.data) + offset,
                     static_cast<std::size_t>(count));
    return bit_cast<F>(__builtin_convertvector(bytes, U));
  }
  // int32 travels as the bits of a float.
  const DType dtype = view.dtype == DType::i32 ? DType::f32 : view.dtype;
  const std::int64_t size = dtype == DType::f32 ? 4 : 2;
  const std::byte* row = static_cast<const std::byte*>(view.data) + offset * size;
  return count == kLanes ? load_row(row, 0, dtype) : load_row_part(row, 0, count, dtype);
}

// Loads elements whose keys are contiguous, from element first_key of each row on, and transposes
// them in registers.
static void load_transposed(const expr::BufferView& view, const std::int64_t* of_row,
                            std::int64_t first_key, const Grid& grid, float* out) {
  for (int v = 0; v < grid.vectors; ++v) {
    for (int j0 = 0; j0 < grid.keys; j0 += kLanes) {
      const int count = grid.keys - j0 < kLanes ? grid.keys - j0 : kLanes;
      F x[kLanes];
      for (int r = 0; r < kLanes; ++r) {
        const std::int64_t offset = sum_of(of_row[v * kLanes + r], first_key + j0);
        x[r] = offset == kOutside ? F{} : load_contiguous(view, offset, count);
      }
      transpose(x);
      for (int j = 0; j < count; ++j) store(out + (j0 + j) * grid.key_stride + v * kLanes, x[j]);
    }
  }
}

// keys_contiguous: of_key counts up by one, none is outside.
static void load_separable(const expr::BufferView& view, const std::int64_t* of_row,
                           const std::int64_t* of_key, bool keys_contiguous, const Grid& grid,
                           float* out) {
  if (keys_contiguous) return load_transposed(view, of_row, of_key[0], grid, out);
  with_bits(view.dtype,
            [&]<class Bits>() { gather_separable<Bits>(view, of_row, of_key, grid, out); });
  convert_elements(view.dtype, grid, out);
}

}  // namespace attn::cpu::ATTN_ISA
