// Division of counts that are known to be small. Sizes of memory are core::Size, which cannot wrap.
#pragma once

#include <cstdint>

namespace attn::core {

// a / b rounded up; a >= 0, b > 0.
constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

}  // namespace attn::core
