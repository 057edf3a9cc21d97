// The same inputs give the same bits: again and again, beside other work, and from a graph.
#include <memory>

#include "cuda/gpu.hpp"
#include "harness/data.hpp"

namespace attn::cuda {
namespace {

using harness::CaseData;

class CudaRepeat : public ::testing::TestWithParam<const char*> {};

TEST_P(CudaRepeat, GivesTheSameBits) {
  ATTN_NEEDS_GPU();
  constexpr int kRepeats = 250;
  constexpr int kPoisonEvery = 25;
  CaseData data(harness::parse_case(GetParam()), 3);
  ATTN_NEEDS_KERNEL(data.problem);
  data.poison();
  GpuCase first(data);
  GpuCase second(data);  // runs beside the first, so that blocks are scheduled otherwise each time
  first.forward();
  first.stream.synchronize();
  first.data.download();
  ASSERT_EQ(data.damage(), "");
  const std::vector<std::uint64_t> expected = output_bits(data);
  for (int i = 0; i < kRepeats; ++i) {
    if (i % kPoisonEvery == 0) {
      data.poison();
      first.data.upload_outputs();
      second.data.upload_outputs();
    }
    first.forward();
    second.forward();
    first.stream.synchronize();
    second.stream.synchronize();
    (i % 2 == 0 ? first : second).data.download();
    ASSERT_EQ(output_bits(data), expected) << "repeat " << i;
  }
  EXPECT_FALSE(first.workspace.overrun());
  EXPECT_FALSE(second.workspace.overrun());
}

INSTANTIATE_TEST_SUITE_P(Cuda, CudaRepeat,
                         ::testing::Values("b60_n256_hq8_hk2_d64_causal_bf16",
                                           "b60_sq130_sk300_h2_d128_dropout0.1_seed5_f16/padded",
                                           "b30_n500_h4_d64_softcap20_bf16/q4_k3",
                                           "b2_sq1_sk4000_hq8_hk2_d128_bf16",
                                           "b3_n200_h4_d64_causal_packed_bf16",
                                           "b3_n200_h4_d64_documents_packed_bf16"),
                         [](const ::testing::TestParamInfo<const char*>& info) {
                           return harness::test_name(info.param);
                         });

TEST(CudaGraph, ReplaysWithNewContents) {
  ATTN_NEEDS_GPU();
  for (const char* descriptor :
       {"b2_n300_hq4_hk2_d64_causal_bf16", "b1_sq1_sk4000_hq8_hk2_d64_f16",
        "b1_n300_h2_d64_mask(key<9||blocks[query/32,key/32]!=0)_buffer(blocks:u8:10x10)_bf16"}) {
    SCOPED_TRACE(descriptor);
    CaseData data(harness::parse_case(descriptor), 3);
    ATTN_NEEDS_KERNEL(data.problem);
    data.poison();
    GpuCase on(data);
    on.forward();  // compiles: capture must not
    on.stream.synchronize();
    on.data.upload_outputs();
    const Graph graph(on.stream, [&] { on.forward(); });
    on.stream.synchronize();
    on.data.download();
    data.poison();
    const std::vector<std::uint64_t> poisoned = output_bits(data);
    on.data.download();
    EXPECT_EQ(output_bits(data), poisoned) << "capturing ran the kernel";

    const auto replay = [&] {
      graph.launch(on.stream.handle());
      on.stream.synchronize();
      on.data.download();
      return output_bits(data);
    };
    const std::vector<std::uint64_t> before = replay();
    EXPECT_EQ(replay(), before);
    const Tensor& v = data.inputs.v;
    for (std::int64_t i = 0; i < v.size(); ++i) {
      harness::store_element(v, i, -2 * harness::load_element(v, i));
    }
    for (const auto& [name, buffer] : data.inputs.buffers) {
      for (std::int64_t i = 0; i < buffer.size(); ++i) {
        harness::store_element(buffer, i, 1 - harness::load_element(buffer, i));
      }
    }
    on.data.upload_inputs();
    const std::vector<std::uint64_t> after = replay();
    EXPECT_NE(after, before);
    data.poison();
    on.data.upload_outputs();
    on.forward();
    on.stream.synchronize();
    on.data.download();
    EXPECT_EQ(output_bits(data), after);
  }
}

// A captured kernel deals its tiles from a counter. Both executables write the same O, so each must
// have written all of it when it is done. Captured before the kernel was ever loaded.
TEST(CudaGraph, TwoExecutablesOfOneGraphRunAtOnce) {
  ATTN_NEEDS_GPU();
  CaseData data(harness::parse_case("b9_n700_hq8_hk2_d64_causal_bf16"), 3);
  ATTN_NEEDS_KERNEL(data.problem);
  data.poison();
  GpuCase on(data);
  const auto stream = static_cast<CUstream>(on.stream.handle());
  const ContextGuard guard(kGpu.index);
  CUgraph graph = nullptr;
  check(api().cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL), "begin");
  on.forward();
  check(api().cuStreamEndCapture(stream, &graph), "end");
  CUgraphExec first = nullptr, second = nullptr;
  check(api().cuGraphInstantiateWithFlags(&first, graph, 0), "first");
  check(api().cuGraphInstantiateWithFlags(&second, graph, 0), "second");
  on.forward();
  on.stream.synchronize();
  on.data.download();
  ASSERT_EQ(data.damage(), "");
  const std::vector<std::uint64_t> expected = output_bits(data);
  const Stream other(kGpu.index);
  for (int i = 0; i < 50; ++i) {
    data.poison();
    on.data.upload_outputs();
    check(api().cuGraphLaunch(second, static_cast<CUstream>(other.handle())), "second");
    check(api().cuGraphLaunch(first, stream), "first");
    on.stream.synchronize();  // not the other
    on.data.download();
    ASSERT_EQ(output_bits(data), expected) << "launch " << i;
    other.synchronize();
  }
  api().cuGraphExecDestroy(first);
  api().cuGraphExecDestroy(second);
  api().cuGraphDestroy(graph);
}

}  // namespace
}  // namespace attn::cuda
