// Causal attention over equal keys: every row of O is the mean of the values that it sees.
#include <attn/attn.hpp>
#include <cmath>
#include <cstdio>
#include <vector>

// A program's own names stay its own, also where it says this.
int cpu() { return 0; }
namespace everything {
using namespace attn;
int own() { return cpu(); }
}  // namespace everything

int main() {
  const int n = 4, d = 8;
  std::vector<float> q(n * d, 1.0f), k(n * d, 0.5f), v(n * d), o(n * d, NAN);
  for (int i = 0; i < n; ++i) {
    for (int e = 0; e < d; ++e) v[i * d + e] = static_cast<float>(i);
  }

  attn::Problem problem;
  problem.mask = attn::causal();
  attn::forward(problem,
                {.q = attn::tensor(q.data(), {1, n, 1, d}),
                 .k = attn::tensor(k.data(), {1, n, 1, d}),
                 .v = attn::tensor(v.data(), {1, n, 1, d})},
                {.o = attn::tensor(o.data(), {1, n, 1, d})});

  for (int i = 0; i < n; ++i) {
    const float mean = static_cast<float>(i) / 2;  // of 0, 1, ..., i
    for (int e = 0; e < d; ++e) {
      if (!(std::fabs(o[i * d + e] - mean) < 1e-6f)) {
        std::printf("O[%d, %d] is %g, expected %g\n", i, e, o[i * d + e], mean);
        return 1;
      }
    }
  }
  std::printf("attn %s: correct\n", ATTN_VERSION_STRING);
  return everything::own();
}
