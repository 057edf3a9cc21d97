#include "dist/areas.hpp"

#include <algorithm>
#include <utility>

namespace attn::dist {
namespace {

// Rows, or keys, of the smallest tile that is looked at: in chunks of more than 16384 rows, a 128th
// of them, so that long sequences are counted as fast as short ones.
constexpr std::int64_t kLeastTile = 128, kTilesOfChunk = 128;

// Chunks [begin, end) of a side.
struct Chunks {
  std::size_t begin, end;
  std::size_t size() const { return end - begin; }
};

// The chunks that have rows in [begin, end).
Chunks chunks_in(const Cuts& cuts, std::int64_t begin, std::int64_t end) {
  if (begin >= end) return {0, 0};
  const auto first = std::upper_bound(cuts.begin(), cuts.end(), begin) - cuts.begin() - 1;
  const auto last = std::lower_bound(cuts.begin(), cuts.end(), end) - cuts.begin();
  return {static_cast<std::size_t>(first), static_cast<std::size_t>(last)};
}

// Where the mask tells more heads apart, some are counted as one.
constexpr std::int64_t kHeadGroups = 1024;

using AreaRuns = std::vector<Areas::Run>;

void append(AreaRuns& runs, Areas::Run run) {
  if (run.begin == run.end) return;
  if (!runs.empty() && runs.back().end == run.begin && runs.back().area == run.area) {
    runs.back().end = run.end;
  } else {
    runs.push_back(run);
  }
}

// The areas of both, summed where they overlap.
AreaRuns sum(const AreaRuns& a, const AreaRuns& b) {
  if (a.empty()) return b;
  AreaRuns both;
  std::size_t i = 0, j = 0;
  for (std::size_t at = 0; i < a.size() || j < b.size();) {
    const auto begin = [at](const AreaRuns& runs, std::size_t index) {
      return index < runs.size() ? std::max(at, runs[index].begin) : std::size_t(-1);
    };
    at = std::min(begin(a, i), begin(b, j));
    double area = 0;
    auto end = std::size_t(-1);
    for (const auto& [runs, index] : {std::pair{&a, i}, std::pair{&b, j}}) {
      if (index == runs->size()) continue;
      const Areas::Run& run = (*runs)[index];
      end = std::min(end, run.begin > at ? run.begin : run.end);
      if (run.begin <= at) area += run.area;
    }
    append(both, {at, end, area});
    at = end;
    if (i < a.size() && a[i].end == at) ++i;
    if (j < b.size() && b[j].end == at) ++j;
  }
  return both;
}

// Counts one sequence, for one range of heads.
class Counter {
 public:
  Counter(const expr::Expr& mask, const expr::Bindings& buffers, const Side& q, const Side& k,
          const Cuts& cuts_q, const Cuts& cuts_k, std::size_t batch, Areas& areas)
      : mask_(mask), buffers_(buffers), cuts_q_(cuts_q), cuts_k_(cuts_k), areas_(areas) {
    start_q_ = q.start[batch];
    start_k_ = k.start[batch];
    end_q_ = start_q_ + q.used[batch];
    end_k_ = start_k_ + k.used[batch];
    tile_.batch = static_cast<std::int32_t>(batch);
    tile_.seqlen_q = static_cast<std::int32_t>(q.used[batch]);
    tile_.seqlen_k = static_cast<std::int32_t>(k.used[batch]);
  }

  // weight: of a pair that some of these heads see.
  void heads(std::int64_t first, std::int64_t last, double weight) {
    weight_ = weight;
    tile_.head_min = static_cast<std::int32_t>(first);
    tile_.head_max = static_cast<std::int32_t>(last);
    const Chunks q = chunks_in(cuts_q_, start_q_, end_q_);
    rows_.assign(q.size(), {});
    first_ = q.begin;
    count(q, chunks_in(cuts_k_, start_k_, end_k_));
    for (std::size_t i = 0; i < rows_.size(); ++i) {
      if (!rows_[i].empty()) areas_.rows[first_ + i] = sum(areas_.rows[first_ + i], rows_[i]);
    }
  }

 private:
  Rows queries(Chunks c) const {
    return {std::max(cuts_q_[c.begin], start_q_), std::min(cuts_q_[c.end], end_q_)};
  }
  Rows keys(Chunks c) const {
    return {std::max(cuts_k_[c.begin], start_k_), std::min(cuts_k_[c.end], end_k_)};
  }

  expr::Coverage coverage(Rows q, Rows k) {
    if (mask_.empty()) return expr::Coverage::full;
    tile_.query_min = static_cast<std::int32_t>(q.begin - start_q_);
    tile_.query_max = static_cast<std::int32_t>(q.end - 1 - start_q_);
    tile_.key_min = static_cast<std::int32_t>(k.begin - start_k_);
    tile_.key_max = static_cast<std::int32_t>(k.end - 1 - start_k_);
    return expr::classify(mask_, tile_, buffers_);
  }

