// The backward pass on a GPU: equal bits, sequences that know nothing of each other, NaN that
// reaches only those who see it.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "cuda/driver/device.hpp"
#include "cuda/gpu.hpp"
#include "cuda/temporary_folder.hpp"
#include "verify/data.hpp"

namespace attn::cuda {
namespace {

using verify::CaseData;

// O and LSE on the host, then the gradients by the GPU.
void run_backward(CaseData& data, const std::string& kernel = {}, bool deterministic = false) {
  data.poison();
  forward(data.problem, data.inputs, data.outputs);
  verify::backward_on_device(
      data, {.device = kGpu, .kernel = kernel, .deterministic = deterministic}, {});
}

std::vector<std::uint64_t> bits_of_gradients(const CaseData& data) {
  std::vector<std::uint64_t> sums;
  for (const verify::Storage* storage : data.storages(Phase::backward, false)) {
    sums.push_back(storage->checksum());
  }
  return sums;
}
std::vector<std::uint64_t> gradient_bits(CaseData& data) {
  run_backward(data, {}, true);
  EXPECT_EQ(data.damage(), "");
  return bits_of_gradients(data);
}

// On GPUs of other architectures there is no backward_sm90.
bool takes(const Problem& problem, const std::string& kernel) {
  try {
    make_plan(problem, Phase::backward, {.device = kGpu, .kernel = kernel});
    return true;
  } catch (const Error& error) {
    if (error.code() != ErrorCode::unsupported) throw;
    return false;
  }
}

TEST(CudaBackward, DeterministicGivesEqualBits) {
  ATTN_NEEDS_GPU();
  constexpr int kRepeats = 20;
  for (const char* descriptor : {"b20_n256_hq8_hk2_d64_causal_sink_bf16",
                                 "b20_sq130_sk300_h2_d128_dropout0.1_seed5_f16/padded",
                                 "b3_n200_h4_d64_causal_packed_f32"}) {
    SCOPED_TRACE(descriptor);
    CaseData data(verify::parse_case(descriptor), 3);
    const std::vector<std::uint64_t> expected = gradient_bits(data);
    for (int i = 0; i < kRepeats; ++i) ASSERT_EQ(gradient_bits(data), expected) << "repeat " << i;
  }
}

// The tensors of a backward pass on the GPU, which runs there as often as it is asked to.
struct BackwardOnGpu {
  BackwardOnGpu(CaseData& host, const std::string& kernel)
      : plan(make_plan(host.problem, Phase::backward,
                       {.device = kGpu, .kernel = kernel, .deterministic = true})),
        on(host, Phase::backward, kGpu),
        workspace(plan) {}
  void run() const {
    Context context;
    context.stream = stream.handle();
    context.workspace = workspace.tensor();
    backward(plan, on.inputs, on.outputs, on.d_outputs, on.gradients, context);
  }

  Plan plan;
  verify::DeviceData on;
  verify::DeviceWorkspace workspace;
  Stream stream{kGpu.index};
};

// What the first of several passes gave, which the others are held to: gradients, and what a pass
// leaves in its workspace, as sums in float32 and float64 show an order that changed where results,
// rounded, seldom do.
class FirstPass {
 public:
  // Downloads what `gpu` computed into the tensors of `data`. True of the first pass.
  bool equals(const BackwardOnGpu& gpu, const CaseData& data) {
    gpu.on.download();
    const std::vector<std::uint64_t> bits = bits_of_gradients(data);
    const std::vector<std::byte> sums = gpu.workspace.download();
    if (bits_.empty()) {
      bits_ = bits;
      sums_ = sums;
    }
    return bits == bits_ && sums == sums_;
  }

