// What attn::append_kv is asked for, checked and put into the form that every backend reads.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "attn/append_kv.hpp"
#include "core/validate/argument_check.hpp"

namespace attn::core {

// Q, K or V of a call: what is read, what is done with a row of it, and where it goes.
struct AppendPart {
  const char* name = "";  // "q"
  Tensor from, to;
  CacheType type = CacheType::f32;  // of `to`; never as_q
  bool cached = false;              // `to` is a cache; else it is laid out as `from`
  bool norm = false;
  Tensor weight;  // of the norm; not given: 1
  bool rope = false;
  bool hadamard = false;
  Tensor scale;               // not given: 1, where the type is scaled at all
  bool writes_scale = false;  // one a row and head; else `scale` is read, and of rank 1

  std::int64_t heads() const { return from.shape[static_cast<std::size_t>(from.rank - 2)]; }
  std::int64_t dim() const { return from.shape[static_cast<std::size_t>(from.rank - 1)]; }
};

struct AppendCall {
  bool ring = false, packed = false, paged = false;
  bool cached = false;               // K or V is given
  std::int64_t batch = 0, rows = 0;  // sequences; new rows of all of them
  std::int64_t seqlen = 0;           // rows of a sequence, unless packed
  // Of the caches: `blocks` are sequences or pages. A place is block * block_rows + row in it.
  std::int64_t blocks = 0, block_rows = 0;
  std::int64_t capacity = 0;  // rows of a sequence
  std::int64_t rope_dim = 0;  // columns, 0 without a rotary embedding
  double norm_eps = 0;
  bool interleaved = false;
  AppendInputs inputs;  // for positions, tables and frequencies
  std::array<AppendPart, 3> all;
  std::size_t count = 0;

  std::span<const AppendPart> parts() const { return {all.data(), count}; }
};

// Throws Error(invalid_argument) naming the argument, its value and what is accepted. Looks at no
// values of tensors.
AppendCall check_append(const AppendProblem& problem, const AppendInputs& inputs,
                        const AppendOutputs& outputs);

// All tensors of a call, which must outlive these; Q comes last.
std::array<NamedTensor, 16> named(const AppendInputs& inputs);
std::array<NamedTensor, 5> named(const AppendOutputs& outputs);

// A new row that is written: where it comes from, where it goes and how far it is rotated.
struct AppendRow {
  std::int64_t row = 0;    // counted through the sequences of the new rows
  std::int64_t place = 0;  // of a cache; kNoPlace where K and V are not written
  std::int64_t rope_position = 0;
};
inline constexpr std::int64_t kNoPlace = -1;

// The rows of a call whose tensors are in memory of the CPU, in the order of the new rows. Throws
// Error(invalid_argument) for a seqused that is negative or past a sequence's rows, and for a row
// without a place, past cos and sin, or with another's place.
std::vector<AppendRow> append_rows(const AppendCall& call);

// Rows of a tensor [blocks, rows of a block, heads, ...] or packed [rows, heads, ...]. Strides are
// bytes.
struct AppendRows {
  std::byte* base = nullptr;
  std::int64_t block_rows = 1;
  std::int64_t block_stride = 0, row_stride = 0, head_stride = 0;

  explicit AppendRows(const Tensor& t, bool packed);
  std::byte* at(std::int64_t row, std::int64_t head) const {
    return base + row / block_rows * block_stride + row % block_rows * row_stride +
           head * head_stride;
  }
};

// The scale by which rows of a head are divided, where none is chosen: 1 where none is given.
float given_scale(const AppendPart& part, std::int64_t head);

}  // namespace attn::core
