#include "cuda/forward/kernel_name.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "attn/error.hpp"

namespace attn::cuda {
namespace {

[[noreturn]] void refuse(std::string_view text, std::string_view part) {
  throw Error(
      ErrorCode::invalid_argument,
      fmt::format("kernel is 'forward_sm90/{}': '{}' is no part of a tile shape; accepted "
                  "are wg2 and wg3 (warpgroups), n16 to n256 (keys, a multiple of 16), s1 to "
                  "s8 (stages of K and V), k1 to k8 (of K), q1, q2 and q4 (of Q), p24 to p64 "
                  "(registers of the producer, a multiple of 8), turns and noturns",
                  text, part));
}

// The number after `letters`; -1 where the part begins otherwise.
int number_after(std::string_view part, std::string_view letters) {
  int value = -1;
  if (!part.starts_with(letters)) return -1;
  part.remove_prefix(letters.size());
  const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), value);
  return error == std::errc{} && end == part.data() + part.size() ? value : -1;
}

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

KernelName split_kernel_name(std::string_view name) {
  const std::size_t slash = std::min(name.find('/'), name.size());
  return {name.substr(0, slash), name.substr(std::min(slash + 1, name.size()))};
}

ForwardSm90Shape with_parts(ForwardSm90Shape shape, std::string_view text) {
  if (text.empty()) return shape;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find('_', begin), text.size());
    const std::string_view part = text.substr(begin, end - begin);
    if (!set_part(shape, part)) refuse(text, part);
    begin = end + 1;
  }
  shape.consumer_registers =
      std::min(240, (warpgroup_registers(shape.warpgroups) - shape.producer_registers) /
                        shape.warpgroups / 8 * 8);
  shape.reason = "named by the caller";
  return shape;
}

}  // namespace attn::cuda
