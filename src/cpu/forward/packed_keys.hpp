// All K, V blocks of one (sequence, K, V head), packed once and read by every task over its rows.
// Gathering rows that lie heads * head_dim apart is slow (a page each few rows); done again for
// each group of Q blocks it cost 7 % of the forward pass.
#pragma once

#include "core/ceil_div.hpp"
#include "cpu/attention.hpp"
#include "cpu/workspace.hpp"

namespace attn::cpu {

class PackedKeys {
 public:
  // base: packed_bytes() of memory, or null: nothing is packed and blocks are loaded one by one.
  PackedKeys(const Attention& a, const core::Sequence& sequence, std::byte* base)
      : block_bytes_k_(block_bytes(a, a.dim)),
        block_bytes_v_(block_bytes(a, a.dim_v)),
        k_(base),
        v_(base == nullptr ? nullptr : base + blocks(sequence) * block_bytes_k_) {}

  bool packed() const { return k_ != nullptr; }
  // key0 is a multiple of kBlockK.
  KeyBlock block(int key0, int keys) const {
    const auto index = static_cast<std::size_t>(key0 / kBlockK);
    return {key0, keys, k_ + index * block_bytes_k_, v_ + index * block_bytes_v_};
  }

  // Asks for part `part` of `parts` of the block at key0, into L2.
  void prefetch(int key0, int part, int parts) const {
    const auto index = static_cast<std::size_t>(key0 / kBlockK);
    prefetch_part(k_ + index * block_bytes_k_, block_bytes_k_, part, parts);
    prefetch_part(v_ + index * block_bytes_v_, block_bytes_v_, part, parts);
  }

  static std::size_t blocks(const core::Sequence& sequence) {
    return static_cast<std::size_t>(core::ceil_div(sequence.length_k, kBlockK));
  }
  static std::size_t packed_bytes(const Attention& a, const core::Sequence& sequence) {
    return blocks(sequence) * (block_bytes(a, a.dim) + block_bytes(a, a.dim_v));
  }

 private:
  static void prefetch_part(const std::byte* block, std::size_t bytes, int part, int parts) {
    const std::size_t lines = bytes / kAlignment;
    const std::size_t end =
        lines * static_cast<std::size_t>(part + 1) / static_cast<std::size_t>(parts);
    for (std::size_t i = lines * static_cast<std::size_t>(part) / static_cast<std::size_t>(parts);
         i < end; ++i)
      __builtin_prefetch(block + i * kAlignment, 0, 2);
  }

  static std::size_t block_bytes(const Attention& a, int dim) {
    return static_cast<std::size_t>(kBlockK * leading_dim(dim)) * size_of(a.ops.operand);
  }

  std::size_t block_bytes_k_, block_bytes_v_;
  std::byte* k_;
  std::byte* v_;
};

}  // namespace attn::cpu
