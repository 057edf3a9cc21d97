#include "traffic/cache.hpp"

#include <fmt/format.h>

#include <cmath>

#include "attn/error.hpp"

namespace attn::traffic {

Cache::Cache(const Problem& problem, const Blocks& blocks, const CacheShape& shape,
             bool flush_steps)
    : problem_(problem),
      line_bytes_(shape.line_bytes),
      capacity_(shape.bytes / shape.line_bytes),
      flush_steps_(flush_steps) {
  constexpr double kMostLines = 1 << 30;
  double lines = 0;
  for (std::size_t i = 0; i < kOperands; ++i) {
    const auto operand = static_cast<Operand>(i);
    const Extent e = extent(problem, operand, blocks);
    columns_[i] = e.columns;
    first_line_[i] = static_cast<std::int64_t>(lines);
    lines += std::ceil(static_cast<double>(e.rows) * static_cast<double>(e.columns) *
                       static_cast<double>(element_bytes(problem, operand)) /
                       static_cast<double>(line_bytes_));
    if (lines > kMostLines) {
      throw Error(ErrorCode::unsupported,
                  fmt::format("the operands of one head of {} have more than {:.0f} lines of {} "
                              "bytes, which is what the simulated cache takes",
                              to_string(problem), kMostLines, line_bytes_));
    }
  }
  first_line_[kOperands] = static_cast<std::int64_t>(lines);
}

void Cache::access(const Access& a) {
  if (capacity_ == 0 && a.use == Use::again) return;
  const auto index = static_cast<std::size_t>(a.operand);
  if (lines_.empty()) lines_.resize(static_cast<std::size_t>(first_line_[kOperands]));
  const std::int64_t size = element_bytes(problem_, a.operand);
  const std::int64_t base = first_line_[index];
  // Rows that are taken whole lie one after the other.
  const bool whole_rows = a.columns == columns_[index];
  const std::int64_t pieces = whole_rows ? 1 : a.rows;
  const std::int64_t length = (whole_rows ? a.rows * a.columns : a.columns) * size;
  for (std::int64_t i = 0; i < pieces; ++i) {
    const std::int64_t begin = ((a.row + i) * columns_[index] + a.column) * size;
    const std::int64_t end = begin + length;
    for (std::int64_t line = begin / line_bytes_; line * line_bytes_ < end; ++line) {
      const bool whole = begin <= line * line_bytes_ && (line + 1) * line_bytes_ <= end;
      touch(static_cast<std::int32_t>(base + line), a.operand, a.use == Use::store, whole);
    }
  }
}

void Cache::touch(std::int32_t index, Operand operand, bool write, bool whole) {
  Line& line = lines_[static_cast<std::size_t>(index)];
  const auto bytes = static_cast<double>(line_bytes_);
  const bool fetch = !line.present && !(write && whole);
  if (fetch) traffic_[operand].read += bytes;
  if (capacity_ == 0) {
    if (write) traffic_[operand].written += bytes;
    return;
  }
  if (line.present) {
    if (newest_ != index) {
      unlink(index);
      push_newest(index);
    }
  } else {
    if (present_ == capacity_) evict_oldest();
    line.present = true;
    ++present_;
    push_newest(index);
  }
  line.dirty = line.dirty || write;
}

void Cache::unlink(std::int32_t index) {
  const Line& line = lines_[static_cast<std::size_t>(index)];
  (line.newer == kNone ? newest_ : lines_[static_cast<std::size_t>(line.newer)].older) = line.older;
  (line.older == kNone ? oldest_ : lines_[static_cast<std::size_t>(line.older)].newer) = line.newer;
}

void Cache::push_newest(std::int32_t index) {
  Line& line = lines_[static_cast<std::size_t>(index)];
  line.newer = kNone;
  line.older = newest_;
  (newest_ == kNone ? oldest_ : lines_[static_cast<std::size_t>(newest_)].newer) = index;
  newest_ = index;
}

void Cache::evict_oldest(bool discard_scratch) {
  const std::int32_t index = oldest_;
  unlink(index);
  Line& line = lines_[static_cast<std::size_t>(index)];
  const Operand operand = operand_of(index);
  if (line.dirty && !(discard_scratch && operand == Operand::scratch)) {
    traffic_[operand].written += static_cast<double>(line_bytes_);
  }
  line.present = line.dirty = false;
  --present_;
}

Operand Cache::operand_of(std::int32_t line) const {
  std::size_t operand = 0;
  while (first_line_[operand + 1] <= line) ++operand;
  return static_cast<Operand>(operand);
}

void Cache::flush(bool discard_scratch) {
  while (present_ > 0) evict_oldest(discard_scratch);
}

void Cache::end_step() {
  if (flush_steps_) flush(true);
}

const Traffic& Cache::finish() {
  flush(true);
  return traffic_;
}

namespace {

class LineCounter : public Visitor {
 public:
  LineCounter(const Problem& problem, const Blocks& blocks, std::int64_t line_bytes)
      : problem_(problem), blocks_(blocks), line_bytes_(static_cast<double>(line_bytes)) {}
  void access(const Access& a) override {
    const auto size = static_cast<double>(element_bytes(problem_, a.operand));
    const bool whole_rows = a.columns == extent(problem_, a.operand, blocks_).columns;
    const double pieces = whole_rows ? 1 : static_cast<double>(a.rows);
    const double elements = static_cast<double>(a.rows) * static_cast<double>(a.columns);
    lines_ += elements * size / line_bytes_ + pieces;
  }
  double lines() const { return lines_; }

 private:
  const Problem& problem_;
  Blocks blocks_;
  double line_bytes_, lines_ = 0;
};

}  // namespace

double line_accesses(const Problem& problem, Phase phase, Algorithm algorithm, const Blocks& blocks,
                     std::int64_t line_bytes) {
  LineCounter counter(problem, blocks, line_bytes);
  walk(problem, phase, algorithm, blocks, 0, 0, counter);
  return counter.lines();
}

Traffic simulate(const Problem& problem, Phase phase, Algorithm algorithm, const Blocks& blocks,
                 const CacheShape& shape) {
  Traffic sum;
  for_each_head(problem, [&](std::int64_t batch, std::int64_t head, double weight) {
    Cache cache(problem, blocks, shape);
    walk(problem, phase, algorithm, blocks, batch, head, cache);
    Traffic of_head = cache.finish();
    of_head *= weight;
    sum += of_head;
  });
  return sum;
}

}  // namespace attn::traffic
