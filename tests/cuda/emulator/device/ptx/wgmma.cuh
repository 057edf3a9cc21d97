#pragma once

namespace attn::device {

inline void wgmma_fence() {}
inline void wgmma_commit() { emulator::commit_products(); }
template <int kPending>
void wgmma_wait() {
  emulator::wait_products(kPending);
}
template <int kCount>
void pin(float (&)[kCount]) {}
template <int kCount>
void pin(unsigned (&)[kCount]) {}
inline void pin(unsigned&) {}

template <class Element>
constexpr emulator::Float8 kFloat8Of =
    std::is_same_v<Element, Float8E4M3>   ? emulator::Float8::e4m3
    : std::is_same_v<Element, Float8E5M2> ? emulator::Float8::e5m2
                                          : emulator::Float8::none;
// The elements of A and B.
template <class Element>
struct FactorsOf {
  using A = Element;
  using B = Element;
};
template <class First, class Second>
struct FactorsOf<Float8Pair<First, Second>> {
  using A = First;
  using B = Second;
};
template <class Element>
constexpr emulator::Float8 kFloat8OfA = kFloat8Of<typename FactorsOf<Element>::A>;
template <class Element>
constexpr emulator::Float8 kFloat8OfB = kFloat8Of<typename FactorsOf<Element>::B>;

// The library prints these for NVRTC.
template <class Element, int kColumns>
struct ProductRS {
  static void run(float (&d)[kColumns / 2], const unsigned* a, unsigned b, int add) {
    emulator::product({d, a, 0, b, kColumns, add != 0, std::is_same_v<Element, Float16>, false,
                       false, kFloat8OfA<Element>, kFloat8OfB<Element>});
  }
};
template <class Element, int kColumns>
struct ProductWithSums {
  static void run(float (&d)[kColumns / 2], float (&sums)[4], const unsigned* a, unsigned b,
                  int add) {
    emulator::product({d, a, 0, b, kColumns + 8, add != 0, false, false, false, kFloat8OfA<Element>,
                       kFloat8OfB<Element>, sums});
  }
};
template <class Element, int kColumns, bool kTransposedA, bool kTransposedB>
struct ProductOfShared {
  static void run(float (&d)[kColumns / 2], unsigned a, unsigned b, int add) {
    emulator::product({d, nullptr, a, b, kColumns, add != 0, std::is_same_v<Element, Float16>,
                       kTransposedA, kTransposedB, kFloat8OfA<Element>, kFloat8OfB<Element>});
  }
};
template <class Element, int kColumns>
struct ProductSS : ProductOfShared<Element, kColumns, false, false> {};
template <class Element, int kColumns>
struct ProductST : ProductOfShared<Element, kColumns, false, true> {};
template <class Element, int kColumns>
struct ProductTS : ProductOfShared<Element, kColumns, true, false> {};
template <class Element, int kColumns>
struct ProductTT : ProductOfShared<Element, kColumns, true, true> {};

}  // namespace attn::device
