// Rows of packed results behind the last sequence are written on a GPU as on the CPU: 0, and -inf
// in LSE. What lies there in Q, K, V and dO, here NaN, reaches no result.
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "attn/attn.hpp"
#include "cuda/driver/memory.hpp"
#include "cuda/gpu.hpp"

namespace attn::cuda {
namespace {

constexpr std::int64_t kTotal = 23, kUsed = 16, kHeads = 4, kHeadsK = 2, kDim = 64;

// A tensor of the GPU beside its numbers here.
class Rows {
 public:
  Rows(DType dtype, std::vector<std::int64_t> shape) : dtype_(dtype), shape_(std::move(shape)) {
    for (const std::int64_t n : shape_) size_ *= n;
    bytes_.resize(static_cast<std::size_t>(size_) * size_of(dtype), std::byte{0xff});  // NaN
    memory_.emplace(kGpu.index, bytes_.size());
    upload();
  }
  Tensor host() { return described(bytes_.data(), Device{}); }
  Tensor device() { return described(memory_->data(), kGpu); }
  void upload() { memory_->upload(bytes_.data(), bytes_.size()); }
  void download() { memory_->download(bytes_.data(), bytes_.size()); }
  // Random numbers in rows that a sequence has.
  void fill(std::uint64_t seed) {
    std::mt19937_64 random(seed);
    const std::int64_t used = size_ / kTotal * kUsed;
    for (std::int64_t i = 0; i < used; ++i) {
      verify::store_element(host(), i, static_cast<double>(random() % 1000) / 500 - 1);
    }
    upload();
  }
  double at(std::int64_t i) { return verify::load_element(host(), i); }
  std::int64_t size() const { return size_; }

