// What the page of `attn explain` shows of a problem, computed by the library.
#pragma once

#include <cstdint>

#include "attn/plan.hpp"
#include "explain/tile_map.hpp"

namespace attn::explain {

struct Request {
  Problem problem;  // complete
  Phase phase = Phase::forward;
  Algorithm algorithm = Algorithm::automatic;
  std::int64_t batch = 0, head = 0;       // whose tiles and sample are shown
  std::int64_t block_q = 0, block_k = 0;  // of the tile map; 0: those of the plan
  std::uint64_t seed = 1;                 // of the sample and of buffers without data
};

// {"problem", "plan", "map": tile_map(), "tilings": counts over all heads of all sequences for
// block sizes that a reader may choose, "sample": sample(), "memories": fast memories to fit tiles
// into, "sources": source_lines_json()}. Sequences have their full lengths. Needs no GPU: the plan
// is that of the CPU. Throws Error(invalid_argument) for a problem that is not complete or has no
// query or key, a batch or head that it does not have; what make_plan() throws;
// Error(out_of_memory) where the problem declares larger buffers than can be made up.
Json problem_json(const Request& request, std::int64_t max_cells);
// Its "map" alone, of another number of cells.
Json map_json(const Request& request, std::int64_t max_cells);

}  // namespace attn::explain
