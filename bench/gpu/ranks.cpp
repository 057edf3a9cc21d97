// Times one sequence on one GPU and over several of a host, in turn, forward and backward:
//
//   g++ -std=c++20 -O2 -Iinclude -Isrc bench/gpu/ranks.cpp build/libattn.a -lfmt -ldl -pthread -o
//   ranks
//   ./ranks b1_n16384_hq64_hk8_d128_causal_bf16 2
//
// Prints for each phase the median of both, in ms, and the share of the ideal: one GPU's time
// divided by the ranks, of what the slowest rank took. Problems are dense and read no buffers.
#include <algorithm>
#include <barrier>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <list>
#include <random>
#include <thread>
#include <vector>

#include "attn/attn.hpp"
#include "attn/dist.hpp"
#include "cuda/driver/memory.hpp"

namespace {

constexpr int kRounds = 12;

// The tensors of `rows` rows on a device; normal random numbers.
class Rank {
 public:
  Rank(const attn::Problem& p, std::int64_t rows, attn::Device device) : device_(device) {
    const auto like_q = [&](std::int64_t dim) { return make({p.batch, rows, p.heads_q, dim}, p); };
    const auto like_k = [&](std::int64_t dim) { return make({p.batch, rows, p.heads_k, dim}, p); };
    inputs = {.q = like_q(p.head_dim), .k = like_k(p.head_dim), .v = like_k(p.head_dim_v)};
    d_o = like_q(p.head_dim_v);
    outputs.o = like_q(p.head_dim_v);
    attn::Problem f32 = p;
    f32.dtype = attn::DType::f32;
    outputs.lse = make({p.batch, p.heads_q, rows, 1}, f32);
    outputs.lse.rank = 3;
    gradients = {.dq = like_q(p.head_dim), .dk = like_k(p.head_dim), .dv = like_k(p.head_dim_v)};
    if (p.sink) {
      inputs.sink = make({p.heads_q, 1, 1, 1}, f32);
      inputs.sink.rank = 1;
      inputs.sink.strides[0] = 1;
    }
  }
  attn::Inputs inputs;
  attn::Outputs outputs;
  attn::Tensor d_o;
  attn::Gradients gradients;

 private:
  attn::Tensor make(const std::array<std::int64_t, 4>& shape, const attn::Problem& p) {
    const std::int64_t n = shape[0] * shape[1] * shape[2] * shape[3];
    const std::size_t bytes = static_cast<std::size_t>(n) * attn::size_of(p.dtype);
    std::vector<std::byte> host(bytes);
    std::normal_distribution<float> normal;
    for (std::int64_t i = 0; i < n; ++i) {
      const float x = normal(random_);
      if (p.dtype == attn::DType::bf16) {
        reinterpret_cast<attn::bfloat16*>(host.data())[i] = attn::bfloat16(x);
      } else if (p.dtype == attn::DType::f16) {
        reinterpret_cast<attn::float16*>(host.data())[i] = attn::float16(x);
      } else {
        reinterpret_cast<float*>(host.data())[i] = x;
      }
    }
    memory_.emplace_back(device_.index, bytes);
    memory_.back().upload(host.data(), bytes);
    return attn::tensor(memory_.back().data(), p.dtype, {shape[0], shape[1], shape[2], shape[3]},
                        device_);
  }

  attn::Device device_;
  std::minstd_rand random_{1};
  std::list<attn::cuda::DeviceBuffer> memory_;
};

double seconds(const auto& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

double median(std::vector<double> x) {
  std::nth_element(x.begin(), x.begin() + static_cast<std::ptrdiff_t>(x.size() / 2), x.end());
  return x[x.size() / 2];
}

// Milliseconds of a pass: forward, backward.
using Times = std::array<std::vector<double>, 2>;

void run_one(const attn::Problem& p, Rank& rank, int device, Times& times) {
  for (const attn::Phase phase : {attn::Phase::forward, attn::Phase::backward}) {
    attn::PlanOptions options;
    options.device = {attn::DeviceType::cuda, device};
    const attn::Plan plan = attn::make_plan(p, phase, options);
    attn::cuda::DeviceBuffer workspace(device, static_cast<std::size_t>(plan.workspace_bytes));
    attn::Context context;
    if (plan.workspace_bytes > 0) {
      context.workspace =
          attn::tensor(workspace.data(), attn::DType::u8, {plan.workspace_bytes}, options.device);
    }
    const auto pass = [&] {
      if (phase == attn::Phase::forward) {
        attn::forward(plan, rank.inputs, rank.outputs, context);
      } else {
        attn::backward(plan, rank.inputs, rank.outputs, rank.d_o, rank.gradients, context);
      }
      attn::cuda::synchronize(device);
    };
    pass();
    times[static_cast<std::size_t>(phase)].push_back(1e3 * seconds(pass));
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) return std::fprintf(stderr, "usage: ranks PROBLEM RANKS\n"), 2;
  attn::Problem p = attn::parse_problem(argv[1]);
  const int ranks = std::atoi(argv[2]);
  std::vector<attn::Device> devices;
  for (int r = 0; r < ranks; ++r) {
    devices.push_back({attn::DeviceType::cuda, r % attn::cuda::device_count()});
  }
  Rank whole(p, p.seqlen_q, devices[0]);
  Times one, several;
  std::barrier together(ranks + 1);
  std::vector<double> of_rank(static_cast<std::size_t>(ranks));
  std::vector<std::thread> threads;
  for (const attn::dist::Group& group : attn::dist::local(devices)) {
    threads.emplace_back([&, group] {
      const int r = group.rank();
      attn::dist::Options options;
      options.local.device = devices[static_cast<std::size_t>(r)];
      options.rates = {.flops = 6e14, .bytes = 3e11};
      const attn::dist::Plan plan = attn::dist::make_plan(p, group, options);
      std::int64_t rows = 0;
      for (const attn::dist::Rows& range : plan.rows(r)) rows += range.end - range.begin;
      Rank mine(p, rows, options.local.device);
      for (int round = 0; round <= kRounds; ++round) {
        for (int phase = 0; phase < 2; ++phase) {
          together.arrive_and_wait();
          of_rank[static_cast<std::size_t>(r)] = seconds([&] {
            if (phase == 0) {
              attn::dist::forward(plan, mine.inputs, mine.outputs);
            } else {
              attn::dist::backward(plan, mine.inputs, mine.outputs, mine.d_o, mine.gradients);
            }
          });
          together.arrive_and_wait();
        }
      }
    });
  }
  for (int round = 0; round <= kRounds; ++round) {
    run_one(p, whole, devices[0].index, one);
    for (std::size_t phase = 0; phase < 2; ++phase) {
      together.arrive_and_wait();
      together.arrive_and_wait();
      if (round > 0) {  // the first compiles
        several[phase].push_back(1e3 * *std::max_element(of_rank.begin(), of_rank.end()));
      }
    }
  }
  for (std::thread& thread : threads) thread.join();
  for (std::size_t phase = 0; phase < 2; ++phase) {
    const double t1 = median(one[phase]), tp = median(several[phase]);
    std::printf("%-8s one GPU %.3f ms, %d ranks %.3f ms, %.1f %% of the ideal\n",
                phase == 0 ? "forward" : "backward", t1, ranks, tp, 100 * t1 / (ranks * tp));
  }
  return 0;
}
