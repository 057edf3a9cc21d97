// A buffer of a score may lie elsewhere in each call of a plan, also where its elements cannot be
// read several at a time; code that would do so there ends the process, here as on a GPU.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "cuda/gpu.hpp"
#include "verify/data.hpp"

namespace attn::cuda {
namespace {

using verify::CaseData;

// bf16 as numbers.
std::vector<double> numbers(const std::vector<std::uint16_t>& stored) {
  std::vector<double> all;
  for (const std::uint16_t bits : stored) {
    all.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16));
  }
  return all;
}

class BufferAddress : public ::testing::TestWithParam<Phase> {};

TEST_P(BufferAddress, MayDifferBetweenCalls) {
  ATTN_NEEDS_GPU();
  const Phase phase = GetParam();
  CaseData data(verify::parse_case("b1_n80_h2_d64_bias1x2x80x80bf16_bf16"), 5);
  ATTN_NEEDS_KERNEL(data.problem);
  if (phase == Phase::backward) verify::forward_on_device(data, {.device = kGpu}, {}, true);
  const Plan plan = make_plan(data.problem, phase, {.device = kGpu});
  const verify::DeviceWorkspace workspace(plan);
  Stream stream(kGpu.index);
  Context context;
  context.stream = stream.handle();
  context.workspace = workspace.tensor();
  verify::DeviceData on(data, phase, kGpu);
  ASSERT_EQ(on.inputs.buffers.size(), 1U);
  Tensor& bias = on.inputs.buffers[0].second;
  const Tensor& host = data.inputs.buffers.empty() ? expr::buffers(data.problem.score)[0]->tensor()
                                                   : data.inputs.buffers[0].second;
  const std::size_t bytes = static_cast<std::size_t>(host.size()) * size_of(host.dtype);
  constexpr std::size_t kMost = 8;
  DeviceBuffer memory(kGpu.index, bytes + kMost);
  // O, or dQ: nothing but NaN before each call.
  Tensor& result = phase == Phase::forward ? on.outputs.o : on.gradients.dq;
  std::vector<std::uint16_t> stored(static_cast<std::size_t>(result.size()));
  DeviceBuffer written(kGpu.index, 2 * stored.size());
  result.data = written.data();
  std::vector<double> expected;
  for (const std::size_t off : {std::size_t{0}, std::size_t{2}, std::size_t{4}, std::size_t{0}}) {
    memory.upload(host.data, bytes, off);
    bias.data = static_cast<std::byte*>(memory.data()) + off;
    std::ranges::fill(stored, std::uint16_t{0xffff});
    written.upload(stored.data(), written.bytes());
    if (phase == Phase::forward) {
      forward(plan, on.inputs, on.outputs, context);
    } else {
      backward(plan, on.inputs, on.outputs, on.d_outputs, on.gradients, context);
    }
    stream.synchronize();
    written.download(stored.data(), written.bytes());
    const std::vector<double> now = numbers(stored);
    if (expected.empty()) expected = now;
    ASSERT_EQ(now.size(), expected.size());
    for (std::size_t i = 0; i < now.size(); ++i) {
      // Two roundings of bf16.
      ASSERT_NEAR(now[i], expected[i], std::ldexp(std::abs(expected[i]), -7) + 1e-4) << off;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Cuda, BufferAddress, ::testing::Values(Phase::forward, Phase::backward),
                         [](const ::testing::TestParamInfo<Phase>& info) {
                           return info.param == Phase::forward ? "Forward" : "Backward";
                         });

}  // namespace
}  // namespace attn::cuda
