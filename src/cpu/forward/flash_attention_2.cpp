// FlashAttention-2, algorithm 1 (Dao 2023): outer loop over Q blocks, in parallel; inner loop over
// K, V blocks; O is normalised once at the end.
#include "core/ceil_div.hpp"
#include "cpu/budgets.hpp"
#include "cpu/forward/forward.hpp"
#include "cpu/forward/query_group.hpp"
#include "cpu/nonfinite.hpp"
#include "cpu/pairs.hpp"
#include "cpu/tasks.hpp"

namespace attn::cpu {
namespace {

// Q blocks against a K, V block, as many at a time as the verbs take together.
class Tiles {
 public:
  // apart: rows of V that `block` holds zeros for (nonfinite.hpp).
  Tiles(const GroupPass& pass, int head_k, const KeyBlock& block, std::uint64_t apart)
      : a_(pass.a),
        sequence_(pass.sequence),
        head_k_(head_k),
        scratch_(pass.s.tile),
        block_(block),
        apart_(apart) {}

  // A Q block that sees the first `keys` keys, or some of them.
  void add(QueryBlock& q, expr::Coverage coverage, int keys) {
    if (count_ > 0 && keys != keys_) compute();
    tile_[count_] = {&q, coverage, scratch_ + count_};
    keys_ = keys;
    if (++count_ == a_.ops.q_blocks) compute();
  }

  // What was added takes the block in; at the end, and when there is no more room.
  void compute() {
    if (count_ == 0) return;
    // Line 8: S = Q K^T.
    a_.scores(tile_, count_, block_.k, block_.key0, keys_);
    // Line 9: m, P and l.
    OutputTile output[kMaxRegisterBlocks];
    for (int i = 0; i < count_; ++i) {
      QueryBlock& q = *tile_[i].q;
      TileScratch& t = *tile_[i].t;
      a_.ops.softmax(t.s, keys_, a_.c(), t.row_max, a_.keep(q, block_.key0, keys_, t), q.m, q.l,
                     t.alpha, t.p);
      output[i] = {t.p, t.alpha, q.o_t};
    }
    // Line 10: O <- alpha O + P V.
    a_.ops.accumulate(output, count_, block_.v, keys_, a_.dim_v);
    for (int i = 0; apart_ != 0 && i < count_; ++i) {
      add_values_apart(a_, sequence_, head_k_, block_.key0, keys_, apart_, output[i]);
    }
    count_ = 0;
  }