 private:
  std::vector<std::uint64_t> bits_;
  std::vector<std::byte> sums_;
};

// Tiles that see a block of queries take turns: tiles of a head that run at once, heads of a group,
// blocks that tiles between do not see, sequences of other lengths. Two passes run beside each
// other, so that multiprocessors are free at other times; an emulated GPU takes another order.
TEST(CudaBackward, HopperTakesTurns) {
  ATTN_NEEDS_GPU();
  const int repeats = emulated() ? 2 : 250, batch = emulated() ? 1 : 24;
  for (const char* rest :
       {"sq1000_sk500_h1_d16_f16", "n700_hq2_hk1_d24_causal_f16", "sq900_sk200_h1_d136_dv40_f16",
        "sq700_sk260_hq2_hk1_d96_causal_packed_f16", "sq130_sk260_h1_d256_bf16",
        "n900_h1_d40_window150x300_f16",
        "sq900_sk500_h1_d16_mask(blocks[query/64,key/128]!=0)_buffer(blocks:u8:15x4)_f16"}) {
    SCOPED_TRACE(rest);
    CaseData data(verify::parse_case("b" + std::to_string(batch) + "_" + rest), 3);
    if (!takes(data.problem, "backward_sm90")) GTEST_SKIP() << "skipped: not on this GPU";
    data.poison();
    forward(data.problem, data.inputs, data.outputs);
    const BackwardOnGpu first(data, "backward_sm90"), second(data, "backward_sm90");
    FirstPass expected;
    for (int i = 0; i < repeats; ++i) {
      const Environment seed("ATTN_EMULATED_SEED", std::to_string(i));
      first.run();
      if (!emulated()) second.run();
      first.stream.synchronize();
      second.stream.synchronize();
      const BackwardOnGpu& one = emulated() || i % 2 == 0 ? first : second;
      ASSERT_TRUE(expected.equals(one, data)) << "repeat " << i;
    }
    EXPECT_EQ(data.damage(), "");
    EXPECT_FALSE(first.workspace.overrun());
    EXPECT_FALSE(second.workspace.overrun());
  }
}

// Elements that many queries and keys share are added to by many threads, in another order each
// time: buffers alone, beside elements of one query and key, and without tensor cores.
TEST(CudaBackward, GradientsOfSharedElementsHaveEqualBits) {
  ATTN_NEEDS_GPU();
  const int repeats = emulated() ? 3 : 100;
  for (const char* descriptor :
       {"b2_n130_h4_d64_causal_alibi_bf16", "b1_n90_h2_d128_bias1x2x1x90_f16",
        "b1_n150_h2_d64_score(score+t[head,min(abs(query-key),31)])_buffer(t:f32:2x32)_f16",
        "b9_n70_h2_d64_softcap5_alibi_bias1x1x70x70_bf16", "b2_n90_h2_d20_packed_alibi_f32",
        "b1_n40_h1_d20_score(score+t[query,key]+t[key,query])_buffer(t:f32:40x40)_f32"}) {
    SCOPED_TRACE(descriptor);
    CaseData data(verify::parse_case(descriptor), 3);
    ASSERT_FALSE(data.gradients.buffers.empty());
    data.poison();
    forward(data.problem, data.inputs, data.outputs);
    const BackwardOnGpu gpu(data, {});
    EXPECT_TRUE(std::ranges::any_of(gpu.plan.reasons, [](const std::string& reason) {
      return reason.find("are summed exactly, in 56 bytes") != std::string::npos;
    }));
    FirstPass expected;
    for (int i = 0; i < repeats; ++i) {
      const Environment seed("ATTN_EMULATED_SEED", std::to_string(i));
      gpu.run();
      gpu.stream.synchronize();
      ASSERT_TRUE(expected.equals(gpu, data)) << "repeat " << i;
    }
    EXPECT_EQ(data.damage(), "");
    EXPECT_FALSE(gpu.workspace.overrun());
  }
}

// A NaN in dO of one head is a NaN in the gradient of its slope, and no bit of another's.
TEST(CudaBackward, GradientsOfSharedElementsKeepNaN) {
  ATTN_NEEDS_GPU();
  for (const char* descriptor : {"b2_n70_h3_d64_causal_alibi_bf16", "b2_n70_h3_d20_alibi_f32"}) {
    SCOPED_TRACE(descriptor);
    CaseData data(verify::parse_case(descriptor), 3);
    const auto slopes = [&] {
      run_backward(data, {}, true);
      const Tensor& t = data.gradients.buffers.front().second;
      std::vector<double> all;
      for (std::int64_t h = 0; h < 3; ++h) {
        all.push_back(verify::load_element(t, h * t.strides[0]));
      }
      return all;
    };
    const std::vector<double> before = slopes();
    constexpr std::int64_t kRow = 50, kHead = 1;
    const Tensor& d_o = data.d_o;
    verify::store_element(d_o, d_o.strides[0] + kRow * d_o.strides[1] + kHead * d_o.strides[2],
                          std::nan(""));
    const std::vector<double> after = slopes();
    EXPECT_TRUE(std::isnan(after[1])) << after[1];
    EXPECT_EQ(after[0], before[0]);
    EXPECT_EQ(after[2], before[2]);
  }
}

// A bias's elements are of one query and key each: all bits are equal, with batch entries in one
// part and in several.
TEST(CudaBackward, GradientsOfElementsHaveEqualBits) {
  ATTN_NEEDS_GPU();
  const int repeats = emulated() ? 2 : 50;
  for (const char* descriptor :
       {"b9_n150_hq4_hk2_d64_causal_bias1x4x150x150_bf16", "b3_n90_h2_d128_bias_f16",
        "b2_n300_h3_d128_bias1x3x300x300bf16_bf16", "b3_n70_h2_d20_packed_bias1x1x70x70_f32"}) {
    SCOPED_TRACE(descriptor);
    CaseData data(verify::parse_case(descriptor), 3);
    ASSERT_FALSE(data.gradients.buffers.empty());
    const std::vector<std::uint64_t> expected = gradient_bits(data);
    for (int i = 0; i < repeats; ++i) {
      const Environment seed("ATTN_EMULATED_SEED", std::to_string(i));
      ASSERT_EQ(gradient_bits(data), expected) << "repeat " << i;
    }
  }
}

// Of all batch entries of a dense tensor of the host, [batch, rows, heads, columns].
void fill_row(const Tensor& t, std::int64_t row, double x) {
  for (std::int64_t b = 0; b < t.shape[0]; ++b) {
    for (std::int64_t h = 0; h < t.shape[2]; ++h) {
      for (std::int64_t c = 0; c < t.shape[3]; ++c) {
        verify::store_element(t, b * t.strides[0] + row * t.strides[1] + h * t.strides[2] + c, x);
      }
    }
  }
}

// A row of NaN is NaN in the gradient of what it sees, and 0 in that of what its score hides.
TEST(CudaBackward, NaNDoesNotReachElementsOfHiddenScores) {
  ATTN_NEEDS_GPU();
  constexpr std::int64_t kLength = 128, kRow = 70;  // a tile of which all is seen
  CaseData data(
      verify::parse_case("b1_n128_h1_d64_score(select(a[query,key]<0.5,score+a[query,key],-inf))"
                         "_buffer(a:bf16:128x128)_bf16"),
      3);
  fill_row(data.inputs.q, kRow, std::nan(""));
  run_backward(data, "");
  const Tensor &bias = data.inputs.buffers[0].second, &d_bias = data.gradients.buffers[0].second;
  for (std::int64_t at = kRow * kLength; at < (kRow + 1) * kLength; ++at) {
    const double x = verify::load_element(d_bias, at);
    EXPECT_TRUE(verify::load_element(bias, at) < 0.5 ? std::isnan(x) : x == 0) << at << ": " << x;
  }
}

// Sums of dQ may vary, those of dK and dV may not.
TEST(CudaBackward, OnePassGivesEqualBitsOfDkAndDv) {
  ATTN_NEEDS_GPU();
  constexpr int kRepeats = 20;
  for (const std::string kernel : {"backward_sm90", "backward_sm80"}) {
    CaseData data(verify::parse_case("b4_n300_hq8_hk2_d128_causal_dropout0.1_seed5_bf16"), 3);
    if (!takes(data.problem, kernel)) continue;
    std::vector<std::byte> expected;
    for (int i = 0; i < kRepeats; ++i) {
      run_backward(data, kernel);
      std::vector<std::byte> all;
      for (const Tensor& t : {data.gradients.dk, data.gradients.dv}) {
        const auto* from = static_cast<const std::byte*>(t.data);
        all.insert(all.end(), from, from + t.size() * static_cast<std::int64_t>(size_of(t.dtype)));
      }
      if (i == 0) expected = all;
      ASSERT_EQ(all, expected) << kernel << ", repeat " << i;
    }
  }
}

std::vector<std::byte> bytes_of(const Tensor& t) {
  const auto* from = static_cast<const std::byte*>(t.data);
  return {from, from + t.size() * static_cast<std::int64_t>(size_of(t.dtype))};
}

// Only the kernel of D reads O, so where it lies is no reason for another kernel.
TEST(CudaBackward, OMayLieAnywhere) {
  ATTN_NEEDS_GPU();
  for (const std::string kernel :
       {"backward_sm90", "backward_sm80", "backward_sm80_deterministic"}) {
    CaseData data(verify::parse_case("b1_n70_h2_d64_dv40_causal_bf16"), 3);
    if (!takes(data.problem, kernel)) continue;
    run_backward(data, kernel);
    const std::vector<std::byte> dk = bytes_of(data.gradients.dk), dv = bytes_of(data.gradients.dv);
    fill_row(data.gradients.dk, 0, 0);  // computed anew
    verify::DeviceData on(data, Phase::backward, kGpu);
    const std::vector<std::byte> o = bytes_of(data.outputs.o);
    constexpr std::size_t kOff = 2;  // bytes
    DeviceBuffer moved(kGpu.index, o.size() + kOff);
    moved.upload(o.data(), o.size(), kOff);
    on.outputs.o.data = static_cast<std::byte*>(moved.data()) + kOff;
    const Plan plan = make_plan(data.problem, Phase::backward, {.device = kGpu, .kernel = kernel});
    const verify::DeviceWorkspace workspace(plan);
    Stream stream(kGpu.index);
    Context context;
    context.stream = stream.handle();
    context.workspace = workspace.tensor();
    backward(plan, on.inputs, on.outputs, on.d_outputs, on.gradients, context);
    stream.synchronize();
    on.download();
    EXPECT_EQ(bytes_of(data.gradients.dk), dk);
    EXPECT_EQ(bytes_of(data.gradients.dv), dv);
  }
}

// The bytes of the rows of sequence 0 of a packed tensor, [rows, heads, columns] and dense.
std::vector<std::byte> first_rows(const Tensor& t, std::int64_t rows) {
  std::vector<std::byte> bytes;
  const auto row = static_cast<std::size_t>(t.shape[2]) * size_of(t.dtype);
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t h = 0; h < t.shape[1]; ++h) {
      const auto* from =
          static_cast<const std::byte*>(t.data) +
          (i * t.strides[0] + h * t.strides[1]) * static_cast<std::int64_t>(size_of(t.dtype));
      bytes.insert(bytes.end(), from, from + row);
    }
  }
  return bytes;
}

