// tanh near 0 as a polynomial. Plain data: host and device both include this file.
#pragma once

namespace attn::device {

// tanh(x) / x near 0: p (cubic; rest is 0) or p^2 + rest (quintic), where p, first + second * x^2,
// falls from `first` to `least` as |x| rises to the end of the range.
struct SmallTanh {
  float first, second, rest, least;
};

// For an ATTN_PRECISE_MATH (expr/fast.cuh). Minimax in the relative error: the cubic errs by 4.8e-4
// for |x| <= 0.42, as much as tanh.approx; the quintic by 2.3e-5 for |x| <= 0.5, a tenth of what
// rounding to fp16 does. It is a square so that no instruction has two constants. A template, so
// that kernels without it have no such data.
template <int kPreciseMath>
struct SmallTanhOf {
  static constexpr SmallTanh kValue =
      kPreciseMath == 0
          ? SmallTanh{0x1.ffc0fap-1f, -0x1.3eb352p-2f, 0, 0x1.e3a4fap-1f}
          : SmallTanh{0x1.f45566p-2f, -0x1.5b9266p-2f, 0x1.85c154p-1f, 0x1.9d70cep-2f};
};

}  // namespace attn::device
