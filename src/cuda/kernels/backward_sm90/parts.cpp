// Parts of a tile shape by name.
#include <algorithm>

#include "cuda/kernel_parts.hpp"
#include "cuda/kernels/backward_sm90/shapes.hpp"

namespace attn::cuda {
namespace {

constexpr std::string_view kAccepted =
    "b1 and b2 (blocks of threads that share a tile), c1 and c2 (score warpgroups), n64 and n128 "
    "(keys), q1 to q4 (places of Q), o1 to o4 (of dO), "
    "p1 and p2 (of P and of dS), w32, w64 and w128 (columns of a staged piece of dQ), g1 to g8 "
    "(places of these), r24 to r56 (registers of a producer) and x64 to x240 (of a score "
    "thread), multiples of 8, l1 to l1000 (megabytes of the heads whose tiles are dealt together)";

bool set_part(BackwardSm90Shape& shape, std::string_view part) {
  if (const int b = number_after(part, "b"); b == 1 || b == 2) {
    shape.cluster = b;
  } else if (const int c = number_after(part, "c"); c == 1 || c == 2) {
    shape.score_groups = c;
  } else if (const int n = number_after(part, "n"); n == 64 || n == 128) {
    shape.keys = n;
  } else if (const int q = number_after(part, "q"); q >= 1 && q <= 4) {
    shape.stages_q = q;
  } else if (const int o = number_after(part, "o"); o >= 1 && o <= 4) {
    shape.stages_o = o;
  } else if (const int p = number_after(part, "p"); p == 1 || p == 2) {
    shape.stages_p = p;
  } else if (const int w = number_after(part, "w"); w == 32 || w == 64 || w == 128) {
    shape.piece_columns = w;
  } else if (const int g = number_after(part, "g"); g >= 1 && g <= 8) {
    shape.stages_dq = g;
  } else if (const int r = number_after(part, "r"); r >= 24 && r <= 56 && r % 8 == 0) {
    shape.producer_registers = r;
  } else if (const int x = number_after(part, "x"); x >= 64 && x <= 240 && x % 8 == 0) {
    shape.score_registers = x;
  } else if (const int l = number_after(part, "l"); l >= 1 && l <= 1000) {
    shape.l2_megabytes = l;
  } else {
    return false;
  }
  return true;
}

}  // namespace

BackwardSm90Shape with_parts(BackwardSm90Shape shape, std::string_view text) {
  if (text.empty()) return shape;
  set_parts("backward_sm90", text, kAccepted,
            [&](std::string_view part) { return set_part(shape, part); });
  constexpr int kRegisters = 512;  // of a thread of each of the four warpgroups
  const int gradient_groups = 3 - shape.score_groups;
  shape.gradient_registers = std::min(
      240, (kRegisters - shape.producer_registers - shape.score_groups * shape.score_registers) /
               gradient_groups / 8 * 8);
  shape.reason = "named by the caller";
  return shape;
}

}  // namespace attn::cuda
