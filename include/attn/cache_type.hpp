// How caches of keys and values store their elements, where that is not in the type of Q, and how Q
// does where that is not in the type of O.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "attn/context.hpp"
#include "attn/export.hpp"
#include "attn/tensor.hpp"

namespace ATTN_API attn {

// Of K, of V, or of Q (Problem::type_k, type_v, type_q). A row is the head_dim elements of a key
// and head.
enum class CacheType : std::uint8_t {
  as_q,  // Problem::dtype
  f64,   // of problems of f64 alone
  f32,
  bf16,
  f16,
  e4m3,  // u8: 8-bit floats (Open Compute Project, OFP8, 2023), each times a scale of Inputs
  e5m2,  // u8: the same with a bit of the mantissa given to the exponent, and with infinities
  i8,    // u8: integers -128 to 127 in two's complement, likewise
  q8_0,  // u8: a row is blocks of 32 elements in 34 bytes, an f16 scale and 32 integers as of i8
  q4_0,  // u8: the same in 18 bytes, an f16 scale and 16 bytes; the lower four bits of byte i are
         // element i and the upper four element 16 + i, each less 8
};

std::string_view name(CacheType type) noexcept;     // "as_q", "q8_0"; "unknown" for other values
CacheType parse_cache_type(std::string_view text);  // its inverse; throws Error(invalid_argument)

// The dtype of a tensor of such rows: u8 for 8-bit types and blocks. Of as_q, which has none of its
// own, f32.
DType storage_dtype(CacheType type) noexcept;
// Elements of the last dimension of such a tensor: head_dim, of blocks their bytes. Example: 64
// elements of q8_0 are 68 bytes.
std::int64_t row_size(CacheType type, std::int64_t head_dim) noexcept;

struct QuantizeOptions {
  // So many consecutive rows of a head share a scale, where x is [..., seqlen, heads, head_dim].
  std::int64_t block = 1;
  // Incoherent processing (FlashAttention-3, section 3.3): each row x becomes H D x first, by which
  // an outlier is spread over all columns. H is the matrix of AppendProblem::hadamard, and D
  // negates columns at random, by this seed. Scores of Q and K that are rotated alike stay as they
  // are.
  std::optional<std::uint64_t> rotation{};
};

// to <- the rows of x, the last dimension, each element rounded to the nearest number that `type`
// has, ties to even, and to its largest where it is larger.
//
// x: f32, bf16, f16 or f64, [..., head_dim]; to: storage_dtype(type), [..., row_size(type,
// head_dim)]; the last dimension of both has stride 1, other strides are free. scale: f32 [...],
// any strides, with e4m3, e5m2 and i8 alone: written where it is given, for each row its largest
// magnitude / 448 (57344; 127), 1 for a row of zeros; not given, the scale is 1. Rows whose scale
// is one number, along dimensions of stride 0 or in a block, share that of the largest magnitude of
// all of them. Example: a scale for each sequence and head has stride 0 along seqlen. Blocks of
// q8_0 and q4_0 write theirs into `to`, as ggml chooses them: of q8_0 the largest magnitude / 127,
// of q4_0 the number of largest magnitude / -8, rounded to f16. A number that is not finite makes
// the bytes of all rows that share its scale meaningless.
//
// All memory is of one device. On a CPU it runs on the calling thread and in double. On a GPU it
// runs in context.stream, in launches that read nothing back; x is f32, bf16 or f16 with rows of up
// to 1024 elements, and `type` is not f64. Its bits are those of a CPU, but with a rotation, which
// is computed in f32: a number very near the middle of two codes may then take the other one, and
// scales differ in their last bits. `to` and `scale` overlap
// nothing. Throws Error(invalid_argument) before anything is written, and on a GPU unavailable or
// device. Thread-safe.
void quantize(const Tensor& x, CacheType type, const Tensor& to, const Tensor& scale = {},
              const QuantizeOptions& options = {}, const Context& context = {});

}  // namespace attn
