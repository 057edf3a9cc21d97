// Checks variants of the backward kernel (cubins that variants.py builds) against float64, and
// times them beside FlashAttention-3 when a library with its C entry points is given.
//
//   time_backward [--fa3 libfa3.so] [--check | --unchecked] [--lengths 4096,...] [--reps N]
//   VARIANT.cubin[@skew[@heads]]...
//
// Speed is 10 b h n^2 d flops (half of it under a causal mask) over the median of three rounds,
// each after a rest and in another order, of all kernels of a backward pass, with L2 overwritten
// before each.
#include <chrono>
#include <cmath>
#include <functional>
#include <memory>
#include <random>
#include <thread>

#include "data.cuh"
#include "peer.hpp"
#include "variant.hpp"

namespace {

// Root of the sum of squares of the difference over that of the second; infinite with a NaN.
template <class T>
double difference(const std::vector<Bf16>& a, const std::vector<T>& b) {
  double above = 0, below = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double x = __bfloat162float(a[i]), y = static_cast<double>(b[i]);
    above += (x - y) * (x - y);
    below += y * y;
  }
  const double value = std::sqrt(above / below);
  return std::isfinite(value) ? value : INFINITY;
}
std::vector<float> widened(const std::vector<Bf16>& x) {
  std::vector<float> y;
  for (const Bf16& v : x) y.push_back(__bfloat162float(v));
  return y;
}

// Against float64; returns the number of wrong gradients.
int check_all(const std::vector<std::unique_ptr<Variant>>& variants, const Peer* peer,
              const Problem& p, unsigned seed) {
  Data x(p, seed);
  const long long n = p.seqlen, pairs = 1LL * p.batch * p.heads;
  std::vector<double> expected[3];
  {
    Buffer<double> s(pairs * n * n), dp(pairs * n * n), out(p.elements());
    launch(reference::products, s.count, p, x.q.data, x.k.data, s.data);
    launch(reference::products, dp.count, p, x.d_o.data, x.v.data, dp.data);
    launch(reference::rows, pairs * n, p, s.data, dp.data, x.lse.data);
    launch(reference::sums, out.count, p, s.data, false, 1.0, x.v.data, out.data);
    launch(reference::round_to, out.count, out.data, x.o.data, out.count);
    launch(reference::sums, out.count, p, dp.data, false, p.scale(), x.k.data, out.data);
    expected[0] = out.host();
    launch(reference::sums, out.count, p, dp.data, true, p.scale(), x.q.data, out.data);
    expected[1] = out.host();
    launch(reference::sums, out.count, p, s.data, true, 1.0, x.d_o.data, out.data);
    expected[2] = out.host();
  }
  int wrong = 0;
  const auto report = [&](const std::string& name, const Gradients& g) {
    const double e[3] = {difference(g.dq.host(), expected[0]), difference(g.dk.host(), expected[1]),
                         difference(g.dv.host(), expected[2])};
    // bf16 P and dS, and results rounded to bf16, give about 0.003 to 0.004.
    const bool good = std::max({e[0], e[1], e[2]}) < 6e-3;
    wrong += good ? 0 : 1;
    std::printf("%s b%d h%d n%d d%d %s  dq %.5f dk %.5f dv %.5f  %s\n", good ? "ok   " : "WRONG",
                p.batch, p.heads, p.seqlen, p.head_dim, p.causal ? "causal" : "full", e[0], e[1],
                e[2], name.c_str());
    std::fflush(stdout);
  };
  if (peer != nullptr) {
    Gradients g(p);
    peer->bind(x, g)();
    CHECK(cudaDeviceSynchronize());
    report("FlashAttention-3", g);
  }
  for (const auto& v : variants) {
    if (!v->takes(p)) continue;
    Gradients g(p);
    v->bind(x, g)();
    CHECK(cudaDeviceSynchronize());
    report(v->name, g);
  }
  return wrong;
}

double median(std::vector<double> x) {
  std::nth_element(x.begin(), x.begin() + static_cast<long>(x.size() / 2), x.end());
  return x[x.size() / 2];
}

