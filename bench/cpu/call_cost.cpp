// What a call costs beside its arithmetic: times of forward, backward and make_plan on tiny
// problems, by number of workers, and how often a call asks for memory. One line a measurement:
// median and minimum of many calls, allocations of one call after the first. A busy machine moves
// the median; the minimum is then the better number. Arguments: descriptors of dense f32 problems
// without buffers.
//   g++ -std=c++20 -O2 -Iinclude bench/cpu/call_cost.cpp build/libattn.a -lfmt -lpthread -ldl -o
//   call_cost
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "attn/attn.hpp"

namespace {

std::atomic<long> allocations{0};

}  // namespace

// glibc lets a program replace malloc alone; operator new and the library call this one.
extern "C" void* __libc_malloc(std::size_t bytes);
extern "C" void* malloc(std::size_t bytes) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  return __libc_malloc(bytes);
}

namespace {

using attn::Tensor;
using Clock = std::chrono::steady_clock;

constexpr double kSecondsEach = 0.3;

// Dense tensors of one problem.
struct Data {
  explicit Data(const attn::Problem& p)
      : q(rows(p.batch, p.seqlen_q, p.heads_q, p.head_dim)),
        k(rows(p.batch, p.seqlen_k, p.heads_k, p.head_dim)),
        v(rows(p.batch, p.seqlen_k, p.heads_k, p.head_dim_v)),
        o(rows(p.batch, p.seqlen_q, p.heads_q, p.head_dim_v)),
        d_o(o),
        dq(q),
        dk(k),
        dv(v),
        lse(static_cast<std::size_t>(p.batch * p.heads_q * p.seqlen_q)) {
    const auto view = [](std::vector<float>& x, std::int64_t b, std::int64_t n, std::int64_t h,
                         std::int64_t d) {
      return attn::tensor(x.data(), {b, n, h, d});
    };
    inputs.q = view(q, p.batch, p.seqlen_q, p.heads_q, p.head_dim);
    inputs.k = view(k, p.batch, p.seqlen_k, p.heads_k, p.head_dim);
    inputs.v = view(v, p.batch, p.seqlen_k, p.heads_k, p.head_dim_v);
    outputs.o = view(o, p.batch, p.seqlen_q, p.heads_q, p.head_dim_v);
    outputs.lse = attn::tensor(lse.data(), {p.batch, p.heads_q, p.seqlen_q});
    d_out = view(d_o, p.batch, p.seqlen_q, p.heads_q, p.head_dim_v);
    gradients.dq = view(dq, p.batch, p.seqlen_q, p.heads_q, p.head_dim);
    gradients.dk = view(dk, p.batch, p.seqlen_k, p.heads_k, p.head_dim);
    gradients.dv = view(dv, p.batch, p.seqlen_k, p.heads_k, p.head_dim_v);
  }
  static std::vector<float> rows(std::int64_t b, std::int64_t n, std::int64_t h, std::int64_t d) {
    std::vector<float> x(static_cast<std::size_t>(b * n * h * d));
    unsigned state = 1;
    for (float& value : x) {
      state = state * 1664525u + 1013904223u;
      value = static_cast<float>(state >> 8) / 8388608.0f - 1.0f;
    }
    return x;
  }

  std::vector<float> q, k, v, o, d_o, dq, dk, dv, lse;
  attn::Inputs inputs;
  attn::Outputs outputs;
  Tensor d_out;
  attn::Gradients gradients;
};

void measure(const std::string& what, const std::function<void()>& call) {
  call();
  const long before = allocations;
  call();
  const long each = allocations - before;
  std::vector<double> microseconds;
  const auto end = Clock::now() + std::chrono::duration<double>(kSecondsEach);
  while (microseconds.size() < 5 || Clock::now() < end) {
    const auto start = Clock::now();
    call();
    microseconds.push_back(std::chrono::duration<double, std::micro>(Clock::now() - start).count());
  }
  std::sort(microseconds.begin(), microseconds.end());
  std::printf("%-66s median %10.2f us  min %10.2f us  %4ld allocations\n", what.c_str(),
              microseconds[microseconds.size() / 2], microseconds.front(), each);
}

void measure_calls(const std::string& descriptor, int threads) {
  attn::Context context;
  context.executor = attn::make_thread_pool(threads);
  const attn::Problem sizes = attn::parse_problem(descriptor);
  Data data(sizes);
  const attn::Problem problem = attn::complete(sizes, data.inputs);
  const std::string label = descriptor + ", " + std::to_string(threads) + " workers: ";
  const attn::Plan forward = attn::make_plan(problem, attn::Phase::forward, {}, context);
  const attn::Plan backward = attn::make_plan(problem, attn::Phase::backward, {}, context);
  measure(label + "forward(plan)",
          [&] { attn::forward(forward, data.inputs, data.outputs, context); });
  measure(label + "forward(problem)",
          [&] { attn::forward(problem, data.inputs, data.outputs, {}, context); });
  measure(label + "backward(plan)", [&] {
    attn::backward(backward, data.inputs, data.outputs, data.d_out, data.gradients, context);
  });
  measure(label + "backward(problem)", [&] {
    attn::backward(problem, data.inputs, data.outputs, data.d_out, data.gradients, {}, context);
  });
}

void measure_plans() {
  constexpr std::int64_t n = 2048;
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(n * n));
  std::vector<std::int32_t> ids(static_cast<std::size_t>(n));
  unsigned state = 7;
  for (std::uint8_t& byte : bytes) byte = (state = state * 1664525u + 1013904223u) >> 31;
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int32_t>(i / 300);
  const attn::expr::Buffer random("seen", attn::tensor(bytes.data(), {n, n}));
  const attn::expr::Buffer document("document", attn::tensor(ids.data(), {n}));
  const auto& s = attn::expr::symbols();
  const std::vector<std::pair<std::string, attn::expr::Expr>> masks{
      {"none", {}},
      {"causal", s.query >= s.key},
      {"window", s.query >= s.key && s.query - s.key < 255},
      {"documents", document[s.query] == document[s.key]},
      {"n x n", random({s.query, s.key}) != 0}};
  for (const auto& [name, mask] : masks) {
    attn::Problem p = attn::parse_problem("b1_n2048_h4_d64");
    p.mask = mask;
    for (const attn::Phase phase : {attn::Phase::forward, attn::Phase::backward}) {
      measure("make_plan, n 2048, mask " + name + ", " + std::string(attn::name(phase)),
              [&] { attn::make_plan(p, phase); });
    }
  }
}

}  // namespace

int main(int count, char** words) {
  if (count > 1) {
    for (int i = 1; i < count; ++i) {
      for (const int threads : {1, 2, 8, 64}) measure_calls(words[i], threads);
    }
    return 0;
  }
  for (const char* descriptor : {"b1_n16_h1_d64", "b1_n64_h8_d64", "b1_sq1_sk128_h8_d64"}) {
    for (const int threads : {1, 2, 8, 64}) measure_calls(descriptor, threads);
  }
  for (const int threads : {1, 64}) measure_calls("b1_n16_h1_d64_causal_softcap30", threads);
  measure_plans();
  return 0;
}
