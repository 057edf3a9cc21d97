// What calls through a plan cost beside their arithmetic, and what plans cost. Times are the least
// of many repeats, so that other programs only lengthen what is not counted.
//   g++ -std=c++20 -O2 -DATTN_STATIC -Iinclude -Isrc bench/cpu/call_overhead.cpp build/libattn.a
//   -lfmt -lpthread -ldl -o call_overhead
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "attn/attn.hpp"
#include "cpu/tile_ops.hpp"
#include "cpu/workspace.hpp"

namespace attn::cpu {
namespace {

using Call = std::function<void()>;
using Seconds = std::chrono::duration<double>;

double seconds_of(const Call& call) {
  const auto begin = std::chrono::steady_clock::now();
  call();
  return Seconds(std::chrono::steady_clock::now() - begin).count();
}

// Least time of each of some calls, in seconds.
class LeastTimes {
 public:
  explicit LeastTimes(std::vector<Call> calls)
      : calls_(std::move(calls)), least_(calls_.size(), std::numeric_limits<double>::infinity()) {}

  // The calls take turns, 16 runs each.
  void measure() {
    constexpr int kRuns = 16, kTurns = 2000;
    for (int turn = 0; turn < kTurns; ++turn) {
      for (std::size_t i = 0; i < calls_.size(); ++i) {
        const double seconds = seconds_of([&] {
          for (int run = 0; run < kRuns; ++run) calls_[i]();
        });
        least_[i] = std::min(least_[i], seconds / kRuns);
      }
    }
  }
  double operator[](std::size_t call) const { return least_[call]; }

 private:
  std::vector<Call> calls_;
  std::vector<double> least_;
};

// A problem of one head with its tensors.
class Tiny {
 public:
  Tiny(std::int64_t length, std::int64_t dim, std::int64_t heads = 1)
      : length_(length), dim_(dim), heads_(heads) {
    std::mt19937 random(7);
    std::normal_distribution<float> normal;
    for (std::vector<float>* x : {&q_, &k_, &v_, &o_, &d_o_, &dq_, &dk_, &dv_}) {
      x->resize(static_cast<std::size_t>(length * dim * heads));
      for (float& value : *x) value = normal(random);
    }
    lse_.resize(static_cast<std::size_t>(length * heads));
    forward(problem_, inputs(), outputs(), {.backend = Backend::cpu});
  }

  // Calls through a plan of this problem, which must outlive them.
  Call call(Phase phase, const Context& context) {
    const Plan planned = make_plan(complete(problem_, inputs()), phase, {}, context);
    const Inputs in = inputs();
    const Outputs out = outputs();
    if (phase == Phase::forward) {
      return [=] { forward(planned, in, out, context); };
    }
    const OutputGradients d_outputs = view(d_o_);
    const Gradients gradients{.dq = view(dq_), .dk = view(dk_), .dv = view(dv_)};
    return [=] { backward(planned, in, out, d_outputs, gradients, context); };
  }

 private:
  friend class Verbs;
  Tensor view(std::vector<float>& x) const { return tensor(x.data(), {1, length_, heads_, dim_}); }
  Inputs inputs() { return {.q = view(q_), .k = view(k_), .v = view(v_)}; }
  Outputs outputs() { return {.o = view(o_), .lse = tensor(lse_.data(), {1, heads_, length_})}; }

  std::int64_t length_, dim_, heads_;
  Problem problem_;
  std::vector<float> q_, k_, v_, o_, d_o_, dq_, dk_, dv_, lse_;
};

// The arithmetic of a call of one tile, by hand: what is left when there is nothing to check, plan,
// divide or look up.
class Verbs {
 public:
  explicit Verbs(Tiny& tiny)
      : ops_(tile_ops(best_instruction_set(InstructionSet::automatic), DType::f32)),
        tiny_(tiny),
        n_(static_cast<int>(tiny.length_)),
        dim_(static_cast<int>(tiny.dim_)) {}

