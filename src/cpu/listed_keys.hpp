// Blocks of the keys that a row's list names (Problem::key_list), in the order of the list.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/problem/key_list.hpp"
#include "cpu/attention.hpp"
#include "cpu/tile_ops.hpp"

namespace attn::cpu {

// Stands for the row of K or V of an entry without a key, whose memory is not read.
alignas(64) inline constexpr std::byte kNoKey[kMaxHeadDim * sizeof(double)]{};

// Up to kBlockK entries of a list.
struct ListedKeys {
  int count = 0;
  bool any = false, all = true;  // entries that have a key
  std::int32_t key[kBlockK];     // -1: none

  ListedKeys(const core::KeyList& list, std::int64_t first)
      : count(static_cast<int>(std::min<std::int64_t>(kBlockK, list.count - first))) {
    for (int j = 0; j < count; ++j) {
      key[j] = list.key(first + j);
      any = any || key[j] >= 0;
      all = all && key[j] >= 0;
    }
  }

  // row[j] <- where `rows` has the key of entry j.
  void find(const core::Rows& rows, int head, const std::byte** row) const {
    for (int j = 0; j < count; ++j) row[j] = key[j] < 0 ? kNoKey : rows.row(key[j], head);
  }
};

// Calls visit(first, count, key) for each run of keys of a block that follow each other, as
// core::for_key_runs does.
template <class Visit>
void for_each_run(const KeyBlock& block, const Visit& visit) {
  if (block.listed == nullptr) return visit(0, block.keys, block.key0);
  core::for_key_runs(block.listed->key, block.listed->count, visit);
}

// t.s <- score expression and mask of each key at its own index, and -inf where there is none.
void modify_listed(const Attention& a, const QueryBlock& q, const ListedKeys& keys, TileScratch& t);

}  // namespace attn::cpu
