// A program whose static destructor calls the library after main() has. It ends with 0 where the
// results after main() are those before.
#include <unistd.h>

#include <array>
#include <string>
#include <vector>

#include "attn/attn.hpp"

namespace {

// O, LSE, gradients and a product, as text of the numbers.
std::string results() {
  std::vector<float> q(attn::parse_problem("b1_n70_h2_d8").heads_q * 70 * 8), o(q), dq(q), c(64);
  for (std::size_t i = 0; i < q.size(); ++i) q[i] = 0.01f * static_cast<float>(i % 17);
  std::vector<float> lse(140);
  const auto view = [](std::vector<float>& x) { return attn::tensor(x.data(), {1, 70, 2, 8}); };
  const attn::Problem problem = attn::parse_problem("b1_n70_h2_d8_causal_softcap30");
  const attn::Inputs inputs{.q = view(q), .k = view(q), .v = view(q)};
  const attn::Outputs outputs{.o = view(o), .lse = attn::tensor(lse.data(), {1, 2, 70})};
  attn::forward(problem, inputs, outputs);
  attn::backward(problem, inputs, outputs, view(q), {.dq = view(dq)});
  attn::matmul({.a = attn::tensor(q.data(), {8, 16}), .b = attn::tensor(q.data(), {16, 8})},
               attn::tensor(c.data(), {8, 8}));
  std::string text = attn::to_string(attn::make_plan(problem, attn::Phase::forward));
  for (const std::vector<float>* x : {&o, &lse, &dq, &c}) {
    for (const float value : *x) text += std::to_string(value) + " ";
  }
  return text;
}

struct AtExit {
  std::string before{};
  ~AtExit() {
    if (results() != before) _exit(1);
    attn::default_executor()->parallel_for(100, [](std::int64_t, int) {});
  }
};
// It is made before any object of the library, so its destructor runs after theirs.
AtExit at_exit;

}  // namespace

int main() { at_exit.before = results(); }
