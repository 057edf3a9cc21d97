// Softmax of vectors in three passes and online, and with top-k fused (Milakov and Gimelshein 2018,
// "Online normalizer calculation for softmax"): bytes an element and time, one thread, f32.
//   three-pass          read x for max; read x for sum of e^(x - m); read x, write y    4 accesses
//   online              read x for m and sum together; read x, write y                  3
//   three-pass, top-5   the three passes, and read y for the 5 largest                  5
//   online, top-5       read x for m, sum and the 5 largest together; nothing written   1
// Every result is compared with fp64 before it is timed; runs alternate; CPU time counts.
//   online_softmax [ELEMENTS OF ALL VECTORS] [REPEATS]
//   g++ -std=c++20 -O3 -march=native -ffast-math
//   bench/papers/online_softmax.cpp -o online_softmax
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <limits>
#include <random>
#include <vector>

namespace {

constexpr int kTop = 5;
// The online pass takes a block, which stays in L1, for its maximum and then for its sum: one
// exponential an element, as tiles of attention do.
constexpr std::size_t kBlock = 1024;

struct Top {
  std::array<float, kTop> value;
  std::array<std::size_t, kTop> at;
  Top() {
    value.fill(std::numeric_limits<float>::lowest());
    at.fill(0);
  }
  void add(float x, std::size_t i) {
    if (!(x > value[kTop - 1])) return;
    int place = kTop - 1;
    for (; place > 0 && value[place - 1] < x; --place) {
      value[place] = value[place - 1];
      at[place] = at[place - 1];
    }
    value[place] = x;
    at[place] = i;
  }
};

// e^x for x <= 0, within 2^-22: 2^i times a polynomial of the rest, which the compiler turns into
// vector instructions.
inline float exponential(float x) {
  const float t = std::max(x * 1.44269504F, -126.0F);
  const float i = std::floor(t);
  const float f = (t - i) * 0.693147181F;  // [0, log 2)
  const float p =
      1 + f * (1 + f * (0.5F +
                        f * (1 / 6.0F +
                             f * (1 / 24.0F + f * (1 / 120.0F + f * (1 / 720.0F + f / 5040.0F))))));
  return std::bit_cast<float>((static_cast<std::int32_t>(i) + 127) << 23) * p;
}

float maximum(const float* x, std::size_t n) {
  float m = std::numeric_limits<float>::lowest();
  for (std::size_t i = 0; i < n; ++i) m = x[i] > m ? x[i] : m;
  return m;
}
// Of at most kBlock elements, so that f32 suffices.
float sum_of_block(const float* x, std::size_t n, float m) {
  float sum = 0;
  for (std::size_t i = 0; i < n; ++i) sum += exponential(x[i] - m);
  return sum;
}
double sum_of_exponentials(const float* x, std::size_t n, float m) {
  double sum = 0;
  for (std::size_t i = 0; i < n; i += kBlock)
    sum += sum_of_block(x + i, std::min(kBlock, n - i), m);
  return sum;
}
void normalise(const float* x, std::size_t n, float m, double l, float* y) {
  const auto factor = static_cast<float>(1 / l);
  for (std::size_t i = 0; i < n; ++i) y[i] = exponential(x[i] - m) * factor;
}

struct Normalizer {
  float m = std::numeric_limits<float>::lowest();
  double l = 0;
};
// Algorithm 3, lines 1 to 6, by blocks. With `top`, the largest elements too (algorithm 4).
Normalizer online(const float* x, std::size_t n, Top* top) {
  Normalizer of;
  for (std::size_t begin = 0; begin < n; begin += kBlock) {
    const std::size_t count = std::min(kBlock, n - begin);
    const float block = maximum(x + begin, count);
    // Few blocks have anything for the top: its loop has no vector form.
    if (top != nullptr && block > top->value[kTop - 1]) {
      for (std::size_t i = begin; i < begin + count; ++i) top->add(x[i], i);
    }
    const float m = std::max(of.m, block);
    of.l = of.l * std::exp(std::max(double{of.m} - m, -700.0)) + sum_of_block(x + begin, count, m);
    of.m = m;
  }
  return of;
}

void three_pass(const float* x, std::size_t n, float* y) {
  const float m = maximum(x, n);
  normalise(x, n, m, sum_of_exponentials(x, n, m), y);
}
void online_softmax(const float* x, std::size_t n, float* y) {
  const Normalizer of = online(x, n, nullptr);
  normalise(x, n, of.m, of.l, y);
}
void top_of(const float* y, std::size_t n, Top& top) {
  for (std::size_t begin = 0; begin < n; begin += kBlock) {
    const std::size_t count = std::min(kBlock, n - begin);
    if (!(maximum(y + begin, count) > top.value[kTop - 1])) continue;
    for (std::size_t i = begin; i < begin + count; ++i) top.add(y[i], i);
  }
}

struct Way {
  const char* name;
  int accesses;  // of an element, of 4 bytes each
  std::function<void(const float* x, std::size_t n, float* y, Top& top)> run;
  bool writes, finds;
};

const Way kWays[] = {
    {"three-pass", 4, [](auto* x, auto n, auto* y, Top&) { three_pass(x, n, y); }, true, false},
    {"online", 3, [](auto* x, auto n, auto* y, Top&) { online_softmax(x, n, y); }, true, false},
    {"three-pass, top-5", 5,
     [](auto* x, auto n, auto* y, Top& top) {
       three_pass(x, n, y);
       top_of(y, n, top);
     },
     true, true},
    {"online, top-5", 1,
     [](auto* x, auto n, auto*, Top& top) {
       const Normalizer of = online(x, n, &top);
       for (float& value : top.value)
         value = static_cast<float>(std::exp(double{value} - of.m) / of.l);
     },
     false, true}};

// By its bits: -ffast-math compares as if there were no NaN.
bool is_finite(float x) { return (std::bit_cast<std::uint32_t>(x) >> 23 & 0xff) != 0xff; }

// CPU time of this process, which others on the machine do not add to.
double now() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

bool is_right(const Way& way, const float* x, std::size_t n) {
  std::vector<double> expected(n);
  double sum = 0;
  const double m = maximum(x, n);
  for (std::size_t i = 0; i < n; ++i) sum += expected[i] = std::exp(double{x[i]} - m);
  for (double& value : expected) value /= sum;
  std::vector<float> y(n, -1);
  Top top;
  way.run(x, n, y.data(), top);
  bool right = true;
  for (std::size_t i = 0; way.writes && i < n; ++i) {
    right = right && is_finite(y[i]) && std::abs(y[i] - expected[i]) <= 1e-5 * expected[i];
  }
  if (!way.finds) return right;
  std::sort(expected.rbegin(), expected.rend());
  for (int i = 0; i < kTop; ++i) {
    right = right && is_finite(top.value[i]) &&
            std::abs(top.value[i] - expected[i]) <= 1e-5 * expected[i];
  }
  return right;
}

}  // namespace