TEST(CudaBackward, PackedSequencesDoNotInfluenceEachOther) {
  ATTN_NEEDS_GPU();
  CaseData data(verify::parse_case("b3_n90_hq4_hk2_d64_causal_packed_bf16"), 5);
  const auto* starts = static_cast<const std::int32_t*>(data.inputs.cu_seqlens_q.data);
  const auto* starts_k = static_cast<const std::int32_t*>(data.inputs.cu_seqlens_k.data);
  ASSERT_GT(starts[1], 0);
  ASSERT_GT(starts[2], starts[1]);
  const auto bytes_of_first = [&] {
    run_backward(data, {}, true);
    std::vector<std::byte> all = first_rows(data.gradients.dq, starts[1]);
    for (const Tensor& t : {data.gradients.dk, data.gradients.dv}) {
      const std::vector<std::byte> more = first_rows(t, starts_k[1]);
      all.insert(all.end(), more.begin(), more.end());
    }
    return all;
  };
  const std::vector<std::byte> before = bytes_of_first();
  // The Q of sequence 1 becomes infinite.
  const Tensor& q = data.inputs.q;
  constexpr std::uint16_t kInfinity = 0x7f80;
  for (std::int64_t i = starts[1]; i < starts[2]; ++i) {
    for (std::int64_t h = 0; h < q.shape[1]; ++h) {
      std::memcpy(static_cast<std::uint16_t*>(q.data) + i * q.strides[0] + h * q.strides[1],
                  &kInfinity, sizeof(kInfinity));
    }
  }
  EXPECT_EQ(bytes_of_first(), before);
}