  // Appends to the row of each chunk of queries, whose chunks of keys it meets in order.
  void count(Chunks q, Chunks k) {
    if (q.size() == 0 || k.size() == 0) return;
    const expr::Coverage coverage = this->coverage(queries(q), keys(k));
    if (coverage == expr::Coverage::empty) return;
    if (coverage == expr::Coverage::full) return add_full(q, k);
    if (q.size() == 1 && k.size() == 1) {
      const Rows rows = queries(q), columns = keys(k);
      const std::int64_t longer = std::max(rows.end - rows.begin, columns.end - columns.begin);
      const std::int64_t tile = std::max(kLeastTile, longer / kTilesOfChunk);
      const double area = weight_ * visible(rows, columns, coverage, tile);
      if (area > 0) append(rows_[q.begin - first_], {k.begin, k.end, area});
      return;
    }
    Chunks low_q = q, low_k = k, high_q = q, high_k = k;
    if (q.size() >= k.size()) {
      low_q.end = high_q.begin = q.begin + q.size() / 2;
    } else {
      low_k.end = high_k.begin = k.begin + k.size() / 2;
    }
    count(low_q, low_k);
    count(high_q, high_k);
  }

  // All chunks but the last one of the line have one size, and a sequence cuts its first and last.
  void add_full(Chunks q, Chunks k) {
    const std::size_t inner = std::min(k.begin + 1, k.end), last = std::max(inner, k.end - 1);
    for (std::size_t i = q.begin; i < q.end; ++i) {
      for (const Chunks part : {Chunks{k.begin, inner}, Chunks{inner, last}, Chunks{last, k.end}}) {
        if (part.size() == 0) continue;
        const double area = weight_ * size(queries({i, i + 1}), keys({part.begin, part.begin + 1}));
        append(rows_[i - first_], {part.begin, part.end, area});
      }
    }
  }

  static double size(Rows q, Rows k) {
    return static_cast<double>(q.end - q.begin) * static_cast<double>(k.end - k.begin);
  }

  double visible(Rows q, Rows k, expr::Coverage known, std::int64_t tile) {
    if (known == expr::Coverage::empty) return 0;
    const std::int64_t rows = q.end - q.begin;
    const std::int64_t columns = k.end - k.begin;
    if (known == expr::Coverage::full || (rows <= tile && columns <= tile)) return size(q, k);
    Rows low_q = q, low_k = k, high_q = q, high_k = k;
    if (rows >= columns) {
      low_q.end = high_q.begin = q.begin + rows / 2;
    } else {
      low_k.end = high_k.begin = k.begin + columns / 2;
    }
    return visible(low_q, low_k, coverage(low_q, low_k), tile) +
           visible(high_q, high_k, coverage(high_q, high_k), tile);
  }

  const expr::Expr& mask_;
  const expr::Bindings& buffers_;
  const Cuts& cuts_q_;
  const Cuts& cuts_k_;
  double weight_ = 0;
  Areas& areas_;
  std::int64_t start_q_ = 0, end_q_ = 0, start_k_ = 0, end_k_ = 0;
  expr::Tile tile_;
  std::size_t first_ = 0;  // chunk of queries of the sequence
  std::vector<AreaRuns> rows_;
};

}  // namespace

Cuts equal_cuts(std::int64_t rows, std::int64_t chunk) {
  Cuts cuts{0};
  while (cuts.back() < rows) cuts.push_back(std::min(rows, cuts.back() + chunk));
  return cuts;
}

Areas count_areas(const Problem& p, const expr::Expr& mask, const expr::Bindings& buffers,
                  const Side& q, const Side& k, const Cuts& cuts_q, const Cuts& cuts_k) {
  Areas areas;
  areas.rows.resize(chunks(cuts_q));
  const bool by_head = !mask.empty() && expr::depends_on(mask, expr::Op::head);
  const bool by_batch = !mask.empty() && expr::depends_on(mask, expr::Op::batch);
  const bool one_serves = !by_batch && q.alike() && k.alike();
  const std::size_t sequences =
      one_serves ? std::min<std::size_t>(q.start.size(), 1) : q.start.size();
  for (std::size_t b = 0; b < sequences; ++b) {
    const double alike = one_serves ? static_cast<double>(p.batch) : 1;
    Counter counter(mask, buffers, q, k, cuts_q, cuts_k, b, areas);
    const std::int64_t groups = by_head ? std::min(p.heads_q, kHeadGroups) : 1;
    for (std::int64_t g = 0; g < groups; ++g) {
      const std::int64_t first = p.heads_q * g / groups, end = p.heads_q * (g + 1) / groups;
      counter.heads(first, by_head ? end - 1 : first, alike * static_cast<double>(end - first));
    }
  }
  return areas;
}

}  // namespace attn::dist
