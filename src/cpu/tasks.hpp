// How the rows of Q are divided into tasks.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "cpu/attention.hpp"
#include "cpu/pairs.hpp"

namespace attn::cpu {

struct RowTask {
  std::int64_t pair = 0;
  std::int64_t row0 = 0;
  std::int64_t rows = 0;
  std::int64_t cost = 0;  // visible K blocks times rows
};

struct KeyRange {
  std::int64_t begin = 0, end = 0;
};

// Part `index` of `parts` of the keys [0, length): whole K blocks, as even as they come.
inline KeyRange split_range(std::int64_t length, std::int64_t parts, std::int64_t index) {
  const std::int64_t blocks = (length + kBlockK - 1) / kBlockK;
  return {std::min(length, blocks * index / parts * kBlockK),
          std::min(length, blocks * (index + 1) / parts * kBlockK)};
}

// Every row in use of pairs [first, last), once. Costliest first, so that under a causal mask the
// last tasks to finish are short ones.
inline std::vector<RowTask> row_tasks(const Attention& a, std::int64_t rows_per_task,
                                      std::int64_t first, std::int64_t last) {
  std::vector<RowTask> tasks;
  for (std::int64_t index = first; index < last; ++index) {
    const auto [sequence, head_k] = pair_at(a, index);
    const std::int64_t rows = a.rows(sequence);
    for (std::int64_t r = 0; r < rows; r += rows_per_task) {
      RowTask task{index, r, std::min(rows_per_task, rows - r), 0};
      std::int64_t blocks = 1;
      for_visible_blocks(a, a.tile(sequence, head_k, r, task.rows), 0, sequence.length_k,
                         [&](int, int, expr::Coverage) { ++blocks; });
      task.cost = blocks * task.rows;
      tasks.push_back(task);
    }
  }
  std::stable_sort(tasks.begin(), tasks.end(),
                   [](const RowTask& x, const RowTask& y) { return x.cost > y.cost; });
  return tasks;
}
inline std::vector<RowTask> row_tasks(const Attention& a, std::int64_t rows_per_task) {
  return row_tasks(a, rows_per_task, 0, pair_count(a));
}

// Divides the last `count` tasks into pieces of at most `rows` rows, so that the threads that work
// on them end at about the same time. Tasks for which whole(task) is true stay whole.
template <class Whole>
std::vector<RowTask> divide_last(std::vector<RowTask> tasks, std::size_t count, std::int64_t rows,
                                 const Whole& whole) {
  const std::size_t first = tasks.size() - std::min(count, tasks.size());
  const std::vector<RowTask> last(tasks.begin() + static_cast<std::ptrdiff_t>(first), tasks.end());
  tasks.resize(first);
  for (const RowTask& task : last) {
    const std::int64_t step = whole(task) ? task.rows : rows;
    for (std::int64_t r = 0; r < task.rows; r += step) {
      tasks.push_back({task.pair, task.row0 + r, std::min(step, task.rows - r), 0});
    }
  }
  return tasks;
}

}  // namespace attn::cpu
