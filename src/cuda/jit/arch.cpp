// GPU architectures as NVRTC names them, "sm_90a", and as numbers.
#include <fmt/format.h>

#include <charconv>

#include "attn/error.hpp"
#include "core/text/echo.hpp"
#include "cuda/jit/compile.hpp"

namespace attn::cuda {

std::string to_string(Arch arch) {
  return fmt::format("sm_{}{}", arch.number, arch.accelerated ? "a" : "");
}

Arch parse_arch(std::string_view text) {
  Arch arch;
  std::string_view digits = text;
  const bool prefixed = digits.starts_with("sm_");
  if (prefixed) digits.remove_prefix(3);
  if (digits.ends_with('a')) {
    arch.accelerated = true;
    digits.remove_suffix(1);
  }
  const auto [end, error] =
      std::from_chars(digits.data(), digits.data() + digits.size(), arch.number);
  if (!prefixed || error != std::errc{} || end != digits.data() + digits.size() ||
      digits.front() < '1' || arch.number < 50 || arch.number > 999) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("architecture is \"{}\"; accepted are names as sm_80 and sm_90a",
                            core::echo(text)));
  }
  return arch;
}

Arch arch_of_capability(int capability) { return {capability, capability >= 90}; }

}  // namespace attn::cuda
