// Parts of a tile shape by name.
#include "cuda/kernel_parts.hpp"
#include "cuda/kernels/backward_sm80/shapes.hpp"

namespace attn::cuda {
namespace {

constexpr std::string_view kAccepted =
    "m16 to m128 (queries) and n32 to n128 (keys), powers of two, w4 and w8 (warps), s1 and s2 "
    "(stages), x1 to x8 "
    "(warps along the queries of S), k1 to k8 (along the keys of dK) and q1 to q8 (along the "
    "queries of dQ), powers of two, l1 to l1000 (megabytes of the heads whose tiles are dealt "
    "together), t0 and t1 (P and dS stored by words or stmatrix), h0 and h1 (S and dP by all "
    "warps, or each by half of them)";

// The number after the letter where it is a power of two up to `most`, else 0.
int power_after(std::string_view part, std::string_view letter, int most) {
  const int n = number_after(part, letter);
  return n >= 1 && n <= most && (n & (n - 1)) == 0 ? n : 0;
}

bool set_part(BackwardSm80Shape& shape, std::string_view part) {
  constexpr int kWarps = 8, kMostRows = 128, kLeastQueries = 16, kLeastKeys = 32;
  if (const int m = power_after(part, "m", kMostRows); m >= kLeastQueries) {
    shape.queries = m;
  } else if (const int n = power_after(part, "n", kMostRows); n >= kLeastKeys) {
    shape.keys = n;
  } else if (const int w = number_after(part, "w"); w == 4 || w == 8) {
    shape.warps = w;
  } else if (const int s = number_after(part, "s"); s == 1 || s == 2) {
    shape.stages = s;
  } else if (const int x = power_after(part, "x", kWarps); x > 0) {
    shape.score_warps = x;
  } else if (const int k = power_after(part, "k", kWarps); k > 0) {
    shape.key_warps = k;
  } else if (const int q = power_after(part, "q", kWarps); q > 0) {
    shape.query_warps = q;
  } else if (const int l = number_after(part, "l"); l >= 1 && l <= 1000) {
    shape.l2_megabytes = l;
  } else if (const int t = number_after(part, "t"); t == 0 || t == 1) {
    shape.store_matrices = t == 1;
  } else if (const int h = number_after(part, "h"); h == 0 || h == 1) {
    shape.split_scores = h == 1;
  } else {
    return false;
  }
  return true;
}

}  // namespace

BackwardSm80Shape with_parts(BackwardSm80Shape shape, std::string_view text) {
  if (text.empty()) return shape;
  set_parts("backward_sm80", text, kAccepted,
            [&](std::string_view part) { return set_part(shape, part); });
  shape.reason = "named by the caller";
  return shape;
}

}  // namespace attn::cuda