  void forward() {
    load();
    ops_.pack_q(q_row_, n_, dim_, DType::f32, 0.125f, q_t_);
    ops_.pack_k(k_row_, n_, dim_, DType::f32, k_);
    ops_.pack_v(v_row_, n_, dim_, DType::f32, v_);
    std::fill_n(o_t_, dim_ * ops_.rows, 0.0f);
    std::fill_n(m_, ops_.rows, std::numeric_limits<float>::lowest());
    std::fill_n(l_, ops_.rows, 0.0f);
    const ScoreTile scores{q_t_, s_, row_max_};
    ops_.scores(&scores, 1, k_, n_, dim_);
    ops_.softmax(s_, n_, 1.4426950f, row_max_, nullptr, m_, l_, alpha_, s_);
    const OutputTile output{s_, alpha_, o_t_};
    ops_.accumulate(&output, 1, v_, n_, dim_);
    for (int r = 0; r < n_; ++r) {
      alpha_[r] = static_cast<float>(1.0 / double{l_[r]});
      tiny_.lse_[static_cast<std::size_t>(r)] =
          static_cast<float>(double{m_[r]} + std::log(double{l_[r]}));
    }
    ops_.unpack_o(o_t_, dim_, alpha_, DType::f32, out_row_, n_);
  }

  void backward() {
    load();
    std::fill_n(alpha_, ops_.rows, std::numeric_limits<float>::infinity());
    std::fill_n(delta_, ops_.rows, 0.0f);
    ops_.dot_rows(out_row_, d_o_row_, n_, dim_, DType::f32, delta_);
    for (int r = 0; r < n_; ++r) alpha_[r] = tiny_.lse_[static_cast<std::size_t>(r)];
    ops_.pack_k(k_row_, n_, dim_, DType::f32, k_);
    ops_.pack_v(v_row_, n_, dim_, DType::f32, v_);
    for (float* x : {o_t_, dk_, dv_}) std::fill_n(x, dim_ * ops_.rows, 0.0f);
    ops_.pack_q(q_row_, n_, dim_, DType::f32, 0.125f, q_t_);
    ops_.pack_q(d_o_row_, n_, dim_, DType::f32, 1, do_t_);
    ops_.pack_k(q_row_, n_, dim_, DType::f32, q_);
    ops_.pack_k(d_o_row_, n_, dim_, DType::f32, d_o_);
    const ScoreTile scores{q_t_, s_, nullptr}, dp{do_t_, ds_, nullptr};
    ops_.scores(&scores, 1, k_, n_, dim_);
    ops_.probabilities(s_, n_, 1, alpha_, s_);
    ops_.scores(&dp, 1, v_, n_, dim_);
    ops_.score_gradient(s_, ds_, n_, nullptr, 1, delta_, ds_);
    const OutputTile dq{ds_, nullptr, o_t_};
    ops_.accumulate(&dq, 1, k_, n_, dim_);
    const WeightedRows d_o{s_, d_o_, n_}, q{ds_, q_, n_};
    ops_.accumulate_rows(&d_o, 1, n_, dim_, dv_);
    ops_.accumulate_rows(&q, 1, n_, dim_, dk_);
    for (int r = 0; r < n_; ++r) {
      const std::ptrdiff_t at = std::ptrdiff_t{r} * dim_;
      ops_.store_row(dk_ + at, dim_, 0.125f, DType::f32, bytes(tiny_.dk_, r));
      ops_.store_row(dv_ + at, dim_, 1, DType::f32, bytes(tiny_.dv_, r));
      out_row_[r] = bytes(tiny_.dq_, r);
    }
    std::fill_n(alpha_, ops_.rows, 0.125f);
    ops_.unpack_o(o_t_, dim_, alpha_, DType::f32, out_row_, n_);
  }

 private:
  std::byte* bytes(std::vector<float>& x, int row) const {
    return reinterpret_cast<std::byte*>(x.data() + std::ptrdiff_t{row} * dim_);
  }
  void load() {
    for (int r = 0; r < n_; ++r) {
      q_row_[r] = bytes(tiny_.q_, r);
      k_row_[r] = bytes(tiny_.k_, r);
      v_row_[r] = bytes(tiny_.v_, r);
      d_o_row_[r] = bytes(tiny_.d_o_, r);
      out_row_[r] = bytes(tiny_.o_, r);
    }
  }

