// The verb that append_kv treats rows with, one for each instruction set.
#pragma once

#include <cstddef>

#include "attn/cache_type.hpp"
#include "attn/tensor.hpp"

namespace attn::cpu {

// What happens to every row of Q, K or V, in the order of the members (attn/append_kv.hpp).
struct AppendSteps {
  DType source = DType::f32;
  int dim = 0;
  bool norm = false;
  float norm_eps = 0;
  const float* weight = nullptr;  // [dim] of the norm; null: 1
  int rope_dim = 0;               // columns that are rotated
  bool interleaved = false;
  int hadamard = 1;  // size of the blocks of the rotation, a power of two; 1: none
  CacheType target = CacheType::f32;
  bool chooses_scale = false;  // by which a row of e4m3, e5m2 or i8 is divided
};

struct AppendVerb {
  // to <- the row at `from`. cos, sin: [rope_dim], those of the pair that a column belongs to, and
  // sin with its sign: -sin for the first of a pair. Returns the scale by which the row was
  // divided: `scale`, or what it chose.
  float (*append_row)(const AppendSteps& steps, const float* cos, const float* sin,
                      const std::byte* from, float scale, std::byte* to);
};

}  // namespace attn::cpu
