// Copies of a case's tensors on a device, on the driver that pretends: they come back unchanged,
// and what is written that must not be is noticed.
#include "verify/device_data.hpp"

#include <gtest/gtest.h>

#include "attn/mask.hpp"
#include "verify/compare.hpp"

namespace attn::verify {
namespace {

constexpr Device kDevice{DeviceType::cuda, 1};

// The memory of the pretended device is the host's.
Tensor on_host(Tensor tensor) {
  tensor.device = {};
  return tensor;
}

class DeviceCopies : public ::testing::TestWithParam<const char*> {};

TEST_P(DeviceCopies, HoldTheSameTensors) {
  CaseData data(parse_case(GetParam()), 3);
  DeviceData on(data, Phase::forward, kDevice);
  const Inputs& host = data.inputs;
  for (const auto& [here, there] : {std::pair{host.q, on.inputs.q},
                                    {host.k, on.inputs.k},
                                    {host.v, on.inputs.v},
                                    {host.cu_seqlens_q, on.inputs.cu_seqlens_q},
                                    {host.seqused_k, on.inputs.seqused_k},
                                    {host.page_table, on.inputs.page_table},
                                    {host.sink, on.inputs.sink},
                                    {host.rng_state, on.inputs.rng_state},
                                    {data.outputs.o, on.outputs.o},
                                    {data.outputs.lse, on.outputs.lse}}) {
    EXPECT_EQ(here.given(), there.given());
    if (!here.given()) continue;
    EXPECT_EQ(there.device, kDevice);
    EXPECT_NE(here.data, there.data);
    EXPECT_EQ(here.strides, there.strides);
    EXPECT_TRUE(first_difference(here, on_host(there)).empty());
  }
  for (const auto& [name, tensor] : on.inputs.buffers) {
    EXPECT_EQ(tensor.device, kDevice) << name;
  }
  on.download();
  EXPECT_EQ(data.damage(), "");
}

INSTANTIATE_TEST_SUITE_P(
    Harness, DeviceCopies,
    ::testing::Values("b2_n16_hq4_hk2_d8_f16/strided_padded",
                      "b2_sq5_sk30_h2_d8_packedq_paged4_sink_dropout0.1_rngstate_bf16",
                      "b2_n9_h2_d8_alibi_bias_documents_bf16/bcastk", "b1_n70_h2_d8_bf16/far"));

TEST(DeviceCopies, NoticeDamage) {
  CaseData data(parse_case("b2_n8_h2_d4_bf16/strided"), 3);
  DeviceData on(data, Phase::forward, kDevice);
  store_element(on_host(on.outputs.o), on.outputs.o.offset({0, 0, 0, 3}) + 1, 0);
  on.download();
  EXPECT_EQ(data.damage(), "memory around output o");
  data.poison();
  on.upload_outputs();
  on.download();
  EXPECT_EQ(data.damage(), "");
  store_element(on_host(on.inputs.v), 0, 77);
  on.download();
  EXPECT_EQ(data.damage(), "input v");
}

// Buffers that an expression holds itself are taken along.
TEST(DeviceCopies, BindBuffersOfExpressions) {
  Case c = parse_case("b1_n32_h1_d4_bf16");
  const BlockMask blocks = BlockMask::butterfly(32, 32, 8);
  c.problem.mask = blocks.mask();
  const CaseData data(c, 3);
  const DeviceData on(data, Phase::forward, kDevice);
  ASSERT_EQ(on.inputs.buffers.size(), 1U);
  const auto& [name, tensor] = on.inputs.buffers[0];
  const Tensor& declared = expr::buffers(c.problem.mask)[0]->tensor();
  EXPECT_TRUE(first_difference(declared, on_host(tensor)).empty());
}

TEST(DeviceWorkspace, NoticesOverruns) {
  Plan plan;
  plan.device = kDevice;
  EXPECT_FALSE(DeviceWorkspace(plan).tensor().given());
  plan.workspace_bytes = 1000;
  const DeviceWorkspace workspace(plan);
  auto* bytes = static_cast<unsigned char*>(workspace.tensor().data);
  bytes[0] = bytes[999] = 1;
  EXPECT_FALSE(workspace.overrun());
  bytes[1000] = 1;
  EXPECT_TRUE(workspace.overrun());
  bytes[1000] = 0xff;
  bytes[-1] = 0;
  EXPECT_TRUE(workspace.overrun());
}

}  // namespace
}  // namespace attn::verify
