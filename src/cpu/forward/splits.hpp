// Into how many parts the forward pass cuts the keys of a sequence.
#pragma once

#include <cstdint>

#include "attn/plan.hpp"
#include "cpu/tasks.hpp"

namespace attn::cpu {

// Tasks that keep any ordinary machine busy without depending on its size.
inline constexpr std::int64_t kEnoughTasks = 32;
// A part of the keys is worth a task of its own from here on: merging it costs about as much as one
// K block of 64 keys.
inline constexpr std::int64_t kMinSplitKeys = 512;

// Parts of the keys with which flash_decoding has enough tasks of `batch` sequences.
std::int64_t wanted_splits(const Problem& problem, std::int32_t block_q, std::int64_t batch);
// The most parts of `length` keys that are each worth a task, at least 1.
std::int64_t useful_splits(const Problem& problem, std::int64_t length);

// Parts of each list (Problem::key_list) with which there are enough tasks of `batch` sequences.
std::int64_t list_splits(const Problem& problem, std::int32_t block_q, std::int64_t batch);

// PlanOptions::batch_invariant: parts of a sequence of `length` keys. They depend on the length and
// on what the problem says of all sequences alike, and never become fewer where the length grows.
// With lists: parts of each list, whatever the length.
std::int64_t invariant_splits(const Problem& problem, Algorithm algorithm, std::int32_t block_q,
                              std::int64_t length);

// The parts of each sequence in a run of a plan.
class Splits {
 public:
  explicit Splits(const Plan& plan);

  std::int64_t most() const { return plan_.num_splits; }  // no sequence has more
  std::int64_t of(const core::Sequence& sequence) const;
  // The most parts that a sequence of the call has.
  std::int64_t most_of(const Attention& a) const;
  KeyRange range(const core::Sequence& sequence, std::int64_t index) const {
    return split_range(sequence.length_k, of(sequence), index);
  }

 private:
  const Plan& plan_;
  bool by_length_;  // a sequence that is shorter than the plan's has fewer
};

}  // namespace attn::cpu
