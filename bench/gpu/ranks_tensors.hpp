// Tensors of one sequence on one GPU, or of a rank's rows of it, and the whole problem on one GPU:
// what the programs of ranks time.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <list>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "attn/attn.hpp"
#include "attn/dist.hpp"
#include "cuda/driver/memory.hpp"

namespace {

using attn::Tensor;
using attn::dist::Rows;

// As std::barrier, but whose threads spin: one that is woken starts tens of microseconds after the
// others, which would then wait for it in what is timed.
class SpinBarrier {
 public:
  explicit SpinBarrier(int threads) : threads_(threads) {}
  void arrive_and_wait() {
    const int round = round_;
    if (++arrived_ == threads_) {
      arrived_ = 0;
      ++round_;
    }
    while (round_ == round) {
    }
  }

 private:
  int threads_;
  std::atomic<int> arrived_{0}, round_{0};
};

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

  // A tensor of zeros of this shape in f32, as partial sums of dK and dV are.
  Tensor floats_like(const Tensor& t) {
    return floats({t.shape.begin(), t.shape.begin() + t.rank});
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

}  // namespace
