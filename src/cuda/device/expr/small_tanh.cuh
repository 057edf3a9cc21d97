// tanh near 0 as a polynomial. Plain data: host and device both include this file.
#pragma once

namespace attn::device {

// tanh(x) / x near 0: p (cubic; rest is 0) or p^2 + rest (quintic), where p, first + second * x^2,
// falls from `first` to `least` as |x| rises to the end of the range.
struct SmallTanh {
  float first, second, rest, least;
};

// The polynomial of an ATTN_PRECISE_MATH (expr/fast.cuh), minimax in the relative error: the cubic
// errs by 4.8e-4 for |x| <= 0.385, as much as tanh.approx; the quintic by 2.8e-5 for |x| <= 0.5, a
// tenth of what rounding to fp16 does. Both are the best of those that are exact at 0 (first, or
// first^2 + rest, is 1), where the scores of a cap of 50 lie: a free cubic reaches to 0.42, a free
// quintic errs by 2.3e-5, but everywhere, so that all scores and with them LSE would be off by one
// factor. The quintic is a square so that no instruction has two constants. This is a template, so
// that kernels without it have no such data.
template <int kPreciseMath>
struct SmallTanhOf {
  static constexpr SmallTanh kValue =
      kPreciseMath == 0
          ? SmallTanh{1, -0x1.456042p-2f, 0, 0x1.e7e2b4p-1f}
          : SmallTanh{0x1.f23fb2p-2f, -0x1.5d6c6ep-2f, 0x1.86c884p-1f, 0x1.9ae496p-2f};
};

}  // namespace attn::device