// Elements [from, to) of axis 1 of a dense tensor of the host, [batch, rows, heads, columns].
std::vector<double> values(const Tensor& t, std::int64_t from, std::int64_t to) {
  std::vector<double> all;
  for (std::int64_t b = 0; b < t.shape[0]; ++b) {
    for (std::int64_t i = from; i < to; ++i) {
      for (std::int64_t h = 0; h < t.shape[2]; ++h) {
        for (std::int64_t c = 0; c < t.shape[3]; ++c) {
          all.push_back(
              verify::load_element(t, b * t.strides[0] + i * t.strides[1] + h * t.strides[2] + c));
        }
      }
    }
  }
  return all;
}
void expect_near(const std::vector<double>& got, const std::vector<double>& want, double near) {
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    ASSERT_LE(std::abs(got[i] - want[i]), near) << "element " << i << ", not " << want[i];
  }
}

// Under a causal mask only the last row sees the last key, and the first row only the first key.
// Dropout with this seed keeps that of the first row: dropped, it would take nothing of it.
TEST(CudaBackward, NaNReachesOnlyThoseWhoSeeIt) {
  ATTN_NEEDS_GPU();
  const double nan = std::nan(""), infinity = std::numeric_limits<double>::infinity();
  for (const auto& [descriptor, kernel] :
       {std::pair{"b1_n150_hq2_hk1_d64_causal_bf16", "backward_sm90"},
        std::pair{"b1_n150_h1_d128_causal_softcap30_f16", "backward_sm90"},
        std::pair{"b1_n100_h1_d256_causal_dropout0.2_seed4_bf16", "backward_sm90"},
        std::pair{"b1_n150_h1_d192_causal_bf16", "backward_sm90"},
        std::pair{"b1_n150_hq2_hk1_d64_causal_bf16", "backward_sm80"},
        std::pair{"b1_n100_h1_d256_causal_dropout0.2_seed4_f16", "backward_sm80"},
        std::pair{"b1_n150_hq2_hk1_d64_causal_bf16", "backward_sm80_deterministic"},
        std::pair{"b1_n90_h1_d70_causal_f32", "backward_simt"},
        std::pair{"b1_n90_h1_d70_causal_f32", "backward_flash_attention"},
        std::pair{"b1_n90_h1_d70_causal_f32", "backward_standard"}}) {
    SCOPED_TRACE(descriptor);
    for (const double x : {nan, infinity}) {
      CaseData data(verify::parse_case(descriptor), 7);
      if (!takes(data.problem, kernel)) continue;
      const Gradients& g = data.gradients;
      const std::int64_t n = data.problem.seqlen_q;
      // Tiles with such values are summed in another order on tensor cores.
      const double near = data.problem.dtype == DType::f32 ? 0 : 0.03;
      run_backward(data, kernel);
      const auto dq = values(g.dq, 0, n - 1), dk = values(g.dk, 1, n), dv = values(g.dv, 1, n);
      CaseData keys(verify::parse_case(descriptor), 7);
      fill_row(keys.inputs.k, n - 1, x);
      fill_row(keys.inputs.v, n - 1, x);
      run_backward(keys, kernel);
      expect_near(values(keys.gradients.dq, 0, n - 1), dq, near);
      EXPECT_FALSE(std::isfinite(values(keys.gradients.dq, n - 1, n).front()));
      CaseData queries(verify::parse_case(descriptor), 7);
      fill_row(queries.inputs.q, 0, x);
      fill_row(queries.d_o, 0, x);
      run_backward(queries, kernel);
      expect_near(values(queries.gradients.dk, 1, n), dk, near);
      expect_near(values(queries.gradients.dv, 1, n), dv, near);
      EXPECT_FALSE(std::isfinite(values(queries.gradients.dv, 0, 1).front()));
    }
  }
}

}  // namespace
}  // namespace attn::cuda
