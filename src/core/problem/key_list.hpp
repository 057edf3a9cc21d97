// Keys by list (Problem::key_list): the entries of one row. Inputs are checked before.
#pragma once

#include <cstdint>

#include "attn/problem.hpp"
#include "attn/run.hpp"
#include "core/problem/rows.hpp"

namespace attn::core {

struct KeyList {
  Integers entries{};
  std::int64_t count = 0;
  std::int32_t length = 0;  // keys of the sequence

  // The key of an entry; -1 where it is none of the sequence's.
  std::int32_t key(std::int64_t entry) const {
    const std::int64_t key = entries[entry];
    return key >= 0 && key < length ? static_cast<std::int32_t>(key) : -1;
  }
};

// The list of a query in use and a K, V head.
inline KeyList key_list(const Problem& problem, const Inputs& inputs, const Sequence& sequence,
                        std::int64_t query, std::int64_t head_k) {
  const Tensor& t = inputs.key_list;
  const bool packed = problem.layout_q == Layout::packed;
  const std::int64_t head = t.shape[packed ? 0 : 1] == 1 ? 0 : head_k;
  const std::int64_t first = packed ? Integers(inputs.cu_seqlens_q)[sequence.batch] : 0;
  const std::int64_t offset =
      packed ? t.offset({head, first + query, 0}) : t.offset({sequence.batch, head, query, 0});
  return {Integers(t).from(offset), problem.key_list, sequence.length_k};
}

// Calls visit(first, count, key) for each run of entries [first, first + count) that are the keys
// key, key + 1, ... Entries without a key, -1, are in none. Example: of 4 5 -1 7 these are
// (0, 2, 4) and (3, 1, 7).
template <class Visit>
void for_key_runs(const std::int32_t* keys, int count, const Visit& visit) {
  for (int first = 0; first < count;) {
    int end = first + 1;
    if (keys[first] >= 0) {
      while (end < count && keys[end] == keys[end - 1] + 1) ++end;
      visit(first, end - first, keys[first]);
    }
    first = end;
  }
}

}  // namespace attn::core