void time_all(const std::vector<std::unique_ptr<Variant>>& variants, const Peer& peer,
              const Problem& p, int reps) {
  Data x(p, 7);
  peer.run_forward(x);
  Gradients theirs(p), ours(p);
  struct Call {
    std::string name;
    std::function<void()> run;
    std::vector<double> rounds;
    double apart;
  };
  std::vector<Call> calls;
  calls.push_back({"FlashAttention-3", peer.bind(x, theirs), {}, 0});
  calls[0].run();
  CHECK(cudaDeviceSynchronize());
  const std::vector<float> t[3] = {widened(theirs.dq.host()), widened(theirs.dk.host()),
                                   widened(theirs.dv.host())};
  for (const auto& v : variants) {
    if (!v->takes(p)) continue;
    Call c{v->name, v->bind(x, ours), {}, 0};
    for (Buffer<Bf16>* b : {&ours.dq, &ours.dk, &ours.dv}) b->poison();
    c.run();
    CHECK(cudaDeviceSynchronize());
    c.apart = std::max({difference(ours.dq.host(), t[0]), difference(ours.dk.host(), t[1]),
                        difference(ours.dv.host(), t[2])});
    calls.push_back(c);
  }
  Buffer<char> flush(256 << 20);
  cudaEvent_t begin, end;
  CHECK(cudaEventCreate(&begin));
  CHECK(cudaEventCreate(&end));
  std::mt19937 random(1);
  for (int round = 0; round < 3; ++round) {
    std::vector<Call*> order;
    for (Call& c : calls) order.push_back(&c);
    std::shuffle(order.begin(), order.end(), random);
    for (Call* c : order) {
      CHECK(cudaDeviceSynchronize());
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      std::vector<double> times;
      for (int i = 0; i < reps; ++i) {
        CHECK(cudaMemsetAsync(flush.data, 0, flush.count));
        CHECK(cudaEventRecord(begin));
        c->run();
        CHECK(cudaEventRecord(end));
        CHECK(cudaEventSynchronize(end));
        float ms;
        CHECK(cudaEventElapsedTime(&ms, begin, end));
        if (i >= reps / 4) times.push_back(ms);
      }
      c->rounds.push_back(median(times));
    }
  }
  const double flops =
      10.0 * p.batch * p.heads * p.seqlen * p.seqlen * p.head_dim * (p.causal ? 0.5 : 1);
  const double peer_ms = median(calls[0].rounds);
  for (const Call& c : calls) {
    const double ms = median(c.rounds);
    std::printf(
        "b%d h%d n%d d%d %s  %7.1f TFLOP/s  %.3f of FA3  [%.4f %.4f %.4f ms]  differs %.5f  %s\n",
        p.batch, p.heads, p.seqlen, p.head_dim, p.causal ? "causal" : "full  ", flops / ms * 1e-9,
        peer_ms / ms, c.rounds[0], c.rounds[1], c.rounds[2], c.apart, c.name.c_str());
  }
  std::fflush(stdout);
}

}  // namespace

int main(int count, char** words) {
  std::string fa3;
  std::vector<int> lengths = {4096};
  int reps = 16;
  bool timed = true, checked = true;
  std::vector<std::string> names;
  for (int i = 1; i < count; ++i) {
    const std::string w = words[i];
    const auto value = [&] { return std::string(i + 1 < count ? words[++i] : ""); };
    if (w == "--fa3") {
      fa3 = value();
    } else if (w == "--reps") {
      reps = std::atoi(value().c_str());
    } else if (w == "--check") {
      timed = false;
    } else if (w == "--unchecked") {  // variants that are wrong on purpose
      checked = false;
    } else if (w == "--lengths") {
      lengths.clear();
      const std::string list = value();
      for (std::size_t at = 0; at < list.size(); at = list.find(',', at) + 1) {
        lengths.push_back(std::atoi(list.c_str() + at));
        if (list.find(',', at) == std::string::npos) break;
      }
    } else {
      names.push_back(w);
    }
  }
  CHECK(cudaFree(nullptr));
  CHECK(cudaHostAlloc(&stuck, 16, cudaHostAllocMapped));
  std::memset(stuck, 0, 16);
  std::unique_ptr<Peer> peer;
  if (!fa3.empty()) peer = std::make_unique<Peer>(fa3);
  std::vector<std::unique_ptr<Variant>> variants;
  for (const std::string& name : names) variants.push_back(std::make_unique<Variant>(name));

  int wrong = 0;
  for (const int d : {64, 128}) {
    for (const bool causal : {false, true}) {
      const auto any = std::any_of(variants.begin(), variants.end(), [&](const auto& v) {
        return v->takes({1, 1, 1, d, causal});
      });
      if (!any) continue;
      unsigned seed = 100;
      for (const Problem& p : {Problem{1, 1, 128, d, causal}, Problem{2, 3, 512, d, causal},
                               Problem{1, 2, 777, d, causal}, Problem{8, 8, 640, d, causal}}) {
        if (checked) wrong += check_all(variants, peer.get(), p, seed += 10);
      }
      if (!timed || !peer || wrong > 0) continue;
      for (const int n : lengths) {
        time_all(variants, *peer, {std::max(1, 16384 / n), 2048 / d, n, d, causal}, reps);
      }
    }
  }
  std::printf("%d wrong\n", wrong);
  return wrong > 0 ? 1 : 0;
}
