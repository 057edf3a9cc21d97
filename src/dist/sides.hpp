// The rows of Q, or of K and V, as one line that is dealt to the ranks, and where sequences lie on
// it.
#pragma once

#include <cstdint>
#include <vector>

#include "attn/dist.hpp"
#include "core/problem/places.hpp"

namespace attn::dist {

// Dense: the rows of a sequence, which all sequences share. Packed: the rows of the tensor.
struct Side {
  bool packed = false;
  bool has_used = false;              // lengths in use were given
  std::int64_t rows = 0;              // of the line
  std::vector<std::int64_t> start{};  // of each sequence, on the line
  std::vector<std::int64_t> capacity{}, used{};

  bool operator==(const Side&) const = default;
  // Whether all sequences have one length in use.
  bool alike() const;
};

// Both check the lengths that belong to the side and throw Error(invalid_argument).
Side side_of_q(const Problem& problem, const Lengths& lengths);
Side side_of_k(const Problem& problem, const Lengths& lengths);

// Rows that a rank has of a line: ascending, apart from each other.
using RowList = std::vector<Rows>;

// Appends rows behind those of the list, to the last of it where they touch.
void append(RowList& list, Rows rows);
std::int64_t count(const RowList& list);
// How many of the list's rows lie before that row of the line.
std::int64_t rows_before(const RowList& list, std::int64_t row);
RowList common(const RowList& a, const RowList& b);
// The rows of the list and all others of the blocks that they are in: each sequence is cut every
// kBlockRows rows, of which the last block may have fewer. So a rank's keys of a sequence are whole
// blocks of it, which kernels go through as one rank does, and whose bits dropout draws at once.
inline constexpr std::int64_t kBlockRows = 64;
RowList whole_blocks(const RowList& list, const Side& side);

// What a rank's tensor of the listed rows has of sequence `batch`: its rows there, those in use,
// and which rows of the whole sequence they are.
std::int64_t local_start(const RowList& list, const Side& side, std::int64_t batch);
std::int64_t local_capacity(const RowList& list, const Side& side, std::int64_t batch);
std::int64_t local_used(const RowList& list, const Side& side, std::int64_t batch);
core::Runs local_runs(const RowList& list, const Side& side, std::int64_t batch);

}  // namespace attn::dist
