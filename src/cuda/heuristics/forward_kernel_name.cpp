#include "cuda/heuristics/forward_kernel_name.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "attn/error.hpp"
#include "core/text/echo.hpp"
#include "cuda/kernel_parts.hpp"

namespace attn::cuda {
namespace {

constexpr std::string_view kAccepted =
    "wg2 and wg3 (warpgroups), n16 to n256 (keys, a multiple of 16), s1 to s8 (stages of K and V), "
    "k1 to k8 (of K), q1, q2 and q4 (of Q), p24 to p64 (registers of the producer, a multiple of "
    "8), turns and noturns";

bool set_part(ForwardSm90Shape& shape, std::string_view part) {
  if (part == "turns" || part == "noturns") {
    shape.take_turns = part == "turns";
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

ForwardSm90Shape with_parts(ForwardSm90Shape shape, std::string_view text) {
  if (text.empty()) return shape;
  set_parts("forward_sm90", text, kAccepted,
            [&](std::string_view part) { return set_part(shape, part); });
  shape.consumer_registers =
      std::min(240, (warpgroup_registers(shape.warpgroups) - shape.producer_registers) /
                        shape.warpgroups / 8 * 8);
  shape.reason = "named by the caller";
  return shape;
}

bool runs_by_name_only(std::string_view kernel) noexcept {
  return kernel == name(ForwardKernel::flash_attention) || kernel == name(ForwardKernel::standard);
}

std::string forward_kernel_name(Algorithm algorithm, std::string_view kernel) {
  const KernelName named = split_kernel_name(kernel);
  std::string_view base, shape;
  switch (algorithm) {
    case Algorithm::flash_attention:
      base = name(ForwardKernel::flash_attention);
      break;
    case Algorithm::block_sparse:
      base = name(ForwardKernel::flash_attention);
      shape = "sparse";
      break;
    case Algorithm::standard:
      base = name(ForwardKernel::standard);
      break;
    case Algorithm::flash_attention_2:
    case Algorithm::flash_decoding:
    case Algorithm::memory_efficient:
      base = "forward_sm90, forward_sm80, forward_sm80_few_rows or forward_simt";
      break;
    case Algorithm::automatic:
      return std::string(kernel);
  }
  const bool by_name_only = runs_by_name_only(base);
  if (!kernel.empty() && (by_name_only ? named.kernel != base : runs_by_name_only(named.kernel))) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("kernel is '{}' and algorithm is {}; accepted with it is {}",
                            core::echo(kernel), name(algorithm), base));
  }
  if (!by_name_only) return std::string(kernel);
  std::string result(base);
  for (const std::string_view part : {shape, named.shape}) {
    if (part.empty() || result.ends_with(part)) continue;
    result += result == base ? '/' : '_';
    result += part;
  }
  return result;
}

Algorithm algorithm_of(ForwardKernel kernel, bool skips_empty) noexcept {
  switch (kernel) {
    case ForwardKernel::flash_attention:
      return skips_empty ? Algorithm::block_sparse : Algorithm::flash_attention;
    case ForwardKernel::standard:
      return Algorithm::standard;
    case ForwardKernel::sm90:
    case ForwardKernel::sm80:
    case ForwardKernel::few_rows:
    case ForwardKernel::simt:
      break;
  }
  return Algorithm::flash_attention_2;
}

}  // namespace attn::cuda
