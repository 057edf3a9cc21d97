// The papers' algorithms as the sequence of their loads and stores, for one head: what drives the
// simulated cache.
#pragma once

#include <cstdint>

#include "attn/plan.hpp"
#include "traffic/tiles.hpp"
#include "traffic/traffic.hpp"

namespace attn::traffic {

enum class Use : std::uint8_t {
  load,
  store,
  again,  // read where it should still lie in the fast memory: a cache may have lost it
};

// Rows [row, row + rows) and columns [column, column + columns) of one head's matrix.
struct Access {
  Operand operand = Operand::q;
  std::int64_t row = 0, rows = 0, column = 0, columns = 0;
  Use use = Use::load;
};

// Elements of a row and rows of an operand of one head. Scratch is one row, as long as the
// algorithm needs it.
struct Extent {
  std::int64_t rows = 0, columns = 0;
};
Extent extent(const Problem& problem, Operand operand, const Blocks& blocks);

class Visitor {
 public:
  Visitor() = default;
  Visitor(const Visitor&) = delete;
  Visitor& operator=(const Visitor&) = delete;
  virtual ~Visitor() = default;
  virtual void access(const Access& access) = 0;
  // A step ends: standard attention is several kernels, one after the other.
  virtual void end_step() {}
};

// Loads and stores of (batch, head), in order, as model() counts them, and between them what is
// used again. The steps of standard attention go tile by tile and load what a product of tiles
// needs each time, so that it takes a fast memory to move each operand once a step. Throws as
// model().
void walk(const Problem& problem, Phase phase, Algorithm algorithm, const Blocks& blocks,
          std::int64_t batch, std::int64_t head, Visitor& visitor);

}  // namespace attn::traffic
