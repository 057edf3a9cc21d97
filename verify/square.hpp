#pragma once

namespace attn::verify {

constexpr double square(double x) { return x * x; }

}  // namespace attn::verify
