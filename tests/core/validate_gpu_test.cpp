// Calls whose tensors are on a GPU: what is refused before a driver is asked.
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>

#include "attn/error.hpp"
#include "core/call.hpp"
#include "core/validate/validate.hpp"

namespace attn::testing {
namespace {

// Everything of the call on a GPU; nothing is read through these addresses.
Call on_gpu(Call c, Device device = {DeviceType::cuda, 1}) {
  for (Tensor* t : {&c.in.q, &c.in.k, &c.in.v, &c.in.cu_seqlens_q, &c.in.cu_seqlens_k,
                    &c.in.seqused_q, &c.in.seqused_k, &c.in.page_table, &c.in.sink, &c.in.rng_state,
                    &c.out.o, &c.out.lse, &c.out.max_logit}) {
    if (t->given()) t->device = device;
  }
  return c;
}

std::string refusal(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(static_cast<int>(error.code()), static_cast<int>(ErrorCode::invalid_argument));
    return error.what();
  }
  return {};
}

TEST(ValidateGpu, ValuesOnADeviceAreNotRead) {
  const Device device{DeviceType::cuda, 1};
  Call c = on_gpu(packed_call());
  c.problem.seqlen_q = 5;
  c.problem.seqlen_k = 7;
  // Would be refused on the CPU, and cannot be seen here.
  c.integer(c.in.cu_seqlens_q, 0) = 99;
  c.integer(c.in.seqused_k, 0) = -1;
  const Problem p = complete(c.problem, c.in);
  EXPECT_EQ(p.batch, 3);
  EXPECT_EQ(core::validate_forward(p, c.in, c.out, device).size(), 8U);
  c = on_gpu(paged_call());
  c.integer(c.in.page_table, 0) = 77;
  EXPECT_NO_THROW(core::validate_forward(complete(c.problem, c.in), c.in, c.out, device));
}

TEST(ValidateGpu, PackedLengthsAreAskedFor) {
  const Call c = on_gpu(packed_call());
  const std::string message = refusal([&] { complete(c.problem, c.in); });
  EXPECT_NE(message.find("seqlen_q is 0"), std::string::npos) << message;
  EXPECT_NE(message.find("on cuda:1"), std::string::npos) << message;
}

TEST(ValidateGpu, OneDevice) {
  const Device device{DeviceType::cuda, 1};
  Call c = on_gpu(paged_call());
  const Problem p = complete(c.problem, c.in);
  c.out.o.device.index = 0;
  const std::string message = refusal([&] { core::validate_forward(p, c.in, c.out, device); });
  EXPECT_NE(message.find("on cuda:0; accepted are tensors on cuda:1"), std::string::npos)
      << message;
}

TEST(ValidateGpu, Workspace) {
  const Device device{DeviceType::cuda, 0};
  const Call c = on_gpu(paged_call(), device);
  const Problem p = complete(c.problem, c.in);
  const auto tensors = core::validate_forward(p, c.in, c.out, device);
  alignas(128) static std::uint8_t memory[512];
  const auto refused = [&](const Tensor& workspace, const std::string& phrase) {
    const std::string message =
        refusal([&] { core::validate_workspace(p, workspace, 384, tensors, device); });
    EXPECT_NE(message.find(phrase), std::string::npos) << message;
  };
  const Tensor workspace = tensor(memory, DType::u8, {384}, device);
  EXPECT_NO_THROW(core::validate_workspace(p, workspace, 384, tensors, device));
  EXPECT_NO_THROW(core::validate_workspace(p, {}, 0, tensors, device));
  refused({}, "workspace of the context is not given; accepted is u8 of at least 384");
  refused(tensor(memory, DType::u8, {383}, device), "has 383 bytes; accepted are at least 384");
  refused(tensor(memory, DType::u8, {384}), "on cpu; accepted are tensors on cuda:0");
  refused(tensor(memory, DType::f32, {384}, device), "workspace is f32[384]");
  refused(tensor(memory + 64, DType::u8, {384}, device), "multiples of 128 bytes");
  Tensor shared = workspace;
  const auto address = reinterpret_cast<std::uintptr_t>(c.in.k.data) / 128 * 128 + 128;
  shared.data = reinterpret_cast<void*>(address);
  refused(shared, "overlaps k");
}

TEST(ValidateGpu, BackendAndDeviceMustAgree) {
  const Problem p = parse_problem("b1_n8_h1_d8_f32");
  const std::string on_device = refusal([&] {
    make_plan(p, Phase::forward, {.backend = Backend::cpu, .device = {DeviceType::cuda, 0}});
  });
  EXPECT_NE(on_device.find("backend is cpu, the device of the tensors is cuda:0"),
            std::string::npos)
      << on_device;
  const std::string on_cpu =
      refusal([&] { make_plan(p, Phase::forward, {.backend = Backend::cuda}); });
  EXPECT_NE(on_cpu.find("backend is cuda, the device of the tensors is cpu"), std::string::npos)
      << on_cpu;
}

TEST(PlanText, TellsTheLaunch) {
  Plan plan;
  plan.problem = parse_problem("b1_n4096_h16_d128_causal_bf16");
  plan.backend = Backend::cuda;
  plan.device = {DeviceType::cuda, 1};
  plan.compute = DType::bf16;
  plan.block_q = 128;
  plan.block_k = 176;
  plan.tasks = 512;
  plan.launch = {.kernel = "forward_sm90",
                 .arch = "sm_90a",
                 .grid = {132, 2, 1},
                 .threads = 384,
                 .cluster = 2,
                 .shared_bytes = 200 * 1024,
                 .stages = 3};
  const std::string text = to_string(plan);
  for (const char* part :
       {"on the cuda backend of cuda:1, bf16 operands", "kernel forward_sm90 for sm_90a",
        "132 x 2 x 1 blocks of 384 threads, clusters of 2, 200 KiB",
        "tiles of 128 rows x 176 keys, 3 in flight; 512 tasks, 1 part of the keys"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
  }
}

}  // namespace
}  // namespace attn::testing
