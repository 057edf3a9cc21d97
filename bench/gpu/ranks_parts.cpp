// Says where the time of a sequence over the GPUs of a host goes: times one GPU's whole problem,
// the kernels of each rank with all its keys at hand, the copies, the sums, and all together.
//
//   g++ -std=c++20 -O2 -Iinclude -Isrc bench/gpu/ranks_parts.cpp build/libattn.a -lfmt -ldl
//     -pthread -o ranks_parts
//   ./ranks_parts [--kernels] 2 b1_n16384_hq64_hk8_d128_causal_bf16
//
// --kernels: of a rank's kernels all heads in one call alone, no copies and no sums. A problem is
// as in ranks.cpp. Each line is the median of some calls in ms; "of half" is a share of the ideal,
// one GPU's time divided by the ranks. All of it takes some ten seconds a problem, most of them for
// tensors and for compiling kernels.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cuda/cuda.hpp"
#include "cuda/row_sums.hpp"
#include "dist/device.hpp"
#include "dist/device_rows.hpp"
#include "dist/peer_memory.hpp"
#include "dist/plan_data.hpp"
#include "ranks_tensors.hpp"

namespace {

using attn::Phase;
using attn::cuda::Event;
using attn::cuda::Stream;
using attn::dist::Copies;
using attn::dist::PlanData;
using attn::dist::RowList;

constexpr int kRounds = 7;

void say(const std::string& what, double ms, const std::string& more = "") {
  std::printf("  %-58s %8.3f ms  %s\n", what.c_str(), ms, more.c_str());
  std::fflush(stdout);
}

std::string percent(double ideal, double ms) {
  char text[64];
  std::snprintf(text, sizeof text, "%5.1f %% of the ideal", 100 * ideal / ms);
  return text;
}
std::string gigabytes(double bytes, double ms) {
  char text[64];
  std::snprintf(text, sizeof text, "%.1f MB, %.0f GB/s", bytes / 1e6, bytes / ms / 1e6);
  return text;
}

double median_of(const std::function<double()>& once) {
  once();  // compiles
  std::vector<double> times;
  for (int i = 0; i < kRounds; ++i) times.push_back(once());
  return median(times);
}
double median_of_waited(int device, const std::function<void()>& work) {
  return median_of([&] {
    return milliseconds([&] {
      work();
      attn::cuda::synchronize(device);
    });
  });
}

// The heads [first, first + count) of [.., heads, columns], or of LSE's [.., heads, rows].
Tensor heads_of(Tensor t, std::int64_t first, std::int64_t count) {
  if (!t.given()) return t;
  const auto axis = static_cast<std::size_t>(t.rank == 1 ? 0 : t.rank - 2);
  t.data = attn::dist::at(t, first * t.strides[axis]);
  t.shape[axis] = count;
  return t;
}

// A rank's own calls with all keys at hand, of all heads or of groups of them.
class RankKernels {
 public:
  // counts: K, V heads of each group; two_streams: groups take turns, as ranks run them.
  RankKernels(const PlanData& plan, Part& mine, Part& gathered, attn::Device device, Phase phase,
              const std::vector<std::int64_t>& counts, bool two_streams)
      : phase_(phase), device_(device) {
    streams_.emplace_back(device.index);
    if (two_streams) streams_.emplace_back(device.index);
    const attn::Problem& p = plan.problem;
    const std::int64_t of_one = p.heads_q / p.heads_k;
    std::size_t workspace_bytes = 1;
    std::int64_t first = 0;
    for (const std::int64_t count : counts) {
      attn::dist::LocalProblem part = plan.work.part;
      part.problem.heads_q = count * of_one;
      part.problem.heads_k = count;
      const auto of_q = [&](const Tensor& t) {
        return heads_of(t, first * of_one, count * of_one);
      };
      const auto of_k = [&](const Tensor& t) { return heads_of(t, first, count); };
      OfGroup& g = groups_.emplace_back(
          attn::dist::plan_on_device(part.problem, phase, plan.options.local, {}),
          plan.work.memory->tables(plan));
      g.inputs.q = of_q(mine.inputs.q);
      g.inputs.k = of_k(gathered.inputs.k);
      g.inputs.v = of_k(gathered.inputs.v);
      g.inputs.sink = of_q(mine.inputs.sink);
      g.inputs.buffers.insert(g.inputs.buffers.end(), mine.inputs.buffers.begin(),
                              mine.inputs.buffers.end());
      g.outputs = {.o = of_q(mine.outputs.o), .lse = of_q(mine.outputs.lse)};
      g.d_outputs.o = of_q(mine.d_o);
      g.gradients.dq = of_q(mine.gradients.dq);
      g.gradients.dk = of_k(gathered.gradients.dk);
      g.gradients.dv = of_k(gathered.gradients.dv);
      g.gradients.dsink = of_q(mine.gradients.dsink);
      workspace_bytes = std::max(workspace_bytes, static_cast<std::size_t>(g.plan.workspace_bytes));
      first += count;
    }
    for (std::size_t i = 0; i < streams_.size(); ++i) {
      workspaces_.emplace_back(device.index, workspace_bytes);
    }
  }

