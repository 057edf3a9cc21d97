// dK and dV in f32, as ranks add them, are the sums that a kernel rounds otherwise: bit for bit,
// whatever the kernel and the layout.
#include <cstddef>
#include <string>
#include <vector>

#include "cuda/cuda.hpp"
#include "cuda/driver/memory.hpp"
#include "cuda/gpu.hpp"
#include "verify/data.hpp"

namespace attn::cuda {
namespace {

using verify::CaseData;

// A row-major f32 tensor of the shape of one of 16 bits, on the GPU, which holds NaN.
struct Floats {
  explicit Floats(const Tensor& like)
      : host(static_cast<std::size_t>(like.size()) * sizeof(float), std::byte{0xff}),
        memory(kGpu.index, host.size()),
        on_gpu(like) {
    memory.upload(host.data(), host.size());
    on_gpu.data = memory.data();
    on_gpu.device = kGpu;
    on_gpu.dtype = DType::f32;
    std::int64_t stride = 1;
    for (std::int32_t d = like.rank; d-- > 0;) {
      const auto axis = static_cast<std::size_t>(d);
      on_gpu.strides[axis] = stride;
      stride *= like.shape[axis];
    }
  }
  // Elements of `rounded`, which lies on the host, that are not what these are rounded to.
  std::int64_t differences(const Tensor& rounded) {
    memory.download(host.data(), host.size());
    Tensor floats = on_gpu;
    floats.data = host.data();
    std::vector<std::byte> element(size_of(rounded.dtype));
    const Tensor one = tensor(element.data(), rounded.dtype, {1});
    std::int64_t count = 0;
    for (std::int64_t i = 0; i < floats.size(); ++i) {
      std::int64_t left = i, offset = 0;
      for (std::int32_t d = floats.rank; d-- > 0;) {
        const auto axis = static_cast<std::size_t>(d);
        offset += left % floats.shape[axis] * rounded.strides[axis];
        left /= floats.shape[axis];
      }
      verify::store_element(one, 0, verify::load_element(floats, i));
      const double x = verify::load_element(one, 0), y = verify::load_element(rounded, offset);
      if (!(x == y)) ++count;
    }
    return count;
  }

  std::vector<std::byte> host;
  DeviceBuffer memory;
  Tensor on_gpu;
};

struct FloatSumsCase {
  const char *kernel, *descriptor;
};

class CudaFloatSums : public ::testing::TestWithParam<FloatSumsCase> {};

TEST_P(CudaFloatSums, AreRoundedToThoseOfTheProblem) {
  ATTN_NEEDS_GPU();
  CaseData data(verify::parse_case(GetParam().descriptor), 3);
  const PlanOptions options{.device = kGpu, .kernel = GetParam().kernel};
  try {
    make_plan(data.problem, Phase::backward, options);
  } catch (const Error& error) {  // of another architecture
    ASSERT_EQ(error.code(), ErrorCode::unsupported) << error.what();
    GTEST_SKIP() << "skipped: not on this GPU";
  }
  data.poison();
  forward(data.problem, data.inputs, data.outputs);
  verify::backward_on_device(data, options, {});
  Floats dk(data.gradients.dk), dv(data.gradients.dv);
  const verify::DeviceData on(data, Phase::backward, kGpu);
  const Plan plan = make_plan(data.problem, Phase::backward, options);
  const verify::DeviceWorkspace workspace(plan);
  const Stream stream(kGpu.index);
  Context context;
  context.stream = stream.handle();
  context.workspace = workspace.tensor();
  Gradients gradients = on.gradients;
  gradients.dk = dk.on_gpu;
  gradients.dv = dv.on_gpu;
  cuda::backward(plan, on.inputs, on.outputs, on.d_outputs, gradients, context);
  stream.synchronize();
  EXPECT_EQ(dk.differences(data.gradients.dk), 0);
  EXPECT_EQ(dv.differences(data.gradients.dv), 0);
}

INSTANTIATE_TEST_SUITE_P(
    Cases, CudaFloatSums,
    ::testing::Values(
        // Transposed sums; sums of one product, and of two; two blocks of threads a tile.
        FloatSumsCase{"backward_sm90", "b3_n150_h2_d64_f16/padded"},
        FloatSumsCase{"backward_sm90", "b2_n150_hq4_hk1_d96_causal_bf16"},
        FloatSumsCase{"backward_sm90", "b3_n150_hq4_hk2_d256_causal_packed_bf16"},
        FloatSumsCase{"backward_sm80", "b2_n100_h2_d40_dv72_window30x5_bf16"},
        FloatSumsCase{"backward_sm80", "b3_n100_h2_d64_f16/padded"},
        FloatSumsCase{"backward_sm80_deterministic", "b3_n100_h2_d64_f16/padded"},
        FloatSumsCase{"backward_simt", "b3_n40_hq4_hk2_d16_packed_alibi_sink_f16/strided_dlse"},
        // Two entries: the order in which these are added changes no bit.
        FloatSumsCase{"backward_sm80_key_list",
                      "b3_sq1_sk40_hq4_hk2_d40_dv72_packed_list2_f16/cuq0,1,2,3_cuk0,40,49,80"},
        FloatSumsCase{"backward_flash_attention", "b1_n90_h2_d20_causal_bias_f16"}));

}  // namespace
}  // namespace attn::cuda