 private:
  const Attention& a_;
  const core::Sequence& sequence_;
  const int head_k_;
  TileScratch* const scratch_;
  const KeyBlock& block_;
  const std::uint64_t apart_;
  QueryTile tile_[kMaxRegisterBlocks];
  int count_ = 0;
  int keys_ = 0;  // of each
};

// The Q blocks i of a head for which takes(i, its own coverage) says yes take the block in.
template <class Takes>
void take_in(const GroupPass& pass, int head, const KeyBlock& block, expr::Coverage coverage,
             std::uint64_t apart, const Takes& takes) {
  const Attention& a = pass.a;
  const int key0 = block.key0, next = key0 + kBlockK;
  Tiles tiles(pass, pass.heads.first + head, block, apart);
  for (int i = 0; i < pass.blocks; ++i) {
    if (pass.packed.packed() && next < pass.keys.end) pass.packed.prefetch(next, i, pass.blocks);
    QueryBlock& q = pass.s.blocks[head * pass.blocks + i];
    const expr::Coverage own = coverage == expr::Coverage::full || pass.blocks == 1
                                   ? coverage
                                   : a.coverage(q.tile, key0, block.keys);
    if (own == expr::Coverage::empty || !takes(i, own)) continue;
    tiles.add(q, own,
              own == expr::Coverage::mixed ? a.visible_keys(q.tile, key0, block.keys) : block.keys);
  }
  tiles.compute();
}

// Lines 7 to 10 for the Q blocks of a head of the pass.
void attend_block(const GroupPass& pass, int head, int key0, int keys, expr::Coverage coverage) {
  const Attention& a = pass.a;
  const int head_k = pass.heads.first + head;
  // Line 7: K and V.
  KeyBlock& room = pass.s.keys;
  if (!pass.packed.packed()) a.load_key_block(pass.sequence, head_k, key0, keys, room);
  KeyBlock block = pass.packed.packed() ? pass.packed.block(key0, keys) : room;
  const std::uint64_t apart = pass.again || may_hide(a, coverage)
                                  ? values_to_set_apart(a, pass.sequence, head_k, block)
                                  : 0;
  const auto any = [](int, expr::Coverage) { return true; };
  if (apart == 0) return take_in(pass, head, block, coverage, 0, any);
  // What a row adds apart comes last in its sums. So that a Q block has the same bits in any task,
  // its own coverage and scores decide: one that sees all keys reads V as it is.
  bool infinite[kMaxBlocksPerTask] = {};
  for (int i = 0; pass.again && i < pass.blocks; ++i) {
    infinite[i] =
        has_infinite_score(a, pass.s.blocks[head * pass.blocks + i], block, pass.s.tile[0]);
  }
  const auto hides = [&](int i, expr::Coverage own) { return infinite[i] || may_hide(a, own); };
  take_in(pass, head, block, coverage, 0, [&](int i, auto own) { return !hides(i, own); });
  pack_values_without(a, pass.sequence, head_k, apart, room.v, block);
  take_in(pass, head, block, coverage, apart, hides);
}

// K, V blocks of a packing task.
constexpr std::int64_t kPackBlocks = 8;

// Packs K and V of every pair of the wave that has room.
void pack_keys(const Attention& a, const Waves& waves, const Wave& wave, std::byte* memory,
               const Workers& workers) {
  const std::int64_t chunk = kPackBlocks * kBlockK;
  const std::int64_t chunks = core::ceil_div(a.problem.seqlen_k, chunk);
  const std::int64_t pairs = wave.last - wave.first;
  // Neighbouring heads one after the other: their rows lie side by side.
  workers.parallel_for(pairs * chunks, [&](std::int64_t index, int) {
    const std::size_t offset = waves.offset_of(wave.first + index % pairs);
    if (offset == kNotPacked) return;
    const Pair pair = pair_at(a, wave.first + index % pairs);
    const PackedKeys packed(a, pair.sequence, memory + offset);
    const std::int64_t begin = index / pairs * chunk;
    const std::int64_t end = std::min<std::int64_t>(begin + chunk, pair.sequence.length_k);
    for (std::int64_t key = begin; key < end; key += kBlockK) {
      const auto keys = static_cast<int>(std::min<std::int64_t>(kBlockK, end - key));
      KeyBlock block = packed.block(static_cast<int>(key), keys);
      a.load_key_block(pair.sequence, pair.head_k, static_cast<int>(key), keys, block);
    }
  });
}

void attend_keys(const GroupPass& pass) {
  const auto visit = [&](int key0, int keys, expr::Coverage coverage) {
    if (pass.heads.count == 1) return attend_block(pass, 0, key0, keys, coverage);
    for (int h = 0; h < pass.heads.count; ++h) {
      const expr::Coverage own = coverage == expr::Coverage::full
                                     ? coverage
                                     : pass.a.coverage(pass.s.blocks[h].tile, key0, keys);
      if (own != expr::Coverage::empty) attend_block(pass, h, key0, keys, own);
    }
  };
  for_visible_blocks(pass.a, pass.rows, pass.keys.begin, pass.keys.end, visit);
}

}  // namespace

void attend(const GroupPass& pass) {
  const Attention& a = pass.a;
  QueryBlock* const first = pass.s.blocks;
  QueryBlock* const last = first + pass.heads.count * pass.blocks;
  attend_keys(pass);
  const auto is_finite = [&](const QueryBlock& q) { return has_finite_output(a, q); };
  if (a.has_score() || std::all_of(first, last, is_finite)) return;
  for (QueryBlock* q = first; q != last; ++q) a.start_rows(*q);
  GroupPass again = pass;
  again.again = true;
  attend_keys(again);
}

void forward_flash_attention_2(const Attention& a, const Plan& plan, const Outputs& outputs,
                               const Workers& workers) {
  // A pair whose rows are one task reads its K and V once and packs them as it goes.
  const auto bytes_of = [&](const Pair& pair) {
    return a.rows(pair.sequence) <= plan.rows_per_task ? kNotPacked
                                                       : PackedKeys::packed_bytes(a, pair.sequence);
  };
  Workspace& workspace = workers.workspace();
  const Waves all = waves(a, static_cast<std::size_t>(kKeyPackBudget),
                          static_cast<std::size_t>(kKeyPackBudget), bytes_of, workspace);
  const WorkerScratch<GroupScratch> scratch(workspace, workers.count(), group_scratch(a));
  std::byte* const memory = workspace.take(largest_wave(all), "packed K and V");
  for (const Wave& wave : all.list) {
    const Workspace::Scope of_wave(workspace);
    if (wave.bytes != 0) pack_keys(a, all, wave, memory, workers);
    const auto packed_at = [&](const RowTask& task) { return all.offset_of(task.pair); };
    // Two tasks a thread in quarters: half a task a thread, some 3 % of its time with 16 tasks, is
    // what they would wait for each other otherwise. Where K and V are packed as a task goes, all
    // of its rows share that.
    const RowTasks tasks = divide_last(
        row_tasks(a, plan.rows_per_task, wave.first, wave.last, workspace),
        plan.threads > 1 ? 2 * static_cast<std::size_t>(plan.threads) : 0,
        std::max<std::int64_t>(plan.rows_per_task / 4, std::int64_t{a.ops.q_blocks} * a.ops.rows),
        [&](const RowTask& task) { return packed_at(task) == kNotPacked; }, workspace);
    workers.parallel_for(
        static_cast<std::int64_t>(tasks.size()), [&](std::int64_t index, int worker) {
          const RowTask& task = tasks[static_cast<std::size_t>(index)];
          const auto [sequence, head_k] = pair_at(a, task.pair);
          const std::size_t offset = packed_at(task);
          const PackedKeys packed(a, sequence, offset == kNotPacked ? nullptr : memory + offset);
          GroupScratch s = scratch.of(worker);
          const TileState tile_state(a.ops);
          const int blocks = load_query_group(a, sequence, head_k, task.row0, task.rows, s.blocks);
          const expr::Tile rows = a.tile(sequence, head_k, task.row0, task.rows);
          attend({a, sequence, {head_k, 1}, rows, blocks, {0, sequence.length_k}, packed, s});
          for (int i = 0; i < blocks; ++i) a.store_block(sequence, s.blocks[i], outputs);
        });
  }
}

}  // namespace attn::cpu
