#include "cuda/heuristics/backward_kernel_name.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "attn/error.hpp"
#include "core/text/echo.hpp"
#include "cuda/heuristics/backward_papers.hpp"
#include "cuda/kernel_parts.hpp"

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

constexpr std::string_view kAcceptedSm80 =
    "m64 and m128 (queries), n64 and n128 (keys), w4 and w8 (warps), s1 and s2 (stages), x1 to x8 "
    "(warps along the queries of S), k1 to k8 (along the keys of dK) and q1 to q8 (along the "
    "queries of dQ), powers of two, l1 to l1000 (megabytes of the heads whose tiles are dealt "
    "together), t0 and t1 (P and dS stored by words or stmatrix)";

// The number after the letter where it is a power of two up to `most`, else 0.
int power_after(std::string_view part, std::string_view letter, int most) {
  const int n = number_after(part, letter);
  return n >= 1 && n <= most && (n & (n - 1)) == 0 ? n : 0;
}

bool set_part(BackwardSm80Shape& shape, std::string_view part) {
  constexpr int kWarps = 8;
  if (const int m = number_after(part, "m"); m == 64 || m == 128) {
    shape.queries = m;
  } else if (const int n = number_after(part, "n"); n == 64 || n == 128) {
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

BackwardSm80Shape with_parts(BackwardSm80Shape shape, std::string_view text) {
  if (text.empty()) return shape;
  set_parts("backward_sm80", text, kAcceptedSm80,
            [&](std::string_view part) { return set_part(shape, part); });
  shape.reason = "named by the caller";
  return shape;
}

std::string obstacle_of(const BackwardSm80Shape& s) {
  const auto divides = [&](int of, int rows, int most) {
    return of <= s.warps && rows / of % 16 == 0 && s.warps / of <= most;
  };
  // Dropout draws 64 keys at a time, of which a warp may use 32; a warp has 16 columns of dK at
  // least.
  if (divides(s.score_warps, s.queries, s.keys / 32) && divides(s.key_warps, s.keys, s.warps) &&
      divides(s.query_warps, s.queries, s.warps)) {
    return {};
  }
  return fmt::format(
      "the shape has m{}_n{}_w{}_x{}_k{}_q{}; accepted are warps that have 16 rows of each "
      "product, "
      "and 32 columns of S, or multiples of these",
      s.queries, s.keys, s.warps, s.score_warps, s.key_warps, s.query_warps);
}

std::string obstacle_of(const BackwardSm90Shape& shape, std::int64_t widest) {
  constexpr int kLeastRegisters = 24;
  if (shape.gradient_registers < kLeastRegisters) {
    return fmt::format("the shape leaves {} registers for dV and dK; accepted are at least {}",
                       shape.gradient_registers, kLeastRegisters);
  }
  if (shape.score_groups == 2 &&
      (widest > 64 || shape.stages_q % 2 != 0 || shape.stages_o % 2 != 0 || shape.stages_p != 2)) {
    return fmt::format(
        "the shape has c2_q{}_o{}_p{} and heads of {} columns; accepted with c2 are "
        "q2, q4, o2, o4, p2 and up to 64 columns",
        shape.stages_q, shape.stages_o, shape.stages_p, widest);
  }
  const std::int64_t pieces = (widest + shape.piece_columns - 1) / shape.piece_columns;
  if (shape.score_groups == 2 && shape.stages_dq < 2 * pieces) {
    return fmt::format(
        "the shape has c2_w{}_g{} and heads of {} columns; accepted with c2 are at least g{}",
        shape.piece_columns, shape.stages_dq, widest, 2 * pieces);
  }
  if (shape.keys / shape.cluster == 128 && widest > 128) {
    return fmt::format("the shape has n128 and heads of {} columns; accepted there is n64", widest);
  }
  return {};
}

std::string backward_kernel_name(Algorithm algorithm, std::string_view kernel) {
  constexpr std::string_view kFlash = "backward_flash_attention", kStandard = "backward_standard";
  const KernelName named = split_kernel_name(kernel);
  switch (algorithm) {
    case Algorithm::automatic:
      return std::string(kernel);
    case Algorithm::flash_attention_2:
      if (named.kernel != kFlash && named.kernel != kStandard) return std::string(kernel);
      break;
    case Algorithm::flash_attention:
      if (kernel.empty()) return std::string(kFlash);
      if (named.kernel == kFlash && !named.shape.ends_with(kSkipsEmpty)) return std::string(kernel);
      break;
    case Algorithm::block_sparse:
      if (named.kernel != kFlash && !kernel.empty()) break;
      if (named.shape.ends_with(kSkipsEmpty)) return std::string(kernel);
      return fmt::format("{}/{}{}{}", kFlash, named.shape, named.shape.empty() ? "" : "_",
                         kSkipsEmpty);
    case Algorithm::standard:
      if (kernel.empty() || kernel == kStandard) return std::string(kStandard);
      break;
    case Algorithm::flash_decoding:
    case Algorithm::memory_efficient:
      throw Error(ErrorCode::unsupported,
                  fmt::format("algorithm is {}; accepted by backward on the cuda backend are "
                              "flash_attention_2, flash_attention, block_sparse and standard",
                              name(algorithm)));
  }
  throw Error(
      ErrorCode::invalid_argument,
      fmt::format("kernel is '{}' and algorithm is {}; accepted are {} with flash_attention, "
                  "with '{}' among its parts with block_sparse, {} with standard, and the other "
                  "kernels with flash_attention_2",
                  core::echo(kernel), name(algorithm), kFlash, kSkipsEmpty, kStandard));
}

Algorithm algorithm_of(BackwardKernel kernel, bool skips_empty) noexcept {
  if (kernel == BackwardKernel::standard) return Algorithm::standard;
  if (kernel != BackwardKernel::flash_attention) return Algorithm::flash_attention_2;
  return skips_empty ? Algorithm::block_sparse : Algorithm::flash_attention;
}

}  // namespace attn::cuda
