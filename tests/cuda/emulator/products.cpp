// The products of warpgroups, and the numbers that they read.
#include <cmath>
#include <cstring>
#include <vector>

#include "reference/tensor_core_sums.hpp"
#include "state.hpp"

namespace attn::emulator {
namespace {

std::uint16_t element(unsigned address) {
  const unsigned at = address ^ ((address >> 7 & 7) << 4);
  check_address(at, 2);
  std::uint16_t bits;
  std::memcpy(&bits, block->shared + at, 2);
  return bits;
}

// The columns of a product that a thread has, of kTerms rows of B.
template <int kTerms>
struct Columns {
  static constexpr unsigned kMost = 64;
  float x[kTerms][kMost];

  // Adds products with a row of A for each half of the accumulators to them.
  void add(const Product& p, const float (&a)[2][kTerms], const reference::TensorCore& core) const {
    const float* rows[kTerms];
    for (int k = 0; k < kTerms; ++k) rows[k] = x[k];
    const auto accumulators = static_cast<unsigned>(p.columns) / 2;
    const unsigned of_d = accumulators - (p.sums != nullptr ? 4 : 0), columns = accumulators / 2;
    for (unsigned half = 0; half < 2; ++half) {
      const auto at = [&](unsigned pair) -> float& {
        const unsigned r = pair / 2 * 4 + half * 2 + pair % 2;
        return r < of_d ? p.d[r] : p.sums[r - of_d];
      };
      float sums[kMost];
      for (unsigned pair = 0; pair < columns; ++pair) sums[pair] = p.add ? at(pair) : 0.F;
      reference::tensor_core_sums(sums, columns, a[half], rows, kTerms, core);
      for (unsigned pair = 0; pair < columns; ++pair) at(pair) = sums[pair];
    }
  }
};

// This thread's part of a product: rows lane / 4 and that + 8 of its warp.
void multiply(const Product& p, std::size_t group, std::size_t position) {
  const unsigned thread = now().index.x, lane = thread % 32;
  const unsigned first = thread / 32 * 32 + lane / 4 * 4;  // lane 0 of the quad
  const unsigned start_b = (p.descriptor_b & 0x3fff) << 4, leading = p.descriptor_b >> 16 << 4;
  float a[2][16];
  for (unsigned i = 0; i < 2; ++i) {
    for (unsigned k = 0; k < 16; ++k) {
      std::uint16_t bits = 0;
      if (p.a != nullptr) {
        const Fiber& owner = block->fibers[first + k % 8 / 2];
        const unsigned word = owner.products[group][position].a[k / 8 * 2 + i];
        bits = static_cast<std::uint16_t>(word >> (16 * (k % 2)));
      } else {
        const unsigned row = thread % 128 / 32 * 16 + lane / 4 + 8 * i;
        const unsigned start_a = (p.descriptor_a & 0x3fff) << 4;
        bits = element(start_a + (p.transposed_a ? k * 128 + row * 2 : row * 128 + k * 2));
      }
      a[i][k] = widen(bits, p.half);
    }
  }
  thread_local Columns<16> b;  // no other fiber runs here, whose stacks would not stay in caches
  for (unsigned pair = 0; pair < static_cast<unsigned>(p.columns) / 4; ++pair) {
    const unsigned column = pair / 2 * 8 + lane % 4 * 2 + pair % 2;
    for (unsigned k = 0; k < 16; ++k) {
      const unsigned at = p.a != nullptr || p.transposed_b
                              ? start_b + column / 64 * leading + k * 128 + column % 64 * 2
                              : start_b + column * 128 + k * 2;
      b.x[k][pair] = widen(element(at), p.half);
    }
  }
  b.add(p, a, reference::kTensorCore16);
}

float widen8(char byte, Float8 format) {
  const auto bits = static_cast<std::uint8_t>(byte);
  if (format == Float8::e5m2) return widen(static_cast<std::uint16_t>(bits << 8), true);
  if ((bits & 0x7f) == 0x7f) return NAN;
  return 256 * widen(static_cast<std::uint16_t>((bits & 0x80) << 8 | (bits & 0x7f) << 7), true);
}

// The same of 8-bit floats: 32 steps, rows of 128 bytes along k.
void multiply_float8(const Product& p, std::size_t group, std::size_t position) {
  const unsigned thread = now().index.x, lane = thread % 32;
  const unsigned first = thread / 32 * 32 + lane / 4 * 4;  // lane 0 of the quad
  const auto in_registers = [&](unsigned half, unsigned k) {
    const Fiber& owner = block->fibers[first + k % 16 / 4];
    const unsigned word = owner.products[group][position].a[k / 16 * 2 + half];
    return widen8(static_cast<char>(word >> (8 * (k % 4))), p.float8);
  };
  const auto value = [&](unsigned descriptor, unsigned row, unsigned k, Float8 format) {
    const unsigned address = ((descriptor & 0x3fff) << 4) + row * 128 + k;
    const unsigned at = address ^ ((address >> 7 & 7) << 4);
    check_address(at, 1);
    return widen8(block->shared[at], format);
  };
  float a[2][32];
  for (unsigned half = 0; half < 2; ++half) {
    const unsigned row = thread % 128 / 32 * 16 + lane / 4 + 8 * half;
    for (unsigned k = 0; k < 32; ++k) {
      a[half][k] = p.a != nullptr ? in_registers(half, k) : value(p.descriptor_a, row, k, p.float8);
    }
  }
  thread_local Columns<32> b;
  for (unsigned pair = 0; pair < static_cast<unsigned>(p.columns) / 4; ++pair) {
    const unsigned column = pair / 2 * 8 + lane % 4 * 2 + pair % 2;
    for (unsigned k = 0; k < 32; ++k) b.x[k][pair] = value(p.descriptor_b, column, k, p.float8_b);
  }
  b.add(p, a, reference::kTensorCore8);
}

}  // namespace

void product(const Product& product) { now().products.back().push_back(product); }
void commit_products() { now().products.emplace_back(); }
void wait_products(unsigned groups) {
  auto& all = now().products;
  Barrier& warpgroup = block->groups[now().index.x / 128];
  const std::size_t finished = all.size() > groups + 1 ? all.size() - 1 - groups : 0;
  meet(warpgroup, 128);
  for (std::size_t group = 0; group < finished; ++group) {
    for (std::size_t i = 0; i < all[group].size(); ++i) {
      if (all[group][i].float8 != Float8::none) {
        multiply_float8(all[group][i], group, i);
      } else {
        multiply(all[group][i], group, i);
      }
    }
  }
  meet(warpgroup, 128);
  all.erase(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(finished));
}

namespace {
float float_of_half(unsigned bits) {
  const int exponent = static_cast<int>(bits >> 10 & 31), fraction = static_cast<int>(bits & 1023);
  const float size = exponent == 31 ? (fraction == 0 ? INFINITY : NAN)
                     : exponent == 0
                         ? std::ldexp(static_cast<float>(fraction), -24)
                         : std::ldexp(static_cast<float>(1024 + fraction), exponent - 25);
  return bits >> 15 != 0 ? -size : size;
}
std::vector<float> halves() {
  std::vector<float> all(1 << 16);
  for (unsigned bits = 0; bits < all.size(); ++bits) all[bits] = float_of_half(bits);
  return all;
}
const std::vector<float> kAllHalves = halves();
}  // namespace

const float* const kHalves = kAllHalves.data();

// Much of what a kernel takes here: 9 ns with vectors of eight, 19 with the least of an x86-64.
#ifdef __x86_64__
__attribute__((target_clones("avx2", "default")))
#endif
float add_products(float sum, const float* a, const float* b) {
  return reference::tensor_core_sum(sum, a, b, 16);
}

}  // namespace attn::emulator