int main(int argc, char** argv) {
  const std::size_t total = argc > 1 ? std::strtoul(argv[1], nullptr, 10) : std::size_t{1} << 25;
  const int repeats = argc > 2 ? std::atoi(argv[2]) : 9;
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0, 3);
  std::vector<float> x(total), y(total);
  for (float& value : x) value = normal(random);
  std::printf("%8s  %-18s %9s %9s %9s %9s\n", "V", "", "bytes/el", "ns/el", "GB/s", "speed-up");
  for (std::size_t n = 1000; n <= total; n *= 8) {
    std::vector<std::vector<double>> seconds(std::size(kWays));
    const std::size_t vectors = total / n;
    for (const Way& way : kWays) {
      if (!is_right(way, x.data(), n)) return std::fprintf(stderr, "%s is wrong\n", way.name), 1;
    }
    for (int round = 0; round < repeats; ++round) {
      for (std::size_t w = 0; w < std::size(kWays); ++w) {
        const double start = now();
        float kept = 0;
        for (std::size_t i = 0; i < vectors; ++i) {
          Top top;
          kWays[w].run(x.data() + i * n, n, y.data() + i * n, top);
          kept += top.value[0];
        }
        seconds[w].push_back(now() - start);
        if (kept == 1) std::printf(" ");  // so that nothing is left out
      }
    }
    double baseline = 0;
    for (std::size_t w = 0; w < std::size(kWays); ++w) {
      std::sort(seconds[w].begin(), seconds[w].end());
      const double each = seconds[w][seconds[w].size() / 2] / static_cast<double>(vectors * n);
      if (w % 2 == 0) baseline = each;
      std::printf("%8zu  %-18s %9d %9.3f %9.1f %9.2f\n", n, kWays[w].name, 4 * kWays[w].accesses,
                  each * 1e9, 4e-9 * kWays[w].accesses / each, baseline / each);
    }
  }
  return 0;
}
