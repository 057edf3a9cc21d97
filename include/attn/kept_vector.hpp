// The vectors of what describes a call: names with tensors, lengths.
#pragma once

#include <utility>
#include <vector>

#include "attn/export.hpp"

namespace ATTN_API attn {

// A std::vector that has its elements even after another KeptVector was made of it by a move: that
// copies it. Inputs that had lost their buffers would describe another call, and it would run.
template <class T>
class KeptVector : public std::vector<T> {
 public:
  using std::vector<T>::vector;
  KeptVector() = default;
  KeptVector(std::vector<T> elements)  // NOLINT(google-explicit-constructor): it is one
      : std::vector<T>(std::move(elements)) {}
  // No moves are declared, so that these are taken.
  KeptVector(const KeptVector&) = default;
  KeptVector& operator=(const KeptVector&) = default;
  ~KeptVector() = default;
};

}  // namespace attn
