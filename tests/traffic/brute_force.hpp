// The papers' algorithms run element by element on arrays that count: each load and each store of
// an element is one call. Written from the pseudo-code alone; shares nothing with tools/traffic.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <string>

namespace attn::traffic {

struct Shape {
  std::int64_t n_q = 0, n_k = 0, d = 0, d_v = 0, block_q = 0, block_k = 0;
  std::function<bool(std::int64_t i, std::int64_t j)> sees;  // query i sees key j
};

// Elements by the name of the matrix.
struct Counts {
  std::map<std::string, double> loaded, stored;
};

// Counts loads and stores of rows [first, last) of an n x `columns` matrix.
class Slow {
 public:
  explicit Slow(Counts& counts) : counts_(counts) {}
  void load(const std::string& matrix, std::int64_t first, std::int64_t last,
            std::int64_t columns) {
    for (std::int64_t r = first; r < last; ++r) {
      for (std::int64_t c = 0; c < columns; ++c) ++counts_.loaded[matrix];
    }
  }
  void store(const std::string& matrix, std::int64_t first, std::int64_t last,
             std::int64_t columns) {
    for (std::int64_t r = first; r < last; ++r) {
      for (std::int64_t c = 0; c < columns; ++c) ++counts_.stored[matrix];
    }
  }

 private:
  Counts& counts_;
};

// Whether any element of the tile is seen: what a skipping algorithm goes by.
inline bool any_seen(const Shape& s, std::int64_t i0, std::int64_t i1, std::int64_t j0,
                     std::int64_t j1) {
  for (std::int64_t i = i0; i < i1; ++i) {
    for (std::int64_t j = j0; j < j1; ++j) {
      if (s.sees(i, j)) return true;
    }
  }
  return false;
}

inline Counts brute_standard_forward(const Shape& s) {
  Counts counts;
  Slow m(counts);
  m.load("q", 0, s.n_q, s.d), m.load("k", 0, s.n_k, s.d), m.store("s", 0, s.n_q, s.n_k);
  m.load("s", 0, s.n_q, s.n_k), m.store("p", 0, s.n_q, s.n_k);
  m.load("p", 0, s.n_q, s.n_k), m.load("v", 0, s.n_k, s.d_v), m.store("o", 0, s.n_q, s.d_v);
  return counts;
}

inline Counts brute_standard_backward(const Shape& s) {
  Counts counts;
  Slow m(counts);
  m.load("p", 0, s.n_q, s.n_k), m.load("do", 0, s.n_q, s.d_v), m.store("dv", 0, s.n_k, s.d_v);
  m.load("do", 0, s.n_q, s.d_v), m.load("v", 0, s.n_k, s.d_v), m.store("dp", 0, s.n_q, s.n_k);
  m.load("p", 0, s.n_q, s.n_k), m.load("dp", 0, s.n_q, s.n_k), m.store("ds", 0, s.n_q, s.n_k);
  m.load("ds", 0, s.n_q, s.n_k), m.load("k", 0, s.n_k, s.d), m.store("dq", 0, s.n_q, s.d);
  m.load("ds", 0, s.n_q, s.n_k), m.load("q", 0, s.n_q, s.d), m.store("dk", 0, s.n_k, s.d);
  return counts;
}

// FlashAttention, algorithms 1 and 4; skip: algorithm 5 and its backward pass.
inline Counts brute_flash(const Shape& s, bool backward, bool skip) {
  Counts counts;
  Slow m(counts);
  if (backward) {
    m.store("dq", 0, s.n_q, s.d), m.store("dk", 0, s.n_k, s.d), m.store("dv", 0, s.n_k, s.d_v);
  } else {
    m.store("o", 0, s.n_q, s.d_v), m.store("lse", 0, s.n_q, 2);
  }
  for (std::int64_t j = 0; j < s.n_k; j += s.block_k) {
    const std::int64_t j1 = std::min(s.n_k, j + s.block_k);
    m.load("k", j, j1, s.d), m.load("v", j, j1, s.d_v);
    for (std::int64_t i = 0; i < s.n_q; i += s.block_q) {
      const std::int64_t i1 = std::min(s.n_q, i + s.block_q);
      if (skip && !any_seen(s, i, i1, j, j1)) continue;
      m.load("q", i, i1, s.d), m.load("o", i, i1, s.d_v), m.load("lse", i, i1, 2);
      if (backward) {
        m.load("do", i, i1, s.d_v), m.load("dq", i, i1, s.d), m.store("dq", i, i1, s.d);
      } else {
        m.store("o", i, i1, s.d_v), m.store("lse", i, i1, 2);
      }
    }
    if (backward) m.store("dk", j, j1, s.d), m.store("dv", j, j1, s.d_v);
  }
  return counts;
}

// FlashAttention-2, algorithms 1 and 2.
inline Counts brute_flash_2(const Shape& s, bool backward) {
  Counts counts;
  Slow m(counts);
  if (!backward) {
    for (std::int64_t i = 0; i < s.n_q; i += s.block_q) {
      const std::int64_t i1 = std::min(s.n_q, i + s.block_q);
      m.load("q", i, i1, s.d);
      for (std::int64_t j = 0; j < s.n_k; j += s.block_k) {
        const std::int64_t j1 = std::min(s.n_k, j + s.block_k);
        if (any_seen(s, i, i1, j, j1)) m.load("k", j, j1, s.d), m.load("v", j, j1, s.d_v);
      }
      m.store("o", i, i1, s.d_v), m.store("lse", i, i1, 1);
    }
    return counts;
  }
  m.load("do", 0, s.n_q, s.d_v), m.load("o", 0, s.n_q, s.d_v), m.store("d", 0, s.n_q, 1);
  m.store("dq", 0, s.n_q, s.d);
  for (std::int64_t j = 0; j < s.n_k; j += s.block_k) {
    const std::int64_t j1 = std::min(s.n_k, j + s.block_k);
    m.load("k", j, j1, s.d), m.load("v", j, j1, s.d_v);
    for (std::int64_t i = 0; i < s.n_q; i += s.block_q) {
      const std::int64_t i1 = std::min(s.n_q, i + s.block_q);
      if (!any_seen(s, i, i1, j, j1)) continue;
      m.load("q", i, i1, s.d), m.load("do", i, i1, s.d_v), m.load("dq", i, i1, s.d);
      m.load("lse", i, i1, 1), m.load("d", i, i1, 1), m.store("dq", i, i1, s.d);
    }
    m.store("dk", j, j1, s.d), m.store("dv", j, j1, s.d_v);
  }
  return counts;
}

}  // namespace attn::traffic
