// K, V and their gradients of more than 4 GiB each: offsets pass 2^31 elements and 2^32 bytes.
#include <algorithm>

#include "attn/expr.hpp"
#include "cuda/gpu.hpp"
#include "reference/reference.hpp"
#include "verify/data.hpp"

namespace attn::cuda {
namespace {

using verify::CaseData;

// The last keys alone are visible and not zero: the reference is that of a small problem.
constexpr std::int64_t kVisible = 100;
constexpr std::int64_t kKeys = (std::int64_t{1} << 24) + 4096 + kVisible;
constexpr std::int64_t kRowBytes = 128 * 2;
constexpr auto kBytes = static_cast<std::size_t>(kKeys * kRowBytes);
constexpr auto kVisibleBytes = static_cast<std::size_t>(kVisible * kRowBytes);
static_assert(kBytes > std::size_t{1} << 32);

bool has_memory_for(std::int64_t tensors) {
  return device_info(kGpu.index).memory_bytes >= (tensors + 1) * kKeys * kRowBytes;
}

CaseData small_case() { return {verify::parse_case("b1_sq3_sk100_hq4_hk1_d128_bf16"), 1}; }

Problem large_problem(const CaseData& data) {
  Problem problem = data.problem;
  problem.seqlen_k = kKeys;
  problem.mask = expr::symbols().key >= static_cast<std::int32_t>(kKeys - kVisible);
  return problem;
}

// A tensor of all keys on the GPU.
struct LargeTensor {
  explicit LargeTensor(unsigned char byte) : memory(kGpu.index, kBytes) { memory.fill(byte); }
  // Zeros, and last the rows of a tensor of the host.
  explicit LargeTensor(const Tensor& last) : LargeTensor(0) {
    synchronize(kGpu.index);
    memory.upload(last.data, kVisibleBytes, kBytes - kVisibleBytes);
  }
  Tensor tensor() const {
    return attn::tensor(memory.data(), DType::bf16, {1, kKeys, 1, 128}, kGpu);
  }
  void download_last(const Tensor& to) const {
    memory.download(to.data, kVisibleBytes, kBytes - kVisibleBytes);
  }
  // Whether all rows before the last ones are 0.
  bool others_are_zero() const {
    constexpr std::size_t kChunk = std::size_t{1} << 28;
    std::vector<std::byte> chunk(kChunk);
    for (std::size_t at = 0; at < kBytes - kVisibleBytes; at += kChunk) {
      const std::size_t bytes = std::min(kChunk, kBytes - kVisibleBytes - at);
      memory.download(chunk.data(), bytes, at);
      if (std::any_of(chunk.begin(), chunk.begin() + static_cast<std::ptrdiff_t>(bytes),
                      [](std::byte b) { return b != std::byte{0}; })) {
        return false;
      }
    }
    return true;
  }

  DeviceBuffer memory;
};

void expect_close(const char* name, const Tensor& got, const Tensor& exact, const Tensor& rounded) {
  const verify::Comparison comparison = verify::compare(name, got, exact, rounded);
  EXPECT_TRUE(comparison.passed()) << to_string(comparison);
}

TEST(CudaLarge, KeysPastFourGiB) {
  ATTN_NEEDS_GPU();
  if (verify::quick()) GTEST_SKIP() << "skipped: ATTN_TEST_QUICK is set";
  if (!has_memory_for(2)) GTEST_SKIP() << "skipped: the GPU has too little memory";
  CaseData data = small_case();
  const Outputs exact = data.f64_outputs(), rounded = data.f64_outputs();
  reference::forward(data.problem, data.inputs, exact);
  reference::forward(data.problem, data.inputs, rounded, reference::Precision::problem);

  const Problem problem = large_problem(data);
  ATTN_NEEDS_KERNEL(problem);
  data.poison();
  verify::DeviceData small(data, Phase::forward, kGpu);
  const LargeTensor k(data.inputs.k), v(data.inputs.v);
  Inputs inputs = small.inputs;
  inputs.k = k.tensor();
  inputs.v = v.tensor();
  const Plan plan = make_plan(problem, Phase::forward, {.device = kGpu});
  const verify::DeviceWorkspace workspace(plan);
  Context context;
  context.workspace = workspace.tensor();
  forward(plan, inputs, small.outputs, context);
  synchronize(kGpu.index);
  small.download();
  EXPECT_EQ(data.damage(), "");
  expect_close("o", data.outputs.o, exact.o, rounded.o);
  expect_close("lse", data.outputs.lse, exact.lse, rounded.lse);
}

// K, V, dK and dV.
TEST(CudaLarge, GradientsPastFourGiB) {
  ATTN_NEEDS_GPU();
  if (verify::quick()) GTEST_SKIP() << "skipped: ATTN_TEST_QUICK is set";
  if (!has_memory_for(4)) GTEST_SKIP() << "skipped: the GPU has too little memory";
  CaseData data = small_case();
  const Gradients exact = data.f64_gradients(), rounded = data.f64_gradients();
  forward(data.problem, data.inputs, data.outputs);  // O and LSE, which gradients are taken from
  const auto reference_gradients = [&](const Gradients& to, reference::Precision precision) {
    reference::backward(data.problem, data.inputs, data.outputs, data.d_outputs(), to, precision);
  };
  reference_gradients(exact, reference::Precision::f64);
  reference_gradients(rounded, reference::Precision::problem);

  const Problem problem = large_problem(data);
  const LargeTensor k(data.inputs.k), v(data.inputs.v);
  for (const std::string kernel :
       {"backward_sm90", "backward_sm80", "backward_sm80_deterministic", "backward_simt"}) {
    SCOPED_TRACE(kernel);
    data.poison();
    forward(data.problem, data.inputs, data.outputs);
    verify::DeviceData small(data, Phase::backward, kGpu);
    const LargeTensor dk(0xff), dv(0xff);
    Inputs inputs = small.inputs;
    inputs.k = k.tensor();
    inputs.v = v.tensor();
    Gradients gradients = small.gradients;
    gradients.dk = dk.tensor();
    gradients.dv = dv.tensor();
    Plan plan;
    try {
      plan = make_plan(problem, Phase::backward, {.device = kGpu, .kernel = kernel});
    } catch (const Error& error) {
      ASSERT_EQ(error.code(), ErrorCode::unsupported) << error.what();
      EXPECT_EQ(kernel, "backward_sm90") << error.what();  // on other GPUs than Hopper
      continue;
    }
    const verify::DeviceWorkspace workspace(plan);
    Context context;
    context.workspace = workspace.tensor();
    backward(plan, inputs, small.outputs, small.d_outputs, gradients, context);
    synchronize(kGpu.index);
    small.download();
    dk.download_last(data.gradients.dk);
    dv.download_last(data.gradients.dv);
    EXPECT_EQ(data.damage(), "");
    EXPECT_FALSE(workspace.overrun());
    EXPECT_TRUE(dk.others_are_zero());
    EXPECT_TRUE(dv.others_are_zero());
    expect_close("dq", data.gradients.dq, exact.dq, rounded.dq);
    expect_close("dk", data.gradients.dk, exact.dk, rounded.dk);
    expect_close("dv", data.gradients.dv, exact.dv, rounded.dv);
  }
}

}  // namespace
}  // namespace attn::cuda
