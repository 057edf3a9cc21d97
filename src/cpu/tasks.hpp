// How the rows of Q are divided into tasks.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory_resource>
#include <tuple>
#include <vector>

#include "core/ceil_div.hpp"
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
  const std::int64_t blocks = core::ceil_div(length, kBlockK);
  return {std::min(length, blocks * index / parts * kBlockK),
          std::min(length, blocks * (index + 1) / parts * kBlockK)};
}

using RowTasks = std::pmr::vector<RowTask>;

// Tasks that row_tasks makes of pairs [first, last).
inline std::size_t count_row_tasks(const Attention& a, std::int64_t rows_per_task,
                                   std::int64_t first, std::int64_t last) {
  std::int64_t count = 0;
  for (std::int64_t index = first; index < last; ++index) {
    count += core::ceil_div(a.rows(pair_at(a, index).sequence), rows_per_task);
  }
  return static_cast<std::size_t>(count);
}

// Every row in use of pairs [first, last), once. Costliest first, so that under a causal mask the
// last tasks to finish are short ones.
inline RowTasks row_tasks(const Attention& a, std::int64_t rows_per_task, std::int64_t first,
                          std::int64_t last, Workspace& workspace) {
  RowTasks tasks(&workspace);
  tasks.reserve(count_row_tasks(a, rows_per_task, first, last));
  for (std::int64_t index = first; index < last; ++index) {
    const auto [sequence, head_k] = pair_at(a, index);
    const std::int64_t rows = a.rows(sequence);
    for (std::int64_t r = 0; r < rows; r += rows_per_task) {
      RowTask task{index, r, std::min(rows_per_task, rows - r), 0};
      std::int64_t blocks = 1;
      if (a.problem.key_list == 0) {  // lists of keys are of one length
        for_visible_blocks(a, a.tile(sequence, head_k, r, task.rows), 0, sequence.length_k,
                           [&](int, int, expr::Coverage) { ++blocks; });
      }
      task.cost = blocks * task.rows;
      tasks.push_back(task);
    }
  }
  // A stable sort would ask for memory.
  std::sort(tasks.begin(), tasks.end(), [](const RowTask& x, const RowTask& y) {
    return std::tie(y.cost, x.pair, x.row0) < std::tie(x.cost, y.pair, y.row0);
  });
  return tasks;
}
inline RowTasks row_tasks(const Attention& a, std::int64_t rows_per_task, Workspace& workspace) {
  return row_tasks(a, rows_per_task, 0, pair_count(a), workspace);
}

// Divides the last `count` tasks into pieces of at most `rows` rows, so that the threads that work
// on them end at about the same time. Tasks for which whole(task) is true stay whole.
template <class Whole>
RowTasks divide_last(const RowTasks& tasks, std::size_t count, std::int64_t rows,
                     const Whole& whole, Workspace& workspace) {
  const std::size_t first = tasks.size() - std::min(count, tasks.size());
  const auto step_of = [&](const RowTask& task) { return whole(task) ? task.rows : rows; };
  std::size_t pieces = first;
  for (std::size_t i = first; i < tasks.size(); ++i) {
    const std::int64_t step = step_of(tasks[i]);
    pieces += static_cast<std::size_t>(core::ceil_div(tasks[i].rows, step));
  }
  RowTasks divided(&workspace);
  divided.reserve(pieces);
  divided.assign(tasks.begin(), tasks.begin() + static_cast<std::ptrdiff_t>(first));
  for (std::size_t i = first; i < tasks.size(); ++i) {
    const RowTask& task = tasks[i];
    const std::int64_t step = step_of(task);
    for (std::int64_t r = 0; r < task.rows; r += step) {
      divided.push_back({task.pair, task.row0 + r, std::min(step, task.rows - r), 0});
    }
  }
  return divided;
}

}  // namespace attn::cpu
