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
#include <barrier>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <list>
#include <random>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "attn/attn.hpp"
#include "attn/dist.hpp"
#include "cuda/driver/memory.hpp"

namespace {

using attn::Tensor;
using attn::dist::Rows;

constexpr int kRounds = 15;
constexpr double kMostApart = 0.01;  // bf16 has 8 bits: a rounding or two are 0.003

struct Work {
  attn::Problem problem;
  std::vector<std::int32_t> starts;  // cu_seqlens, of packed tensors
  std::int64_t rows = 0;
};

Work parse(const std::string& text) {
  const std::size_t slash = text.find('/');
  Work work;
  work.problem = attn::parse_problem(text.substr(0, slash));
  work.rows = work.problem.seqlen_q;
  if (slash == std::string::npos) return work;
  work.starts = {0};
  std::stringstream lengths(text.substr(slash + 1));
  for (std::string length; std::getline(lengths, length, ',');) {
    work.starts.push_back(work.starts.back() + std::atoi(length.c_str()));
  }
  work.rows = work.starts.back();
  return work;
}

// Normal random numbers, which repeat after a prime number of elements.
std::vector<attn::bfloat16> random_elements(std::int64_t count, unsigned seed) {
  constexpr std::size_t kPeriod = 1'000'003;
  std::vector<attn::bfloat16> x(static_cast<std::size_t>(count));
  std::minstd_rand random(seed);
  std::normal_distribution<float> normal;
  for (std::size_t i = 0; i < std::min(kPeriod, x.size()); ++i)
    x[i] = attn::bfloat16(normal(random));
  for (std::size_t i = kPeriod; i < x.size(); ++i) x[i] = x[i - kPeriod];
  return x;
}

// All tensors of the line's rows that a GPU holds.
class Part {
 public:
  Part(const Work& work, std::vector<Rows> rows, attn::Device device)
      : work_(work), rows_(std::move(rows)), device_(device) {
    const attn::Problem& p = work.problem;
    const auto heads = [&](bool of_q, std::int64_t dim, unsigned seed) {
      return make(of_q ? p.heads_q : p.heads_k, dim, seed);
    };
    inputs = {.q = heads(true, p.head_dim, 1),
              .k = heads(false, p.head_dim, 2),
              .v = heads(false, p.head_dim_v, 3)};
    d_o = heads(true, p.head_dim_v, 4);
    outputs.o = heads(true, p.head_dim_v, 0);
    gradients = {.dq = heads(true, p.head_dim, 0),
                 .dk = heads(false, p.head_dim, 0),
                 .dv = heads(false, p.head_dim_v, 0)};
    outputs.lse = packed() ? floats({p.heads_q, count()}) : floats({1, p.heads_q, count()});
    if (p.sink) {
      inputs.sink = floats({p.heads_q});
      gradients.dsink = floats({p.heads_q});
    }
    // A descriptor gives buffers by name and shape: of its scores only the slopes of ALiBi.
    for (const auto& buffer : attn::expr::buffers(p.score)) {
      inputs.buffers.emplace_back(buffer->name(), slopes(p.heads_q));
    }
  }

  // The whole line's cu_seqlens, for a call without ranks.
  void give_lengths() {
    if (!packed()) return;
    const std::size_t bytes = work_.starts.size() * sizeof(std::int32_t);
    memory_.emplace_back(device_.index, bytes);
    memory_.back().upload(work_.starts.data(), bytes);
    inputs.cu_seqlens_q = inputs.cu_seqlens_k =
        attn::tensor(memory_.back().data(), attn::DType::i32,
                     {static_cast<std::int64_t>(work_.starts.size())}, device_);
  }

  // The root of the mean square of a result's difference from the same rows of `whole`, which has
  // all, as a share of that of the result: the largest of O, dQ, dK and dV.
  double apart_from(const Part& whole) const {
    double most = 0;
    const std::pair<Tensor, Tensor> pairs[] = {{outputs.o, whole.outputs.o},
                                               {gradients.dq, whole.gradients.dq},
                                               {gradients.dk, whole.gradients.dk},
                                               {gradients.dv, whole.gradients.dv}};
    for (const auto& [mine, all] : pairs) {
      const std::int64_t row = mine.size() / std::max<std::int64_t>(count(), 1);
      const auto a = download(mine), b = download(all);
      double squares = 0, differences = 0;
      std::size_t at = 0;
      for (const Rows& rows : rows_) {
        for (std::int64_t i = rows.begin * row; i < rows.end * row; ++i, ++at) {
          const auto x = static_cast<float>(a[at]);
          const auto y = static_cast<float>(b[static_cast<std::size_t>(i)]);
          squares += static_cast<double>(y * y);
          differences += static_cast<double>((x - y) * (x - y));
        }
      }
      const double share = at == 0 ? 0 : std::sqrt(differences / squares);
      most = share <= most ? most : share;  // and NaN
    }
    return most;
  }

