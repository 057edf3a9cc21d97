#pragma once

namespace attn::harness {

constexpr double square(double x) { return x * x; }

}  // namespace attn::harness