 private:
  Tensor described(void* data, Device device) const {
    Tensor t = tensor(data, dtype_, {shape_[0]}, device);
    t.rank = static_cast<int>(shape_.size());
    std::int64_t stride = 1;
    for (std::size_t i = shape_.size(); i-- > 0;) {
      t.shape[i] = shape_[i];
      t.strides[i] = stride;
      stride *= shape_[i];
    }
    return t;
  }
  DType dtype_;
  std::vector<std::int64_t> shape_;
  std::int64_t size_ = 1;
  std::vector<std::byte> bytes_;
  std::optional<DeviceBuffer> memory_;
};

void expect_tail(Rows& rows, const std::string& what) {
  rows.download();
  const std::int64_t used = rows.size() / kTotal * kUsed;
  for (std::int64_t i = 0; i < rows.size(); ++i) {
    if (i < used) {
      ASSERT_TRUE(std::isfinite(rows.at(i))) << what << ", element " << i;
    } else {
      ASSERT_EQ(rows.at(i), 0) << what << ", element " << i;
    }
  }
}

Context context_of(const Plan& plan, std::optional<DeviceBuffer>& workspace) {
  Context context;
  if (plan.workspace_bytes > 0) {
    workspace.emplace(kGpu.index, static_cast<std::size_t>(plan.workspace_bytes));
    context.workspace = tensor(workspace->data(), DType::u8, {plan.workspace_bytes}, kGpu);
  }
  return context;
}

class CudaPackedTail : public ::testing::TestWithParam<DType> {};

TEST_P(CudaPackedTail, IsWrittenInEveryResult) {
  ATTN_NEEDS_GPU();
  const DType dtype = GetParam();
  Rows q(dtype, {kTotal, kHeads, kDim}), k(dtype, {kTotal, kHeadsK, kDim}),
      v(dtype, {kTotal, kHeadsK, kDim}), d_o(dtype, {kTotal, kHeads, kDim});
  Rows o(dtype, {kTotal, kHeads, kDim}), lse(DType::f32, {kHeads, kTotal}),
      dq(dtype, {kTotal, kHeads, kDim}), dk(dtype, {kTotal, kHeadsK, kDim}),
      dv(dtype, {kTotal, kHeadsK, kDim});
  q.fill(1), k.fill(2), v.fill(3), d_o.fill(4);
  const std::vector<std::int32_t> starts = {0, 4, 4, kUsed};
  DeviceBuffer cu(kGpu.index, 4 * sizeof(std::int32_t));
  cu.upload(starts.data(), 4 * sizeof(std::int32_t));
  Problem problem{.mask = causal()};
  problem.dtype = dtype;
  problem.batch = 3;
  problem.seqlen_q = problem.seqlen_k = kUsed - 4;
  problem.heads_q = kHeads;
  problem.heads_k = kHeadsK;
  problem.head_dim = problem.head_dim_v = kDim;
  problem.layout_q = problem.layout_k = Layout::packed;
  Inputs inputs{.q = q.device(), .k = k.device(), .v = v.device()};
  inputs.cu_seqlens_q = inputs.cu_seqlens_k =
      tensor(cu.data(), DType::i32, {static_cast<std::int64_t>(starts.size())}, kGpu);
  const std::vector<std::int64_t> wide_starts(starts.begin(), starts.end());
  DeviceBuffer wide(kGpu.index, 4 * sizeof(std::int64_t));
  wide.upload(wide_starts.data(), 4 * sizeof(std::int64_t));
  if (dtype != DType::bf16) {  // another dtype than of Q's
    inputs.cu_seqlens_k = tensor(wide.data(), DType::i64, {std::ssize(wide_starts)}, kGpu);
  }
  const Outputs outputs{.o = o.device(), .lse = lse.device()};

  std::optional<DeviceBuffer> workspace, backward_workspace;
  const Plan plan = make_plan(problem, Phase::forward, {.device = kGpu});
  forward(plan, inputs, outputs, context_of(plan, workspace));
  const Plan backward_plan = make_plan(problem, Phase::backward, {.device = kGpu});
  const OutputGradients d_outputs{d_o.device(), {}};
  const Gradients gradients{.dq = dq.device(), .dk = dk.device(), .dv = dv.device()};
  backward(backward_plan, inputs, outputs, d_outputs, gradients,
           context_of(backward_plan, backward_workspace));
  synchronize(kGpu.index);
  expect_tail(o, "o");
  expect_tail(dq, "dq");
  expect_tail(dk, "dk");
  expect_tail(dv, "dv");
  lse.download();
  for (std::int64_t h = 0; h < kHeads; ++h) {
    for (std::int64_t i = 0; i < kTotal; ++i) {
      const double value = lse.at(h * kTotal + i);
      if (i < kUsed) {
        EXPECT_TRUE(std::isfinite(value)) << "lse, head " << h << ", row " << i;
      } else {
        EXPECT_EQ(value, -std::numeric_limits<double>::infinity()) << "head " << h << ", row " << i;
      }
    }
  }
}

// The keys of a shared prefix might be read by all rows at once.
TEST(CudaPackedTailBehindPrefix, IsNotInTheLargestScore) {
  ATTN_NEEDS_GPU();
  constexpr DType kDtype = DType::bf16;
  Rows q(kDtype, {kTotal, kHeads, kDim}), k(kDtype, {kTotal, kHeadsK, kDim}),
      prefix(kDtype, {10 * kTotal, kHeadsK, kDim}), o(kDtype, {kTotal, kHeads, kDim}),
      logits(DType::f32, {kHeads});
  q.fill(1), k.fill(2), prefix.fill(3);
  const std::vector<std::int32_t> starts = {0, 4, 4, kUsed};
  DeviceBuffer cu(kGpu.index, 4 * sizeof(std::int32_t));
  cu.upload(starts.data(), 4 * sizeof(std::int32_t));
  Inputs inputs{.q = q.device(), .k = k.device(), .v = k.device()};
  inputs.cu_seqlens_q = inputs.cu_seqlens_k =
      tensor(cu.data(), DType::i32, {static_cast<std::int64_t>(starts.size())}, kGpu);
  inputs.prefix_k = inputs.prefix_v = prefix.device();
  inputs.prefix_k.shape[0] = inputs.prefix_v.shape[0] = 10 * kUsed;
  Problem problem;
  problem.layout_q = problem.layout_k = Layout::packed;
  problem.seqlen_prefix = 10 * kUsed;
  problem.seqlen_q = problem.seqlen_k = kUsed - 4;
  Outputs outputs{.o = o.device()};
  outputs.max_logit = logits.device();
  const Plan plan = make_plan(complete(problem, inputs), Phase::forward, {.device = kGpu});
  std::optional<DeviceBuffer> workspace;
  forward(plan, inputs, outputs, context_of(plan, workspace));
  synchronize(kGpu.index);
  expect_tail(o, "o");
  logits.download();
  for (std::int64_t h = 0; h < kHeads; ++h) EXPECT_TRUE(std::isfinite(logits.at(h))) << h;
}

INSTANTIATE_TEST_SUITE_P(Types, CudaPackedTail,
                         ::testing::Values(DType::f32, DType::bf16, DType::f16),
                         [](const auto& info) { return std::string(name(info.param)); });

}  // namespace
}  // namespace attn::cuda
