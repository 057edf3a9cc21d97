// Flash-Decoding (Dao, Haziza, Massa, Sizov 2023): the keys are split into parts that run in
// parallel, then a second step merges the partial results. Few rows against a long cache read K and
// V in place (few_rows.hpp); more rows use tiles.
#include <algorithm>

#include "core/ceil_div.hpp"
#include "cpu/forward/few_rows.hpp"
#include "cpu/forward/forward.hpp"
#include "cpu/forward/merge_parts.hpp"
#include "cpu/forward/splits.hpp"

namespace attn::cpu {
namespace {

// Where parts by tiles go: to partials, or to the outputs where a sequence is one part.
struct TileResults {
  const Splits& splits;
  const PartialIndex& at;
  const Partials& partials;
  const Outputs& outputs;
};

bool sees_nothing(const Attention& a, const expr::Tile& rows, const KeyRange& range) {
  return range.begin >= range.end ||
         a.coverage(rows, static_cast<int>(range.begin),
                    static_cast<int>(range.end - range.begin)) == expr::Coverage::empty;
}

// Those rows of all of these heads.
expr::Tile tile_of(const Attention& a, const core::Sequence& sequence, HeadRange heads,
                   std::int64_t row0, std::int64_t rows) {
  expr::Tile tile = a.tile(sequence, heads.first, row0, rows);
  tile.head_max = a.tile(sequence, heads.first + heads.count - 1, row0, rows).head_max;
  return tile;
}

// Rows [row0, row0 + rows) of a group of heads, of which there is one or each has one Q block, with
// part `split` of the keys. first_task: of the first head.
void attend_part(const Attention& a, const core::Sequence& sequence, HeadRange heads,
                 std::int64_t row0, std::int64_t rows, std::int64_t split, std::int64_t first_task,
                 const TileResults& results, GroupScratch& s) {
  const PartialIndex& at = results.at;
  const std::int64_t parts = results.splits.of(sequence);
  if (split >= parts) return;
  const bool is_whole = parts == 1;
  const KeyRange range = results.splits.range(sequence, split);
  const expr::Tile tile = tile_of(a, sequence, heads, row0, rows);
  const auto blocks = static_cast<int>(core::ceil_div(rows, a.ops.rows));
  const auto partial = [&](int h, int i) { return results.partials[at(first_task + h, split, i)]; };
  if (!is_whole && sees_nothing(a, tile, range)) {
    for (int h = 0; h < heads.count; ++h) {
      for (int i = 0; i < blocks; ++i) save_nothing(a, partial(h, i));
    }
    return;
  }
  const TileState tile_state(a.ops);
  for (int h = 0; h < heads.count; ++h) {
    load_query_group(a, sequence, heads.first + h, row0, rows, s.blocks + h * blocks);
  }
  attend({a, sequence, heads, tile, blocks, range, PackedKeys(a, sequence, nullptr), s});
  for (int h = 0; h < heads.count; ++h) {
    for (int i = 0; i < blocks; ++i) {
      QueryBlock& q = s.blocks[h * blocks + i];
      if (is_whole) {
        a.store_block(sequence, q, results.outputs);
      } else {
        save_partial(a, q, q.o_t, partial(h, i));
      }
    }
  }
}

void tile_parts(const Attention& a, const RowTasks& tasks, const TileResults& results,
                const Workers& workers) {
  const Workspace::Scope of_parts(workers.workspace());
  const WorkerScratch<GroupScratch> scratch(workers.workspace(), workers.count(), group_scratch(a));
  const std::int64_t splits = results.at.splits;
  const auto count = static_cast<std::int64_t>(tasks.size());
  workers.parallel_for(count * splits, [&](std::int64_t index, int worker) {
    const RowTask& task = tasks[static_cast<std::size_t>(index / splits)];
    const auto [sequence, head_k] = pair_at(a, task.pair);
    GroupScratch s = scratch.of(worker);
    attend_part(a, sequence, {head_k, 1}, task.row0, task.rows, index % splits, index / splits,
                results, s);
  });
}

// Indices of the sequences that have rows, of which many may have none.
using WithRows = std::pmr::vector<std::int64_t>;
WithRows sequences_with_rows(const Attention& a, Workspace& workspace) {
  const auto has_rows = [&](const core::Sequence& sequence) { return a.rows(sequence) > 0; };
  WithRows with_rows(&workspace);
  with_rows.reserve(
      static_cast<std::size_t>(std::count_if(a.sequences.begin(), a.sequences.end(), has_rows)));
  for (std::size_t i = 0; i < a.sequences.size(); ++i) {
    if (has_rows(a.sequences[i])) with_rows.push_back(static_cast<std::int64_t>(i));
  }
  return with_rows;
}

const core::Sequence& sequence_at(const Attention& a, const WithRows& with_rows,
                                  std::int64_t place) {
  return a.sequences[static_cast<std::size_t>(with_rows[static_cast<std::size_t>(place)])];
}

// One task a pair, in the order of `with_rows`.
RowTasks pair_tasks(const Attention& a, const WithRows& with_rows, Workspace& workspace) {
  const std::int64_t heads_k = a.problem.heads_k;
  RowTasks tasks(&workspace);
  tasks.reserve(with_rows.size() * static_cast<std::size_t>(heads_k));
  for (const std::int64_t index : with_rows) {
    for (std::int64_t h = 0; h < heads_k; ++h) {
      const std::int64_t pair = index * heads_k + h;
      tasks.push_back({pair, 0, a.rows(pair_at(a, pair).sequence), 0});
    }
  }
  return tasks;
}

// Calls part(place, first head, heads, split, worker) for all parts of those tasks, of groups
// of so many heads.
template <class Part>
void for_head_groups(const Attention& a, const WithRows& with_rows, std::int64_t heads_per_group,
                     std::int64_t splits, const Workers& workers, const Part& part) {
  const std::int64_t heads_k = a.problem.heads_k;
  const std::int64_t groups = core::ceil_div(heads_k, heads_per_group);
  const auto count = static_cast<std::int64_t>(with_rows.size());
  workers.parallel_for(count * groups * splits, [&](std::int64_t index, int worker) {
    const std::int64_t first = index / splits % groups * heads_per_group;
    const HeadRange heads{static_cast<int>(first),
                          static_cast<int>(std::min(heads_per_group, heads_k - first))};
    part(index / splits / groups, heads, index % splits, worker);
  });
}

// The partials of those tasks.
void few_row_parts(const Attention& a, const WithRows& with_rows, const Splits& splits,
                   const PartialIndex& at, const Partials& partials, const Workers& workers) {
  const Workspace::Scope of_parts(workers.workspace());
  const FewRowsScratch sizes = few_rows_scratch(a);
  const WorkerScratch<FewRowsScratch> scratch(workers.workspace(), workers.count(), sizes);
  const auto part = [&](std::int64_t place, HeadRange heads, std::int64_t split, int worker) {
    const core::Sequence& sequence = sequence_at(a, with_rows, place);
    if (split >= splits.of(sequence)) return;
    FewRowsScratch s = scratch.of(worker);
    attend_few_rows(a, sequence, heads.first, heads.count, splits.range(sequence, split), s);
    for (int h = 0; h < heads.count; ++h) {
      const std::int64_t task = place * a.problem.heads_k + heads.first + h;
      save_few_rows(a, s.head[h], partials[at(task, split, 0)]);
    }
  };
  for_head_groups(a, with_rows, sizes.heads, at.splits, workers, part);
}

// Parts of which some row may see a key, of all heads together.
std::int64_t count_visible_parts(const Attention& a, const WithRows& with_rows,
                                 const Splits& splits) {
  std::int64_t count = 0;
  for (std::int64_t place = 0; place < static_cast<std::int64_t>(with_rows.size()); ++place) {
    const core::Sequence& sequence = sequence_at(a, with_rows, place);
    const HeadRange all{0, static_cast<int>(a.problem.heads_k)};
    const expr::Tile tile = tile_of(a, sequence, all, 0, a.rows(sequence));
    const std::int64_t parts = splits.of(sequence);
    for (std::int64_t split = 0; split < parts; ++split) {
      count += !sees_nothing(a, tile, splits.range(sequence, split));
    }
  }
  return count;
}

// The same by tiles: pairs of one Q block whose K, V heads lie side by side, and are read together.
void tile_parts_of_groups(const Attention& a, const WithRows& with_rows, const TileResults& results,
                          const Workers& workers) {
  const Workspace::Scope of_parts(workers.workspace());
  int most = heads_per_tile_group(a);
  // Which heads share a task changes no result, so it may depend on the workers.
  const std::int64_t parts = count_visible_parts(a, with_rows, results.splits) * a.problem.heads_k;
  while (most > 1 && parts / most < 2 * workers.count()) most /= 2;
  const WorkerScratch<GroupScratch> scratch(workers.workspace(), workers.count(),
                                            group_scratch(a, most));
  for_head_groups(a, with_rows, most, results.at.splits, workers,
                  [&](std::int64_t place, HeadRange heads, std::int64_t split, int worker) {
                    const core::Sequence& sequence = sequence_at(a, with_rows, place);
                    GroupScratch s = scratch.of(worker);
                    attend_part(a, sequence, heads, 0, a.rows(sequence), split,
                                place * a.problem.heads_k + heads.first, results, s);
                  });
}

}  // namespace

void forward_flash_decoding(const Attention& a, const Plan& plan, const Outputs& outputs,
                            const Workers& workers) {
  if (a.sequences.empty()) return;
  const bool few_rows = has_few_rows(a.problem);
  Workspace& workspace = workers.workspace();
  const bool in_groups = few_rows || heads_per_tile_group(a) > 1;
  WithRows with_rows(&workspace);
  if (in_groups) with_rows = sequences_with_rows(a, workspace);
  const RowTasks tasks =
      in_groups ? pair_tasks(a, with_rows, workspace) : row_tasks(a, plan.rows_per_task, workspace);
  const Splits splits(plan);
  const PartialIndex at{splits.most_of(a), core::ceil_div(plan.rows_per_task, a.ops.rows)};
  const auto count = static_cast<std::int64_t>(tasks.size());
  const bool has_partials = few_rows || at.splits > 1;
  const Partials partials(workspace,
                          has_partials ? core::Size(count) * at.splits * at.blocks_per_task : 0,
                          a.dim_v, partial_rows(a.problem, a.ops.rows));
  const TileResults results{splits, at, partials, outputs};
  if (few_rows) {
    few_row_parts(a, with_rows, splits, at, partials, workers);
  } else if (in_groups) {
    tile_parts_of_groups(a, with_rows, results, workers);
  } else {
    tile_parts(a, tasks, results, workers);
  }
  if (!has_partials) return;

  merge_parts(a, tasks, {partials, at}, outputs, workers, [&](const core::Sequence& sequence) {
    const auto parts = static_cast<int>(splits.of(sequence));
    return parts == 1 && !few_rows ? 0 : parts;  // stored
  });
}

}  // namespace attn::cpu
