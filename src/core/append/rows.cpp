// Where each new row of append_kv goes, on a CPU, where positions and pages can be looked at.
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "core/append/append.hpp"
#include "core/tensor/integers.hpp"

namespace attn::core {
namespace {

std::int64_t integer_at(const Tensor& t, std::int64_t element) { return Integers(t)[element]; }
// Of a tensor [batch, seqlen] or packed [total].
std::int64_t of_row(const AppendCall& call, const Tensor& t, std::int64_t row) {
  if (call.packed) return integer_at(t, row * t.strides[0]);
  return integer_at(t, row / call.seqlen * t.strides[0] + row % call.seqlen * t.strides[1]);
}

class Places {
 public:
  explicit Places(const AppendCall& call) : call_(call) {}

  // Appends those of the rows [first, end) of one sequence that are written.
  void add_sequence(std::int64_t sequence, std::int64_t first, std::int64_t end,
                    std::vector<AppendRow>& rows) const {
    const std::int64_t last = first + used(sequence, end - first);
    const AppendInputs& in = call_.inputs;
    const bool follow = in.cache_seqlens.given();
    const std::int64_t start = follow ? cached_keys(sequence) : 0;
    for (std::int64_t row = first; row < last; ++row) {
      AppendRow r{.row = row, .place = kNoPlace};
      std::int64_t position = 0;
      if (follow) {
        position = start + row - first;
      } else if (in.positions.given()) {
        position = of_row(call_, in.positions, row);
        if (position < 0) continue;
      }
      r.rope_position =
          in.rope_positions.given() ? of_row(call_, in.rope_positions, row) : position;
      check_table(row, r.rope_position);
      // Of a prompt that is longer than a ring the last rows stay.
      const bool passed = call_.ring && follow && last - row > call_.capacity;
      if (call_.cached && !passed) r.place = place(sequence, row, position);
      rows.push_back(r);
    }
  }

 private:
  // New rows of a sequence that has `rows` of them with its padding.
  std::int64_t used(std::int64_t sequence, std::int64_t rows) const {
    const Tensor& counts = call_.inputs.seqused;
    if (!counts.given()) return rows;
    const std::int64_t count = integer_at(counts, sequence * counts.strides[0]);
    if (count < 0 || count > rows) {
      check_.refuse(
          fmt::format("seqused[{}] is {}; accepted are 0 to {}, the new rows of the sequence",
                      sequence, count, rows));
    }
    return count;
  }

  std::int64_t cached_keys(std::int64_t sequence) const {
    const Tensor& lengths = call_.inputs.cache_seqlens;
    const std::int64_t keys = integer_at(lengths, sequence * lengths.strides[0]);
    if (keys < 0 || keys > kMostKeys) {
      check_.refuse(fmt::format("cache_seqlens[{}] is {}; accepted are 0 to 2^62", sequence, keys));
    }
    return keys;
  }

  void check_table(std::int64_t row, std::int64_t position) const {
    const Tensor& cos = call_.inputs.cos;
    if (!cos.given() || (position >= 0 && position < cos.shape[0])) return;
    check_.refuse(
        fmt::format("the rotary position of new row {} is {}; accepted are 0 to {}, the rows of "
                    "cos and sin",
                    row, position, cos.shape[0] - 1));
  }

  std::int64_t place(std::int64_t sequence, std::int64_t row, std::int64_t position) const {
    if (call_.ring && call_.capacity > 0) position %= call_.capacity;
    if (position >= call_.capacity) {
      check_.refuse(
          fmt::format("the position of new row {}, of sequence {}, is {}; accepted are up to {}, "
                      "the last row of a sequence in the caches",
                      row, sequence, position, call_.capacity - 1));
    }
    if (!call_.paged) return sequence * call_.block_rows + position;
    const Tensor& table = call_.inputs.page_table;
    const std::int64_t n = position / call_.block_rows;
    const std::int64_t page = integer_at(table, sequence * table.strides[0] + n * table.strides[1]);
    if (page < 0 || page >= call_.blocks) {
      check_.refuse(
          fmt::format("page_table[{}, {}] is {}; accepted are 0 to {}, the pages of the caches, as "
                      "new row {} has position {}",
                      sequence, n, page, call_.blocks - 1, row, position));
    }
    return page * call_.block_rows + position % call_.block_rows;
  }

  // So that rows can be added to them.
  static constexpr std::int64_t kMostKeys = std::int64_t{1} << 62;

  const AppendCall& call_;
  const ArgumentCheck check_;
};

// No two rows have one place. Places mostly come in a few increasing runs (sequences, pages), which
// are put in order instead of the rows; only where runs interleave are the rows.
void check_apart(const std::vector<AppendRow>& rows) {
  std::vector<std::pair<std::int64_t, std::int64_t>> runs;  // first and last place
  for (const AppendRow& r : rows) {
    if (r.place == kNoPlace) continue;
    if (runs.empty() || r.place <= runs.back().second) {
      runs.emplace_back(r.place, r.place);
    } else {
      runs.back().second = r.place;
    }
  }
  std::sort(runs.begin(), runs.end());
  const auto touch = [](const auto& a, const auto& b) { return b.first <= a.second; };
  if (std::adjacent_find(runs.begin(), runs.end(), touch) == runs.end()) return;
  std::vector<std::pair<std::int64_t, std::int64_t>> places;  // and the row
  for (const AppendRow& r : rows) {
    if (r.place != kNoPlace) places.emplace_back(r.place, r.row);
  }
  std::sort(places.begin(), places.end());
  const auto same = [](const auto& a, const auto& b) { return a.first == b.first; };
  const auto found = std::adjacent_find(places.begin(), places.end(), same);
  if (found == places.end()) return;
  ArgumentCheck().refuse(
      fmt::format("new rows {} and {} go to the same row of the caches; accepted are rows with a "
                  "place each",
                  found->second, std::next(found)->second));
}

}  // namespace

std::vector<AppendRow> append_rows(const AppendCall& call) {
  std::vector<AppendRow> rows;
  rows.reserve(static_cast<std::size_t>(call.rows));
  const Places places(call);
  for (std::int64_t b = 0; b < call.batch; ++b) {
    const std::int64_t first =
        call.packed ? integer_at(call.inputs.cu_seqlens, b) : b * call.seqlen;
    const std::int64_t last =
        call.packed ? integer_at(call.inputs.cu_seqlens, b + 1) : first + call.seqlen;
    places.add_sequence(b, first, last, rows);
  }
  check_apart(rows);
  return rows;
}

AppendRows::AppendRows(const Tensor& t, bool packed)
    : base(static_cast<std::byte*>(t.data)),
      block_rows(packed ? INT64_MAX : std::max<std::int64_t>(1, t.shape[1])) {
  const auto element = static_cast<std::int64_t>(size_of(t.dtype));
  const std::size_t of_row = packed ? 0 : 1;
  block_stride = packed ? 0 : t.strides[0] * element;
  row_stride = t.strides[of_row] * element;
  head_stride = t.strides[of_row + 1] * element;
}

float given_scale(const AppendPart& part, std::int64_t head) {
  if (!part.scale.given()) return 1;
  const std::int64_t at = part.scale.shape[0] == 1 ? 0 : head;
  return static_cast<const float*>(part.scale.data)[at * part.scale.strides[0]];
}

}  // namespace attn::core
