// Arguments that are not of the device: refused by name, before anything is written.
#include "cuda/gpu.hpp"
#include "verify/data.hpp"

namespace attn::cuda {
namespace {

using verify::CaseData;

constexpr const char* kCase = "b2_n64_hq4_hk2_d64_causal_bf16";

// Runs with arguments that `spoil` has changed: the refusal, after which O is still poisoned.
template <class Spoil>
std::string refused(CaseData& data, Spoil&& spoil) {
  data.poison();
  const std::vector<std::uint64_t> poisoned = output_bits(data);
  GpuCase on(data);
  Inputs inputs = on.data.inputs;
  Outputs outputs = on.data.outputs;
  Context context;
  context.workspace = on.workspace.tensor();
  spoil(inputs, outputs, context);
  const std::string message =
      refusal(ErrorCode::invalid_argument, [&] { forward(on.plan, inputs, outputs, context); });
  on.data.download();
  EXPECT_EQ(output_bits(data), poisoned) << message;
  return message;
}

TEST(CudaRefusals, MemoryOfAnotherPlace) {
  ATTN_NEEDS_GPU();
  CaseData data(verify::parse_case(kCase), 1);
  ATTN_NEEDS_KERNEL(data.problem);
  // A view that says what it is not: host memory on the device.
  expect_contains(refused(data, [&](Inputs& inputs, Outputs&,
                                    Context&) { inputs.k.data = data.inputs.k.data; }),
                  "k ");
  expect_contains(refused(data, [&](Inputs&, Outputs& outputs,
                                    Context&) { outputs.lse.data = data.outputs.lse.data; }),
                  "lse");
  // Honest views of both kinds of memory.
  expect_contains(
      refused(data, [&](Inputs& inputs, Outputs&, Context&) { inputs.v = data.inputs.v; }), "v ");
  expect_contains(
      refused(data, [&](Inputs&, Outputs& outputs, Context&) { outputs.o = data.outputs.o; }),
      "o ");
  // Another GPU, here or not.
  expect_contains(
      refused(data, [&](Inputs& inputs, Outputs&, Context&) { inputs.v.device.index = 1; }),
      "cuda:1");
}

TEST(CudaRefusals, Workspace) {
  ATTN_NEEDS_GPU();
  // Few queries and many keys: split, and merged in the workspace.
  CaseData data(verify::parse_case("b1_sq1_sk8192_hq4_hk2_d64_bf16"), 1);
  ATTN_NEEDS_KERNEL(data.problem);
  if (make_plan(data.problem, Phase::forward, {.device = kGpu}).workspace_bytes == 0) {
    GTEST_SKIP() << "skipped: the plan needs no workspace";
  }
  const auto expect_refused = [&](auto&& spoil) {
    expect_contains(refused(data, [&](Inputs&, Outputs&, Context& c) { spoil(c.workspace); }),
                    "workspace");
  };
  expect_refused([](Tensor& workspace) { workspace = {}; });
  expect_refused([](Tensor& workspace) { --workspace.shape[0]; });
  expect_refused(
      [](Tensor& workspace) { workspace.data = static_cast<std::byte*>(workspace.data) + 4; });
  expect_refused([](Tensor& workspace) { workspace.device = {}; });
}

TEST(CudaRefusals, DevicesThatAreNotThere) {
  ATTN_NEEDS_GPU();
  const CaseData data(verify::parse_case(kCase), 1);
  const std::int32_t none = device_count();
  expect_contains(
      refusal(ErrorCode::invalid_argument,
              [&] {
                make_plan(data.problem, Phase::forward, {.device = {DeviceType::cuda, none}});
              }),
      std::to_string(none));
}

}  // namespace
}  // namespace attn::cuda