  static constexpr int kFloats = kBlockK * 64;
  const TileOps& ops_;
  Tiny& tiny_;
  int n_, dim_;
  const std::byte *q_row_[kMaxRows], *k_row_[kMaxRows], *v_row_[kMaxRows], *d_o_row_[kMaxRows];
  std::byte* out_row_[kMaxRows];
  alignas(kAlignment) float q_t_[kFloats], do_t_[kFloats], o_t_[kFloats], s_[kFloats];
  alignas(kAlignment) float k_[kFloats], v_[kFloats], q_[kFloats], d_o_[kFloats];
  alignas(kAlignment) float ds_[kFloats], dk_[kFloats], dv_[kFloats];
  alignas(kAlignment) float m_[kMaxRows], l_[kMaxRows], alpha_[kMaxRows], row_max_[kMaxRows],
      delta_[kMaxRows];
};

// One head, 16 queries and keys, head size 64. Verbs: the arithmetic alone.
void print_overheads() {
  Tiny tiny(16, 64);
  Verbs verbs(tiny);
  const Context context{.executor = make_thread_pool(1)};
  LeastTimes least({tiny.call(Phase::forward, context), [&] { verbs.forward(); },
                    tiny.call(Phase::backward, context), [&] { verbs.backward(); }});
  least.measure();
  for (const std::size_t call : {0, 2}) {
    std::printf("%s: %.2f us, verbs %.2f, overhead %.2f\n", call == 0 ? "forward" : "backward",
                1e6 * least[call], 1e6 * least[call + 1], 1e6 * (least[call] - least[call + 1]));
  }
}

// Calls so small that a second thread would only cost.
void print_workers() {
  const Context one{.executor = make_thread_pool(1)};
  const Context many{.executor = make_thread_pool(64)};
  for (const std::int64_t length : {1, 16, 32}) {
    for (const Phase phase : {Phase::forward, Phase::backward}) {
      Tiny tiny(length, 64, 2);
      LeastTimes least({tiny.call(phase, one), tiny.call(phase, many)});
      least.measure();
      std::printf("%s of %d queries, 1 and 64 workers: %.2f and %.2f us\n",
                  std::string(name(phase)).c_str(), static_cast<int>(length), 1e6 * least[0],
                  1e6 * least[1]);
    }
  }
}

// The longest of the plans of a mask: 2048 queries and keys, every algorithm of both phases.
void print_plans() {
  constexpr std::int64_t kLength = 2048;
  const std::vector<std::uint8_t> seen(kLength * kLength, 1);
  const expr::Buffer bytes("seen", tensor(seen.data(), {kLength, kLength}));
  const expr::Expr every_element = bytes({expr::symbols().query, expr::symbols().key}) != 0;
  std::vector<Problem> problems;
  for (const char* text :
       {"", "_causal", "_window128x0", "_prefix100", "_causal_documents", "_butterfly16",
        "_alibi_bias", "_softcap30_dropout0.1_sink", "_mask(key%2==0)", "_mask((query+key)%2==0)",
        "_butterfly1_window100x50", "_documents2048,2048_causaltl",
        "_mask(min(query%97,key%89)*max(query,key)%7!=3)",
        "_mask(select(head%2==0,abs(position-key)<64,(key&position)==0))",
        "_mask(allowed[batch,query,key]!=0)_buffer(allowed:u8:8x2048x2048)",
        "_mask(exp(0.1*to_float(key-query))>w[key])_buffer(w:f16:2048)"}) {
    problems.push_back(parse_problem("b8_n2048_h16_d64" + std::string(text)));
    problems.push_back(parse_problem("b8_n2048_h16_d64_packed" + std::string(text)));
  }
  problems.push_back(problems.front());
  problems.back().mask = every_element;
  const Context context{.executor = make_thread_pool(64)};
  for (const Problem& problem : problems) {
    double longest = 0;
    for (const Phase phase : {Phase::forward, Phase::backward}) {
      for (const Algorithm algorithm : algorithms(phase)) {
        double least = std::numeric_limits<double>::infinity();
        for (int i = 0; i < 100; ++i) {
          least = std::min(least, seconds_of([&] {
                             make_plan(problem, phase, {.algorithm = algorithm}, context);
                           }));
        }
        longest = std::max(longest, least);
      }
    }
    std::printf("plan of %s: %.1f us\n", to_string(problem).c_str(), 1e6 * longest);
  }
}

}  // namespace
}  // namespace attn::cpu

int main() {
  attn::cpu::print_overheads();
  attn::cpu::print_workers();
  attn::cpu::print_plans();
}
