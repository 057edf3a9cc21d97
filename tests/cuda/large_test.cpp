// K and V of more than 4 GiB each: offsets pass 2^31 elements and 2^32 bytes.
#include "attn/expr.hpp"
#include "cuda/gpu.hpp"
#include "harness/data.hpp"
#include "reference/reference.hpp"

namespace attn::cuda {
namespace {

using harness::CaseData;

TEST(CudaLarge, KeysPastFourGiB) {
  ATTN_NEEDS_GPU();
  if (harness::quick()) GTEST_SKIP() << "skipped: ATTN_TEST_QUICK is set";
  // The last keys alone are visible and not zero: the reference is that of a small problem.
  constexpr std::int64_t kVisible = 100;
  constexpr std::int64_t kKeys = (std::int64_t{1} << 24) + 4096 + kVisible;
  constexpr std::int64_t kRowBytes = 128 * 2;
  static_assert(kKeys * kRowBytes > std::int64_t{1} << 32);
  if (device_info(kGpu.index).memory_bytes < 3 * kKeys * kRowBytes) {
    GTEST_SKIP() << "skipped: the GPU has too little memory";
  }
  CaseData data(harness::parse_case("b1_sq3_sk100_hq4_hk1_d128_bf16"), 1);
  const Outputs expected = data.f64_outputs();
  const Outputs standard = data.f64_outputs();
  reference::forward(data.problem, data.inputs, expected);
  reference::forward(data.problem, data.inputs, standard, reference::Precision::problem);

  Problem problem = data.problem;
  problem.seqlen_k = kKeys;
  problem.mask = expr::symbols().key >= static_cast<std::int32_t>(kKeys - kVisible);
  ATTN_NEEDS_KERNEL(problem);
  data.poison();
  harness::DeviceData small(data, Phase::forward, kGpu);
  Inputs inputs = small.inputs;
  DeviceBuffer memory[2];
  const Tensor* sources[] = {&data.inputs.k, &data.inputs.v};
  for (int i = 0; i < 2; ++i) {
    constexpr auto kBytes = static_cast<std::size_t>(kKeys * kRowBytes);
    constexpr auto kVisibleBytes = static_cast<std::size_t>(kVisible * kRowBytes);
    memory[i] = DeviceBuffer(kGpu.index, kBytes);
    memory[i].fill(0);
    synchronize(kGpu.index);
    memory[i].upload(sources[i]->data, kVisibleBytes, kBytes - kVisibleBytes);
    Tensor& tensor = i == 0 ? inputs.k : inputs.v;
    tensor = attn::tensor(memory[i].data(), DType::bf16, {1, kKeys, 1, 128}, kGpu);
  }
  const Plan plan = make_plan(problem, Phase::forward, {.device = kGpu});
  const harness::DeviceWorkspace workspace(plan);
  Context context;
  context.workspace = workspace.tensor();
  forward(plan, inputs, small.outputs, context);
  synchronize(kGpu.index);
  small.download();
  EXPECT_EQ(data.damage(), "");
  for (const auto& [name, got, exact, rounded] :
       {std::tuple{"o", data.outputs.o, expected.o, standard.o},
        std::tuple{"lse", data.outputs.lse, expected.lse, standard.lse}}) {
    const harness::Comparison comparison = harness::compare(name, got, exact, rounded);
    EXPECT_TRUE(comparison.passed()) << to_string(comparison);
  }
}

}  // namespace
}  // namespace attn::cuda