  attn::Inputs inputs;
  attn::Outputs outputs;
  attn::Tensor d_o;
  attn::Gradients gradients;

 private:
  bool packed() const { return !work_.starts.empty(); }
  std::int64_t count() const {
    std::int64_t n = 0;
    for (const Rows& rows : rows_) n += rows.end - rows.begin;
    return n;
  }
  // seed 0: 0xff bytes, which are NaN.
  Tensor make(std::int64_t heads, std::int64_t dim, unsigned seed) {
    const std::int64_t row = heads * dim;
    const std::size_t bytes = static_cast<std::size_t>(count() * row) * 2;
    memory_.emplace_back(device_.index, std::max<std::size_t>(bytes, 1));
    if (seed == 0) {
      memory_.back().fill(0xff);
    } else {
      const std::vector<attn::bfloat16> all = random_elements(work_.rows * row, seed);
      std::size_t to = 0;
      for (const Rows& rows : rows_) {
        const auto n = static_cast<std::size_t>((rows.end - rows.begin) * row) * 2;
        memory_.back().upload(all.data() + rows.begin * row, n, to);
        to += n;
      }
    }
    void* const data = memory_.back().data();
    return packed() ? attn::tensor(data, attn::DType::bf16, {count(), heads, dim}, device_)
                    : attn::tensor(data, attn::DType::bf16, {1, count(), heads, dim}, device_);
  }
  Tensor floats(std::vector<std::int64_t> shape) {
    Tensor t;
    t.device = device_;
    t.rank = static_cast<std::int32_t>(shape.size());
    std::int64_t stride = 1;
    for (std::size_t d = shape.size(); d-- > 0; stride *= shape[d]) {
      t.shape[d] = shape[d];
      t.strides[d] = stride;
    }
    memory_.emplace_back(device_.index,
                         static_cast<std::size_t>(std::max<std::int64_t>(stride, 1)) * 4);
    memory_.back().fill(0);
    t.data = memory_.back().data();
    return t;
  }
  Tensor slopes(std::int64_t heads) {
    const Tensor t = floats({heads});
    std::vector<float> host(static_cast<std::size_t>(heads));
    for (std::size_t h = 0; h < host.size(); ++h) {
      host[h] = std::exp2(-8 * static_cast<float>(h + 1) / static_cast<float>(heads));
    }
    memory_.back().upload(host.data(), host.size() * sizeof(float));
    return t;
  }
  static std::vector<attn::bfloat16> download(const Tensor& t) {
    std::vector<attn::bfloat16> host(static_cast<std::size_t>(t.size()));
    const attn::cuda::ContextGuard guard(t.device.index);
    attn::cuda::check(
        attn::cuda::api().cuMemcpyAsync(reinterpret_cast<attn::cuda::CUdeviceptr>(host.data()),
                                        reinterpret_cast<attn::cuda::CUdeviceptr>(t.data),
                                        host.size() * 2, nullptr),
        "a download");
    attn::cuda::check(attn::cuda::api().cuStreamSynchronize(nullptr), "a download");
    return host;
  }

  const Work& work_;
  std::vector<Rows> rows_;
  attn::Device device_;
  std::list<attn::cuda::DeviceBuffer> memory_;
};

double milliseconds(const auto& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return 1e3 * std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

double median(std::vector<double> x) {
  std::nth_element(x.begin(), x.begin() + static_cast<std::ptrdiff_t>(x.size() / 2), x.end());
  return x[x.size() / 2];
}

// The whole problem on one GPU.
class One {
 public:
  One(const Work& work, Part& part, attn::Device device) : part_(part), device_(device) {
    attn::PlanOptions options;
    options.device = device;
    for (const attn::Phase phase : {attn::Phase::forward, attn::Phase::backward}) {
      plans_.push_back(attn::make_plan(work.problem, phase, options));
      workspaces_.emplace_back(device.index, static_cast<std::size_t>(std::max<std::int64_t>(
                                                 plans_.back().workspace_bytes, 1)));
    }
  }
  double run(std::size_t phase) {
    attn::Context context;
    const attn::Plan& plan = plans_[phase];
    if (plan.workspace_bytes > 0) {
      context.workspace =
          attn::tensor(workspaces_[phase].data(), attn::DType::u8, {plan.workspace_bytes}, device_);
    }
    return milliseconds([&] {
      if (phase == 0) {
        attn::forward(plan, part_.inputs, part_.outputs, context);
      } else {
        attn::backward(plan, part_.inputs, part_.outputs, part_.d_o, part_.gradients, context);
      }
      attn::cuda::synchronize(device_.index);
    });
  }

 private:
  Part& part_;
  attn::Device device_;
  std::vector<attn::Plan> plans_;
  std::vector<attn::cuda::DeviceBuffer> workspaces_;
};

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
  std::barrier together(ranks + 1);
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
