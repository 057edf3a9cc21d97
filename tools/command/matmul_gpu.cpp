#include "command/matmul_gpu.hpp"

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <random>
#include <thread>
#include <utility>

#include "attn/error.hpp"
#include "cuda/driver/cublas.hpp"
#include "cuda/driver/memory.hpp"
#include "verify/device_matmul.hpp"

namespace attn::command {
namespace {

using Clock = std::chrono::steady_clock;

// One implementation, ready to be called.
struct Contender {
  MatmulRow* row = nullptr;
  std::unique_ptr<verify::DeviceMatmul> device;
  std::function<void()> call;
  std::unique_ptr<cuda::Graph> graph;
  int calls = 1;  // of the graph
};

template <class Work>
double seconds_of(const cuda::Stream& stream, const Work& work) {
  cuda::Event start(stream.device()), end(stream.device());
  start.record(stream.handle());
  work();
  end.record(stream.handle());
  end.synchronize();
  return cuda::seconds_between(start, end);
}

void check(Contender& one, verify::MatmulData& data, const cuda::Stream& stream) {
  one.call();
  stream.synchronize();
  one.device->download();
  one.row->check = check_matmul(data);
  one.row->damage = data.damage();
  data.poison();
}

void time_in_rounds(std::vector<Contender*> running, const cuda::Stream& stream,
                    const TimingRule& rule) {
  std::mt19937 random(1);
  const Clock::time_point begin = Clock::now();
  constexpr std::chrono::milliseconds kRest(20);
  const auto taken = [&] { return static_cast<int>(running.front()->row->timing.seconds.size()); };
  const auto limit = rule.seconds * static_cast<double>(running.size());
  while (!running.empty() && taken() < rule.max_calls &&
         (taken() < rule.min_calls ||
          std::chrono::duration<double>(Clock::now() - begin).count() < limit)) {
    std::shuffle(running.begin(), running.end(), random);
    for (Contender* one : running) {
      std::this_thread::sleep_for(kRest);
      const double s = seconds_of(stream, [&] { one->graph->launch(stream.handle()); });
      one->row->timing.seconds.push_back(s / one->calls);
    }
  }
}

}  // namespace

void measure_matmuls_on_gpu(std::vector<MatmulRow>& rows, verify::MatmulData& data, Device device,
                            const Context& context, const TimingRule& rule,
                            CudaCeilings& ceilings) {
  const cuda::Stream stream(device.index);
  Context in_stream = context;
  in_stream.stream = stream.handle();
  std::unique_ptr<cuda::Cublas> cublas;
  std::vector<Contender> contenders;
  data.poison();
  for (MatmulRow& row : rows) {
    if (!row.refused.empty()) continue;
    Contender one{.row = &row, .device = nullptr, .call = {}, .graph = nullptr};
    one.device = std::make_unique<verify::DeviceMatmul>(data, row.plan);
    const verify::DeviceMatmul* tensors = one.device.get();
    if (row.implementation == kCublas) {
      try {
        cublas = std::make_unique<cuda::Cublas>(device.index);
      } catch (const Error& error) {
        row.refused = error.what();
        continue;
      }
      one.call = [&, tensors] {
        cublas->multiply(data.problem, tensors->inputs, tensors->c, stream.handle());
      };
    } else {
      one.call = [&, tensors, plan = &row.plan] { tensors->call(*plan, in_stream); };
    }
    check(one, data, stream);
    if (!row.correct()) continue;
    row.peak_gflops = ceilings.gflops(data.problem.dtype, device.index, context);
    const double alone = seconds_of(stream, one.call);
    constexpr double kSlow = 0.1, kGraphSeconds = 5e-3;
    if (alone > kSlow) {
      row.timing.seconds = {alone};
      continue;
    }
    one.calls = static_cast<int>(std::clamp(kGraphSeconds / std::max(alone, 1e-6), 1.0, 500.0));
    one.graph = std::make_unique<cuda::Graph>(stream, [&] {
      for (int i = 0; i < one.calls; ++i) one.call();
    });
    seconds_of(stream, [&] { one.graph->launch(stream.handle()); });
    contenders.push_back(std::move(one));
  }
  std::vector<Contender*> running;
  for (Contender& one : contenders) running.push_back(&one);
  if (!running.empty()) time_in_rounds(running, stream, rule);
}

}  // namespace attn::command
