// A simulated cache: fully associative, least recently used line out, written back when it leaves.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "traffic/traffic.hpp"
#include "traffic/walk.hpp"

namespace attn::traffic {

// A line that is missing is read from the slow memory unless the access writes it whole. `bytes` of
// 0 is no cache: each access moves its lines.
struct CacheShape {
  std::int64_t bytes = 0;
  std::int64_t line_bytes = 64;
};

// Takes the accesses of one head's walk and counts what they move. Each operand is a contiguous
// row-major matrix that starts on a line of its own.
class Cache : public Visitor {
 public:
  // flush_steps: the cache is emptied after every step, as between kernels that share nothing.
  // Throws Error(unsupported) where the operands have more than 2^30 lines.
  Cache(const Problem& problem, const Blocks& blocks, const CacheShape& shape,
        bool flush_steps = false);

  void access(const Access& access) override;
  void end_step() override;
  // Writes back what is left, but for scratch, which nobody reads again, and returns the sum.
  const Traffic& finish();

 private:
  struct Line {
    std::int32_t newer = kNone, older = kNone;
    bool present = false, dirty = false;
  };
  static constexpr std::int32_t kNone = -1;

  void touch(std::int32_t index, Operand operand, bool write, bool whole);
  void unlink(std::int32_t index);
  void push_newest(std::int32_t index);
  void evict_oldest(bool discard_scratch = false);
  void flush(bool discard_scratch);
  Operand operand_of(std::int32_t line) const;

  const Problem& problem_;
  std::int64_t line_bytes_, capacity_;  // capacity in lines
  bool flush_steps_;
  std::array<std::int64_t, kOperands + 1> first_line_{};  // of each operand
  std::array<std::int64_t, kOperands> columns_{};
  std::vector<Line> lines_;
  std::int32_t newest_ = kNone, oldest_ = kNone;
  std::int64_t present_ = 0;
  Traffic traffic_;
};

// Lines that the walk of one head touches: what a simulation costs, about 10 ns each.
double line_accesses(const Problem& problem, Phase phase, Algorithm algorithm, const Blocks& blocks,
                     std::int64_t line_bytes);

// Simulates all heads, each on an empty cache.
Traffic simulate(const Problem& problem, Phase phase, Algorithm algorithm, const Blocks& blocks,
                 const CacheShape& shape);

}  // namespace attn::traffic