  void launch() {
    auto stream = streams_.begin();
    auto workspace = workspaces_.begin();
    for (OfGroup& g : groups_) {
      attn::Context context;
      context.stream = stream->handle();
      if (g.plan.workspace_bytes > 0) {
        context.workspace =
            attn::tensor(workspace->data(), attn::DType::u8, {g.plan.workspace_bytes}, device_);
      }
      if (phase_ == Phase::forward) {
        attn::cuda::forward(g.plan, g.inputs, g.outputs, context);
      } else {
        attn::cuda::backward(g.plan, g.inputs, g.outputs, g.d_outputs, g.gradients, context);
      }
      if (++stream == streams_.end())
        stream = streams_.begin(), workspace = workspaces_.begin();
      else
        ++workspace;
    }
  }
  double time() {
    return median_of_waited(device_.index, [&] { launch(); });
  }

 private:
  struct OfGroup {
    OfGroup(attn::Plan of, attn::Inputs with) : plan(std::move(of)), inputs(std::move(with)) {}
    attn::Plan plan;
    attn::Inputs inputs;
    attn::Outputs outputs{};
    attn::OutputGradients d_outputs{};
    attn::Gradients gradients{};
  };

  Phase phase_;
  attn::Device device_;
  std::list<Stream> streams_;
  std::list<attn::cuda::DeviceBuffer> workspaces_;
  std::list<OfGroup> groups_;
};

// All ranks in one process, each with its plan and tensors.
struct Rank {
  attn::Device device;
  std::unique_ptr<attn::dist::Plan> plan;
  std::unique_ptr<Part> mine, gathered;
  std::unique_ptr<Stream> stream;
};

double bytes_of(const Tensor& t, const RowList& rows) {
  const double row = static_cast<double>(t.size()) /
                     static_cast<double>(t.shape[static_cast<std::size_t>(t.rank - 3)]);
  return row * 2 * static_cast<double>(attn::dist::count(rows));
}

// Copies rows of K and V between places, by copy engines or as the driver likes.
double copy_keys(const PlanData& plan, const Rank& from, std::size_t owner, const Rank& to,
                 std::size_t reader) {
  const Copies copies(to.device, to.stream->handle());
  double bytes = 0;
  for (const bool of_v : {false, true}) {
    const auto& a = of_v ? from.mine->inputs.v : from.mine->inputs.k;
    const auto& b = of_v ? to.gathered->inputs.v : to.gathered->inputs.k;
    attn::dist::copy_common(copies, {a, plan.keys[owner]}, {b, plan.gathered[reader]});
    bytes += bytes_of(a, common(plan.keys[owner], plan.gathered[reader]));
  }
  return bytes;
}

void synchronize_all(const std::vector<Rank>& ranks) {
  for (const Rank& rank : ranks) attn::cuda::synchronize(rank.device.index);
}

void time_copies(const std::vector<Rank>& ranks, const std::function<void()>& kernel_of_0) {
  const PlanData& plan = ranks[0].plan->data();
  for (std::size_t to = 0; to < ranks.size(); ++to) {
    double bytes = 0;
    const double ms = median_of_waited(ranks[to].device.index, [&] {
      bytes = 0;
      for (std::size_t from = 0; from < ranks.size(); ++from) {
        if (from != to) bytes += copy_keys(plan, ranks[from], from, ranks[to], to);
      }
    });
    say("(c) rank " + std::to_string(to) + " copies K, V of others", ms, gigabytes(bytes, ms));
  }
  const double both = median_of([&] {
    return milliseconds([&] {
      for (std::size_t to = 0; to < ranks.size(); ++to) {
        for (std::size_t from = 0; from < ranks.size(); ++from) {
          if (from != to) copy_keys(plan, ranks[from], from, ranks[to], to);
        }
      }
      synchronize_all(ranks);
    });
  });
  say("(c) all ranks at once", both);
  double bytes = 0;
  const int device = ranks[0].device.index;
  const auto own = [&] { bytes = copy_keys(plan, ranks[0], 0, ranks[0], 0); };
  const double local = median_of_waited(device, own);
  say("(c) rank 0 copies its own K, V by cuMemcpyAsync", local, gigabytes(bytes, local));
  attn::Context context;
  context.stream = ranks[0].stream->handle();
  const auto by_kernel = [&] {
    for (const attn::dist::Rows& rows : plan.keys[0]) {
      for (const bool of_v : {false, true}) {
        const Rank& r = ranks[0];
        const attn::dist::RowTensor a{of_v ? r.mine->inputs.v : r.mine->inputs.k, plan.keys[0]};
        const attn::dist::RowTensor b{of_v ? r.gathered->inputs.v : r.gathered->inputs.k,
                                      plan.gathered[0]};
        for (const attn::dist::Rows& there : common({rows}, b.rows)) {
          const Tensor term = rows_of(a, there);
          attn::cuda::row_sums({&term, 1}, rows_of(b, there), context);
        }
      }
    }
  };
  const double packing = median_of_waited(device, by_kernel);
  say("(c) the same by a kernel", packing, gigabytes(bytes, packing));
  // Beside the backward kernels: whether a copy waits until they end.
  const auto beside = [&](const std::function<void()>& copy) {
    return median_of([&] {
      kernel_of_0();
      const auto begin = std::chrono::steady_clock::now();
      copy();
      ranks[0].stream->synchronize();
      const double ms =
          1e3 * std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
      attn::cuda::synchronize(device);
      return ms;
    });
  };
  say("(c) own K, V by cuMemcpyAsync, beside backward kernels", beside(own));
  say("(c) by a kernel, beside backward kernels", beside(by_kernel));
  if (ranks.size() > 1) {
    say("(c) K, V of rank 1, beside backward kernels",
        beside([&] { copy_keys(plan, ranks[1], 1, ranks[0], 0); }));
  }
}

// (d): dK and dV of the rank's rows as sums of two terms.
void time_sums(const Rank& rank) {
  Part& p = *rank.mine;
  attn::Context context;
  context.stream = rank.stream->handle();
  const Tensor of_k = p.floats_like(p.inputs.k), of_v = p.floats_like(p.inputs.v);
  const double ms = median_of_waited(rank.device.index, [&] {
    const Tensor k[] = {of_k, of_k}, v[] = {of_v, of_v};
    attn::cuda::row_sums(k, p.gradients.dk, context);
    attn::cuda::row_sums(v, p.gradients.dv, context);
  });
  constexpr double kBytesOfElement = 2 * 4 + 2;  // two terms, and what they are rounded to
  const double bytes = kBytesOfElement * static_cast<double>(p.inputs.k.size() + p.inputs.v.size());
  say("(d) sums of dK and dV, two terms", ms, gigabytes(bytes, ms));
}

void run(const Work& work, int count, bool only_kernels) {
  std::vector<Rank> ranks(static_cast<std::size_t>(count));
  std::vector<attn::Device> devices;
  for (int r = 0; r < count; ++r) {
    devices.push_back({attn::DeviceType::cuda, r % attn::cuda::device_count()});
  }
  Part whole(work, {{0, work.rows}}, devices[0]);
  whole.give_lengths();
  One one(work, whole, devices[0]);
  double ideal[2];
  for (const std::size_t phase : {0, 1}) {
    const double ms = median_of([&] { return one.run(phase); });
    ideal[phase] = ms / count;
    say(phase == 0 ? "(a) one GPU, forward" : "(a) one GPU, backward", ms);
  }
  SpinBarrier together(count + 1);
  std::vector<double> times(ranks.size());
  int phase = -1;
  std::vector<std::thread> threads;
  for (const attn::dist::Group& group : attn::dist::local(devices)) {
    threads.emplace_back([&, group] {
      const auto r = static_cast<std::size_t>(group.rank());
      try {
        Rank& rank = ranks[r];
        rank.device = devices[r];
        attn::dist::Options options;
        options.local.device = devices[r];
        options.lengths = {.cu_seqlens_q = work.starts, .cu_seqlens_k = work.starts};
        rank.plan =
            std::make_unique<attn::dist::Plan>(attn::dist::make_plan(work.problem, group, options));
        rank.mine = std::make_unique<Part>(work, rank.plan->rows(group.rank()), devices[r]);
        rank.gathered = std::make_unique<Part>(work, rank.plan->gathered(group.rank()), devices[r]);
        attn::Gradients& sums = rank.gathered->gradients;
        sums.dk = rank.gathered->floats_like(sums.dk);
        sums.dv = rank.gathered->floats_like(sums.dv);
        rank.stream = std::make_unique<Stream>(devices[r].index);
        while (true) {
          together.arrive_and_wait();
          if (phase < -1) return;
          Part& p = *rank.mine;
          times[r] = milliseconds([&] {
            if (phase == 0) attn::dist::forward(*rank.plan, p.inputs, p.outputs);
            if (phase == 1) {
              attn::dist::backward(*rank.plan, p.inputs, p.outputs, p.d_o, p.gradients);
            }
          });
          together.arrive_and_wait();
        }
      } catch (const std::exception& error) {
        std::printf("FAILED on rank %zu: %s\n", r, error.what());
        std::fflush(stdout);
        std::_Exit(1);  // the others wait for it
      }
    });
  }
  const auto call = [&](int of) {
    phase = of;
    together.arrive_and_wait();
    together.arrive_and_wait();
    return *std::max_element(times.begin(), times.end());
  };
  call(-1);  // plans and tensors are there
  std::printf("%s", attn::dist::to_string(*ranks[0].plan).c_str());
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    const PlanData& plan = ranks[r].plan->data();
    const std::int64_t heads = plan.problem.heads_k;
    for (const Phase of : {Phase::forward, Phase::backward}) {
      const double share = ideal[of == Phase::forward ? 0 : 1];
      const std::string name =
          "(b) rank " + std::to_string(r) + (of == Phase::forward ? " forward, " : " backward, ");
      const auto report = [&](const std::string& how, const std::vector<std::int64_t>& counts,
                              bool two_streams) {
        RankKernels kernels(plan, *ranks[r].mine, *ranks[r].gathered, devices[r], of, counts,
                            two_streams);
        const double ms = kernels.time();
        say(name + how, ms, percent(share, ms));
      };
      report("all heads in one call", {heads}, false);
      if (heads < 4 || only_kernels) continue;
      report("1 head and the rest, one stream", {1, heads - 1}, false);
      report("1 head and the rest, two streams", {1, heads - 1}, true);
      report("halves, two streams", {heads / 2, heads - heads / 2}, true);
    }
  }
  if (!only_kernels) {
    const PlanData& plan = ranks[0].plan->data();
    RankKernels backward(plan, *ranks[0].mine, *ranks[0].gathered, devices[0], Phase::backward,
                         {plan.problem.heads_k}, false);
    time_copies(ranks, [&] { backward.launch(); });
    time_sums(ranks[0]);
  }
  say("(e) ranks meet: an empty call of all threads", median_of([&] { return call(-1); }));
  for (const int of : {0, 1}) {
    const double ms = median_of([&] { return call(of); });
    say(of == 0 ? "(e) ranks together, forward" : "(e) ranks together, backward", ms,
        percent(ideal[of], ms));
  }
  phase = -2;
  together.arrive_and_wait();
  for (std::thread& thread : threads) thread.join();
}

}  // namespace

int main(int argc, char** argv) {
  const bool only_kernels = argc > 1 && std::string(argv[1]) == "--kernels";
  const int first = only_kernels ? 2 : 1;
  if (argc < first + 2) {
    return std::fprintf(stderr, "usage: ranks_parts [--kernels] RANKS PROBLEM...\n"), 2;
  }
  int failed = 0;
  for (int i = first + 1; i < argc; ++i) {
    std::printf("%s\n", argv[i]);
    std::fflush(stdout);
    try {
      run(parse(argv[i]), std::atoi(argv[first]), only_kernels);
    } catch (const std::exception& error) {
      ++failed;
      std::printf("FAILED: %s\n", error.what());
      std::fflush(stdout);
      std::_Exit(1);  // ranks wait for each other
    }
  }
  return failed == 0 ? 0 : 1;
}
