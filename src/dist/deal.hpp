// Which rank gets which chunk of queries.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "attn/dist.hpp"
#include "dist/areas.hpp"

namespace attn::dist {

// What the deal of a problem is judged by.
struct DealInput {
  const Areas& areas;
  int ranks = 1;
  const Cuts& cuts_k;
  double seconds_per_element = 0;  // of a visible (query, key) pair
  double seconds_per_row = 0;      // of sending a row of K and V
  // The owner of each chunk of K and V; empty: the chunks are those of Q, and go with them.
  std::vector<int> owner_k{};
};

struct Dealt {
  std::vector<int> owner;  // of each chunk of queries
  double seconds = 0;      // of the slowest rank, as predicted for the choice
  std::string by{};        // which way of dealing it is
};

// All ways give a rank at most ceil(chunks / ranks) chunks, so that whatever else is done with the
// rows is even as well.
Dealt deal(const DealInput& input, Deal way);

}  // namespace attn::dist
