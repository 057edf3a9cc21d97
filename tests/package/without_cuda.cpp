// The library as ATTN_CUDA=OFF builds it: calls on the CPU work, calls on a GPU say what is
// missing.
#include <attn/attn.hpp>
#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

int main() {
  std::vector<float> x(2 * 8, 0.5f), o(2 * 8, NAN);
  const attn::Tensor in = attn::tensor(x.data(), {1, 2, 1, 8});
  attn::forward({.mask = attn::causal()}, {.q = in, .k = in, .v = in},
                {.o = attn::tensor(o.data(), {1, 2, 1, 8})});
  for (const float y : o) {
    if (y != 0.5f) return std::printf("O is %g, expected 0.5\n", y), 1;
  }
  const attn::PlanOptions on_gpu{.device = {attn::DeviceType::cuda, 0}};
  const attn::Problem problem = attn::parse_problem("b1_n2_h1_d8_f32");
  try {
    attn::make_plan(problem, attn::Phase::forward, on_gpu);
  } catch (const attn::Error& error) {
    const bool says_it = std::string(error.what()).find("without CUDA") != std::string::npos;
    if (error.code() == attn::ErrorCode::unavailable && says_it) return 0;
    return std::printf("refused otherwise: %s\n", error.what()), 1;
  }
  return std::printf("a plan on a GPU was made\n"), 1;
}
