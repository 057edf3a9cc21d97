// The same inputs give the same bits: again and again, beside other work, and from a graph.
#include <array>
#include <cstdint>
#include <memory>
#include <random>

#include "cuda/gpu.hpp"
#include "verify/data.hpp"

namespace attn::cuda {
namespace {

using verify::CaseData;

class CudaRepeat : public ::testing::TestWithParam<const char*> {};

TEST_P(CudaRepeat, GivesTheSameBits) {
  ATTN_NEEDS_GPU();
  constexpr int kRepeats = 250;
  constexpr int kPoisonEvery = 25;
  CaseData data(verify::parse_case(GetParam()), 3);
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
                                           "b6_sq2_sk500_sp900_hq8_hk2_d64_causal_sink_bf16",
                                           "b3_n200_h4_d64_causal_packed_bf16",
                                           "b3_n200_h4_d64_documents_packed_bf16"),
                         [](const ::testing::TestParamInfo<const char*>& info) {
                           return verify::test_name(info.param);
                         });

TEST(CudaGraph, ReplaysWithNewContents) {
  ATTN_NEEDS_GPU();
  for (const char* descriptor :
       {"b2_n300_hq4_hk2_d64_causal_bf16", "b1_sq1_sk4000_hq8_hk2_d64_f16",
        "b4_sq2_sk300_sp600_hq8_hk2_d64_paged16_pagedprefix_causal_bf16",
        "b1_n300_h2_d64_mask(key<9||blocks[query/32,key/32]!=0)_buffer(blocks:u8:10x10)_bf16"}) {
    SCOPED_TRACE(descriptor);
    CaseData data(verify::parse_case(descriptor), 3);
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
      verify::store_element(v, i, -2 * verify::load_element(v, i));
    }
    for (const auto& [name, buffer] : data.inputs.buffers) {
      for (std::int64_t i = 0; i < buffer.size(); ++i) {
        verify::store_element(buffer, i, 1 - verify::load_element(buffer, i));
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

// Which elements of O and of dV are positive: with V and dO the identity, those that dropout keeps
// forward and backward.
std::vector<bool> kept(const CaseData& data) {
  std::vector<bool> positive;
  for (const Tensor& t : {data.outputs.o, data.gradients.dv}) {
    for (std::int64_t i = 0; i < t.size(); ++i) positive.push_back(verify::load_element(t, i) > 0);
  }
  return positive;
}

// Training captured once: each replay drops what the state that it finds says, in both passes.
TEST(CudaGraph, DrawsAnewFromRngState) {
  ATTN_NEEDS_GPU();
  for (const char* descriptor :
       {"b2_n128_hq4_hk2_d64_causal_dropout0.4_seed5_rngstate_bf16/identity",
        "b1_n40_h2_d20_dropout0.4_seed5_rngstate_f32/identity"}) {
    SCOPED_TRACE(descriptor);
    CaseData data(verify::parse_case(descriptor), 3);
    ATTN_NEEDS_KERNEL(data.problem);
    verify::DeviceData on(data, Phase::backward, kGpu);
    const Stream stream(kGpu.index);
    const Plan plans[] = {make_plan(data.problem, Phase::forward, {.device = kGpu}),
                          make_plan(data.problem, Phase::backward, {.device = kGpu})};
    const verify::DeviceWorkspace workspaces[] = {verify::DeviceWorkspace(plans[0]),
                                                  verify::DeviceWorkspace(plans[1])};
    const auto train = [&] {
      Context context;
      context.stream = stream.handle();
      context.workspace = workspaces[0].tensor();
      forward(plans[0], on.inputs, on.outputs, context);
      context.workspace = workspaces[1].tensor();
      backward(plans[1], on.inputs, on.outputs, on.d_outputs, on.gradients, context);
    };
    train();  // compiles: capture must not
    stream.synchronize();
    const Graph graph(stream, train);
    auto* const words = static_cast<std::int64_t*>(data.inputs.rng_state.data);
    std::vector<std::vector<bool>> masks;
    for (const std::int64_t seed : {5, 6, 5}) {
      words[0] = seed;
      words[1] = seed << 33;
      data.poison();
      forward(data.problem, data.inputs, data.outputs, {.backend = Backend::cpu});
      backward(data.problem, data.inputs, data.outputs, data.d_o, data.gradients,
               {.backend = Backend::cpu});
      const std::vector<bool> expected = kept(data);
      data.poison();
      on.upload_inputs();
      on.upload_outputs();
      graph.launch(stream.handle());
      stream.synchronize();
      on.download();
      masks.push_back(kept(data));
      EXPECT_TRUE(masks.back() == expected) << "seed " << seed;
    }
    EXPECT_TRUE(masks[0] != masks[1]);
    EXPECT_TRUE(masks[0] == masks[2]);
  }
}

// One captured step of decoding, whose page table is made for the longest sequences, serves
// sequences that grow, end and begin anew. Thread blocks that find no piece leave the counter of
// the next replay right as well, and what merges the pieces knows how this replay cut them.
TEST(CudaGraph, FollowsLengthsThatChange) {
  ATTN_NEEDS_GPU();
  for (const char* descriptor :
       {"b7_sq1_sk6000_hq8_hk2_d64_paged16_bf16/"
        "usedk6000,6000,6000,6000,6000,6000,6000",
        "b7_sq40_sk6000_hq8_hk2_d64_packedq_paged16_causal_bf16/"
        "cuq0,1,2,3,43,44,45,46_usedk6000,6000,6000,6000,6000,6000,6000"}) {
    SCOPED_TRACE(descriptor);
    CaseData data(verify::parse_case(descriptor), 3);
    ATTN_NEEDS_KERNEL(data.problem);
    GpuCase on(data);
    on.forward();  // compiles: capture must not
    on.stream.synchronize();
    const Graph graph(on.stream, [&] { on.forward(); });
    const auto bits_after = [&](auto run) {
      data.poison();
      on.data.upload_outputs();
      run();
      on.stream.synchronize();
      on.data.download();
      return output_bits(data);
    };
    auto* const used = static_cast<std::int32_t*>(data.inputs.seqused_k.data);
    std::mt19937 random(11);
    for (int step = 0; step < 60; ++step) {
      // Of one step all sequences are shorter than `most`, so that steps of little work follow
      // steps of much.
      const int most = std::array{6000, 300, 2500, 41}[static_cast<std::size_t>(step) % 4];
      for (std::int64_t b = 0; b < data.problem.batch; ++b) {
        used[b] = std::uniform_int_distribution(40, most)(random);
      }
      on.data.upload_inputs();
      const auto replayed = bits_after([&] { graph.launch(on.stream.handle()); });
      const auto fresh = bits_after([&] { on.forward(); });
      ASSERT_EQ(replayed, fresh) << "step " << step;
    }
  }
}

// A captured kernel deals its tiles from a counter. Both executables write the same O, so each must
// have written all of it when it is done. Captured before the kernel was ever loaded.
TEST(CudaGraph, TwoExecutablesOfOneGraphRunAtOnce) {
  ATTN_NEEDS_GPU();
  CaseData data(verify::parse_case("b9_n700_hq8_hk2_d64_causal_bf16"), 3);
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
