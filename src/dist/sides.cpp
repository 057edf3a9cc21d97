#include "dist/sides.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <string_view>

#include "core/ceil_div.hpp"
#include "core/validate/argument_check.hpp"

namespace attn::dist {
namespace {

struct Names {
  std::string_view seqlen, cu_seqlens, seqused;
};

void check_starts(const core::ArgumentCheck& check, const Names& names, std::int64_t batch,
                  std::int64_t seqlen, std::span<const std::int32_t> starts) {
  if (static_cast<std::int64_t>(starts.size()) != batch + 1 || starts[0] != 0) {
    check.refuse(
        fmt::format("{} of the lengths has {} numbers{}; accepted are {}, batch + 1, of "
                    "which the first is 0, as the layout is packed",
                    names.cu_seqlens, starts.size(),
                    starts.empty() ? "" : fmt::format(" from {}", starts[0]), batch + 1));
  }
  for (std::size_t b = 0; b + 1 < starts.size(); ++b) {
    const std::int64_t length = std::int64_t{starts[b + 1]} - starts[b];
    if (length >= 0 && length <= seqlen) continue;
    check.refuse(
        fmt::format("{} of the lengths gives sequence {} {} rows; accepted are 0 to {}, {}",
                    names.cu_seqlens, b, length, seqlen, names.seqlen));
  }
}

Side make_side(const Problem& p, const Names& names, Layout layout, std::int64_t seqlen,
               const std::vector<std::int32_t>& starts, const std::vector<std::int32_t>& used) {
  const core::ArgumentCheck check(&p);
  Side side{.packed = layout == Layout::packed, .has_used = !used.empty()};
  const auto batch = static_cast<std::size_t>(p.batch);
  if (side.packed) {
    check_starts(check, names, p.batch, seqlen, starts);
  } else if (!starts.empty()) {
    check.refuse(
        fmt::format("{} of the lengths has {} numbers; accepted are none where the layout "
                    "is not packed",
                    names.cu_seqlens, starts.size()));
  }
  if (side.has_used && used.size() != batch) {
    check.refuse(
        fmt::format("{} of the lengths has {} numbers; accepted are {}, the batch, or none",
                    names.seqused, used.size(), batch));
  }
  side.rows = side.packed ? starts.back() : seqlen;
  for (std::size_t b = 0; b < batch; ++b) {
    side.start.push_back(side.packed ? starts[b] : 0);
    side.capacity.push_back(side.packed ? starts[b + 1] - starts[b] : seqlen);
    side.used.push_back(side.has_used ? used[b] : side.capacity[b]);
    if (side.used[b] >= 0 && side.used[b] <= side.capacity[b]) continue;
    check.refuse(
        fmt::format("{}[{}] of the lengths is {}; accepted are 0 to {}, the rows of the "
                    "sequence",
                    names.seqused, b, side.used[b], side.capacity[b]));
  }
  return side;
}

// The part of rows that lies in [begin, end).
Rows cut(Rows rows, std::int64_t begin, std::int64_t end) {
  return {std::max(rows.begin, begin), std::min(rows.end, end)};
}

}  // namespace

bool Side::alike() const {
  return !packed && std::all_of(used.begin(), used.end(), [&](auto n) { return n == used[0]; });
}

Side side_of_q(const Problem& p, const Lengths& lengths) {
  return make_side(p, {"seqlen_q", "cu_seqlens_q", "seqused_q"}, p.layout_q, p.seqlen_q,
                   lengths.cu_seqlens_q, lengths.seqused_q);
}

Side side_of_k(const Problem& p, const Lengths& lengths) {
  return make_side(p, {"seqlen_k", "cu_seqlens_k", "seqused_k"}, p.layout_k, p.seqlen_k,
                   lengths.cu_seqlens_k, lengths.seqused_k);
}

void append(RowList& list, Rows rows) {
  if (rows.begin >= rows.end) return;
  if (!list.empty() && list.back().end == rows.begin) {
    list.back().end = rows.end;
  } else {
    list.push_back(rows);
  }
}

std::int64_t count(const RowList& list) {
  std::int64_t total = 0;
  for (const Rows& rows : list) total += rows.end - rows.begin;
  return total;
}

std::int64_t rows_before(const RowList& list, std::int64_t row) {
  std::int64_t before = 0;
  for (const Rows& rows : list) {
    if (rows.begin >= row) break;
    before += std::min(rows.end, row) - rows.begin;
  }
  return before;
}

RowList common(const RowList& a, const RowList& b) {
  RowList both;
  for (std::size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    append(both, cut(a[i], b[j].begin, b[j].end));
    a[i].end < b[j].end ? ++i : ++j;
  }
  return both;
}

RowList whole_blocks(const RowList& list, const Side& side) {
  RowList whole;
  const auto add = [&](Rows rows, std::int64_t start, std::int64_t end) {
    const Rows part = cut(rows, start, end);
    if (part.begin >= part.end) return;
    const std::int64_t begin = part.begin - (part.begin - start) % kBlockRows;
    const std::int64_t blocks = core::ceil_div(part.end - start, kBlockRows);
    append(whole, {whole.empty() ? begin : std::max(begin, whole.back().end),
                   std::min(end, start + blocks * kBlockRows)});
  };
  if (!side.packed) {
    for (const Rows& rows : list) add(rows, 0, side.rows);
    return whole;
  }
  std::size_t first = 0;
  for (const Rows& rows : list) {
    while (first < side.start.size() && side.start[first] + side.capacity[first] <= rows.begin) {
      ++first;
    }
    for (std::size_t b = first; b < side.start.size() && side.start[b] < rows.end; ++b) {
      add(rows, side.start[b], side.start[b] + side.capacity[b]);
    }
  }
  return whole;
}

std::int64_t local_start(const RowList& list, const Side& side, std::int64_t batch) {
  return rows_before(list, side.start[static_cast<std::size_t>(batch)]);
}

std::int64_t local_capacity(const RowList& list, const Side& side, std::int64_t batch) {
  const auto b = static_cast<std::size_t>(batch);
  return rows_before(list, side.start[b] + side.capacity[b]) - rows_before(list, side.start[b]);
}

std::int64_t local_used(const RowList& list, const Side& side, std::int64_t batch) {
  const auto b = static_cast<std::size_t>(batch);
  return rows_before(list, side.start[b] + side.used[b]) - rows_before(list, side.start[b]);
}

core::Runs local_runs(const RowList& list, const Side& side, std::int64_t batch) {
  const auto b = static_cast<std::size_t>(batch);
  const std::int64_t start = side.start[b];
  core::Runs runs;
  std::int64_t local = 0;
  for (const Rows& rows : list) {
    const Rows part = cut(rows, start, start + side.capacity[b]);
    if (part.begin >= part.end) continue;
    runs.push_back(
        {static_cast<std::int32_t>(local), static_cast<std::int32_t>(part.begin - start - local)});
    local += part.end - part.begin;
  }
  if (runs.empty()) runs.push_back({});
  return runs;
}

}  // namespace attn::dist
