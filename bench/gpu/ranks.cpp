// Times one sequence on one GPU and over several of a host, in shuffled order, forward and
// backward:
//
//   g++ -std=c++20 -O2 -Iinclude -Isrc bench/gpu/ranks.cpp build/libattn.a -lfmt -ldl -pthread -o
//   ranks
//   ./ranks [--warm] 2 b1_n16384_hq64_hk8_d128_causal_bf16
//   b3_sq8192_sk8192_..._packed_causal_bf16/8192,4096,4096
//
// --warm: once, to fill the cache of compiled kernels. Results of the ranks are compared with those
// of one GPU before anything is timed. A problem has one sequence, or is packed, with its lengths
// behind a slash. A line for each: problem, ms of one GPU forward and backward, ms of the slowest
// rank (medians of calls that are waited for), the share of the ideal forward, backward and of both
// (one GPU's time divided by the ranks, of the slowest rank's), and how far the results are apart.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <list>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "attn/attn.hpp"
#include "attn/dist.hpp"
#include "ranks_tensors.hpp"

namespace {

constexpr int kRounds = 15;
constexpr double kMostApart = 0.01;  // bf16 has 8 bits: a rounding or two are 0.003

struct Times {
  std::vector<double> one[2], ranks[2];  // by phase
  double apart = 0;
};

Times run(const Work& work, int ranks, int rounds) {
  std::vector<attn::Device> devices;
  for (int r = 0; r < ranks; ++r) {
    devices.push_back({attn::DeviceType::cuda, r % attn::cuda::device_count()});
  }
  Part whole(work, {{0, work.rows}}, devices[0]);
  whole.give_lengths();
  One one(work, whole, devices[0]);
  for (const std::size_t phase : {0, 1}) one.run(phase);  // compiles; the answers
  std::vector<std::vector<double>> of_rank(2, std::vector<double>(static_cast<std::size_t>(ranks)));
  std::vector<double> apart(static_cast<std::size_t>(ranks));
  std::vector<std::string> failures(static_cast<std::size_t>(ranks));
  SpinBarrier together(ranks + 1);
  bool go_on = true;
  int phase = 0;
  std::vector<std::thread> threads;
  for (const attn::dist::Group& group : attn::dist::local(devices)) {
    threads.emplace_back([&, group] {
      const auto r = static_cast<std::size_t>(group.rank());
      std::string& failure = failures[r];
      std::list<Part> mine;
      std::list<attn::dist::Plan> plans;
      const auto call = [&](int of) {
        Part& part = mine.front();
        if (of == 0) {
          attn::dist::forward(plans.front(), part.inputs, part.outputs);
        } else {
          attn::dist::backward(plans.front(), part.inputs, part.outputs, part.d_o, part.gradients);
        }
      };
      try {
        attn::dist::Options options;
        options.local.device = devices[r];
        options.lengths = {.cu_seqlens_q = work.starts, .cu_seqlens_k = work.starts};
        plans.push_back(attn::dist::make_plan(work.problem, group, options));
        if (r == 0) std::fprintf(stderr, "%s\n", attn::dist::to_string(plans.front()).c_str());
        mine.emplace_back(work, plans.front().rows(group.rank()), devices[r]);
        call(0);
        call(1);
        apart[r] = mine.front().apart_from(whole);
      } catch (const std::exception& error) {
        failure = error.what();
      }
      while (true) {
        together.arrive_and_wait();
        if (!go_on) return;
        const int of = phase;
        try {
          if (failure.empty()) {
            of_rank[static_cast<std::size_t>(of)][r] = milliseconds([&] { call(of); });
          }
        } catch (const std::exception& error) {
          failure = error.what();
        }
        together.arrive_and_wait();
      }
    });
  }
  Times times;
  std::minstd_rand random(5);
  for (int round = -1; round < rounds; ++round) {
    std::vector<int> order{0, 1, 2, 3};  // phase, and whether by ranks
    std::shuffle(order.begin(), order.end(), random);
    for (const int what : order) {
      const auto of = static_cast<std::size_t>(what % 2);
      if (what < 2) {
        const double ms = one.run(of);
        if (round >= 0) times.one[of].push_back(ms);
        continue;
      }
      phase = what % 2;
      together.arrive_and_wait();
      together.arrive_and_wait();
      if (round >= 0) {
        times.ranks[of].push_back(*std::max_element(of_rank[of].begin(), of_rank[of].end()));
      }
    }
  }
  go_on = false;
  together.arrive_and_wait();
  for (std::thread& thread : threads) thread.join();
  for (const std::string& failure : failures) {
    if (!failure.empty()) throw std::runtime_error(failure);
  }
  times.apart =
      *std::max_element(apart.begin(), apart.end(), [](double a, double b) { return !(a >= b); });
  return times;
}

}  // namespace

int main(int argc, char** argv) {
  const bool warm = argc > 1 && std::string(argv[1]) == "--warm";
  const int first = warm ? 2 : 1;
  if (argc < first + 2) return std::fprintf(stderr, "usage: ranks [--warm] RANKS PROBLEM...\n"), 2;
  const int ranks = std::atoi(argv[first]);
  int failed = 0;
  for (int i = first + 1; i < argc; ++i) {
    try {
      const Times t = run(parse(argv[i]), ranks, warm ? 1 : kRounds);
      const double one[] = {median(t.one[0]), median(t.one[1])};
      const double several[] = {median(t.ranks[0]), median(t.ranks[1])};
      const auto share = [&](double a, double b) { return 100 * a / (ranks * b); };
      const bool right = t.apart <= kMostApart;
      failed += right ? 0 : 1;
      std::printf(
          "%-52s one %7.3f %7.3f  %d ranks %7.3f %7.3f  %5.1f %5.1f both %5.1f %%  apart %.4f%s\n",
          argv[i], one[0], one[1], ranks, several[0], several[1], share(one[0], several[0]),
          share(one[1], several[1]), share(one[0] + one[1], several[0] + several[1]), t.apart,
          right ? "" : " WRONG");
    } catch (const std::exception& error) {
      ++failed;
      std::printf("%-52s FAILED %s\n", argv[i], error.what());
    }
    std::fflush(stdout);
  }
  return failed == 0 ? 0 : 1;
}
