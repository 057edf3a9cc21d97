// Where the rows and keys of a problem stand in a larger one that it is a part of: dropout draws a
// bit for each place of the larger problem.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace attn::core {

// From row `begin` of a part on, row i is row i + shift of the whole.
struct Run {
  std::int32_t begin = 0;
  std::int32_t shift = 0;
  bool operator==(const Run&) const = default;
};
// Those of one sequence, ascending; the first begins at 0. Example: {0, 8}, {4, 20} are the rows 8
// to 11 of the whole, and then those from 24 on.
using Runs = std::vector<Run>;

// The run that row i is in; the first of what is before all.
inline std::size_t run_of(const Runs& runs, std::int32_t i) {
  const auto after = std::upper_bound(runs.begin(), runs.end(), i,
                                      [](std::int32_t row, const Run& r) { return row < r.begin; });
  return after == runs.begin() ? 0 : static_cast<std::size_t>(after - runs.begin()) - 1;
}
inline std::int32_t place_of(const Runs& runs, std::int32_t i) {
  return i + runs[run_of(runs, i)].shift;
}

struct Places {
  std::vector<Runs> query, key;  // of each sequence

  const Runs& queries(std::int32_t batch) const { return query[static_cast<std::size_t>(batch)]; }
  // Calls visit(first, count, key of the whole) for each run in keys [key0, key0 + keys) of the
  // part; `first` counts from key0.
  template <class Visit>
  void for_key_runs(std::int32_t batch, int key0, int keys, const Visit& visit) const {
    const Runs& runs = key[static_cast<std::size_t>(batch)];
    std::size_t r = run_of(runs, key0);
    for (int at = key0; at < key0 + keys; ++r) {
      const int end =
          r + 1 < runs.size() ? std::min(key0 + keys, int{runs[r + 1].begin}) : key0 + keys;
      if (end > at) visit(at - key0, end - at, at + runs[r].shift);
      at = end;
    }
  }
};

}  // namespace attn::core
