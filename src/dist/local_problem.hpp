// A rank's share of a problem as a problem of its own.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "attn/dist.hpp"
#include "core/problem/places.hpp"
#include "dist/sides.hpp"

namespace attn::dist {

// Names of buffers with which rewritten masks and scores find out where a row stands; no buffer of
// a problem's own begins so.
inline constexpr const char* kOwnBuffers = "dist_";

// The tables that the problem's mask and score read by such names, each once.
expr::Bindings own_tables(const Problem& problem);

struct LocalProblem {
  Problem problem{};  // its expressions read `tables`
  std::shared_ptr<const core::Places> places{};
  // Inputs::cu_seqlens and seqused of the rank's rows and gathered keys; empty where the layout or
  // the lengths need none.
  std::vector<std::int32_t> cu_q{}, cu_k{}, used_q{}, used_k{};
};

// The rows in `rows` of Q against those in `gathered` of K and V. Query i of a sequence here is
// query i + shift of the whole, with a shift for each run of rows, so `query` becomes
// select(query < begin of the second run, query + first shift, query + second shift); interval
// arithmetic decides such a condition for each tile that lies in one run. Where sequences have runs
// of their own, beginnings and shifts are read from tables by `batch`. Example: rows 0-63 and
// 192-255 of 256 are select(query < 64, query, query + 128).
LocalProblem local_problem(const Problem& problem, const Side& side_q, const Side& side_k,
                           const RowList& rows, const RowList& gathered);

}  // namespace attn::dist
