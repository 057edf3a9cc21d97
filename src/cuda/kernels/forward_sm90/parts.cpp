// Parts of a tile shape by name.
#include <algorithm>
#include <string>

#include "cuda/kernel_parts.hpp"
#include "cuda/kernels/forward_sm90/shapes.hpp"

namespace attn::cuda {
namespace {

constexpr std::string_view kAccepted =
    "wg2 and wg3 (warpgroups), n16 to n256 (keys, a multiple of 16), s1 to s8 (stages of K and V), "
    "k1 to k8 (of K), q1, q2 and q4 (of Q), p24 to p64 (registers of the producer, a multiple of "
    "8), turns and noturns";
constexpr std::string_view kAcceptedOfFloat8 =
    ", ahead (V is transposed by a kernel ahead), within1 and within2 (by so many warps within)";

bool set_part(ForwardSm90Shape& shape, std::string_view part, bool float8) {
  if (part == "turns" || part == "noturns") {
    shape.take_turns = part == "turns";
  } else if (float8 && part == "ahead") {
    shape.transposers = 0;
  } else if (const int warps = number_after(part, "within"); float8 && (warps == 1 || warps == 2)) {
    shape.transposers = warps;
  } else if (const int wg = number_after(part, "wg"); wg == 2 || wg == 3) {
    shape.warpgroups = wg;
  } else if (const int n = number_after(part, "n"); n >= 16 && n <= 256 && n % 16 == 0) {
    shape.block_n = n;
  } else if (const int s = number_after(part, "s"); s >= 1 && s <= 8) {
    shape.stages_k = shape.stages_v = s;
  } else if (const int k = number_after(part, "k"); k >= 1 && k <= 8) {
    shape.stages_k = k;
  } else if (const int q = number_after(part, "q"); q == 1 || q == 2 || q == 4) {
    shape.stages_q = q;
  } else if (const int p = number_after(part, "p"); p >= 24 && p <= 64 && p % 8 == 0) {
    shape.producer_registers = p;
  } else {
    return false;
  }
  return true;
}

}  // namespace

ForwardSm90Shape with_parts(ForwardSm90Shape shape, std::string_view text, bool float8) {
  if (text.empty()) return shape;
  std::string accepted(kAccepted);
  if (float8) accepted += kAcceptedOfFloat8;
  set_parts(float8 ? "forward_sm90_float8" : "forward_sm90", text, accepted,
            [&](std::string_view part) { return set_part(shape, part, float8); });
  shape.consumer_registers =
      std::min(240, (warpgroup_registers(shape.warpgroups) - shape.producer_registers) /
                        shape.warpgroups / 8 * 8);
  shape.reason = "named by the caller";
  return shape;
}

}  // namespace attn::cuda
