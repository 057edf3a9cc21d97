// Calls without a row that sees a key, because sequences, queries or keys are not there: whatever
// way round its kernels a call takes, every result is written.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "attn/attn.hpp"
#include "conformance/support.hpp"

namespace attn::verify {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr std::int64_t kHeads = 2, kDim = 4, kPage = 2;

// Sizes of a call; starts are cu_seqlens, and lengths seqused, of packed and padded sequences.
struct Sizes {
  std::string name;
  std::int64_t batch, rows_q, rows_k;  // of a sequence; packed: of all
  std::optional<std::vector<std::int32_t>> starts_q{}, starts_k{}, used_q{}, used_k{};
  bool paged = false;
};

const std::vector<Sizes>& all_sizes() {
  static const std::vector<Sizes> sizes = {
      {.name = "packed, all sequences empty",
       .batch = 1,
       .rows_q = 3,
       .rows_k = 3,
       .starts_q = {{0, 0}},
       .starts_k = {{0, 0}}},
      {.name = "packed, no query",
       .batch = 2,
       .rows_q = 3,
       .rows_k = 5,
       .starts_q = {{0, 0, 0}},
       .starts_k = {{0, 2, 4}}},
      {.name = "packed, no key",
       .batch = 2,
       .rows_q = 3,
       .rows_k = 5,
       .starts_q = {{0, 1, 2}},
       .starts_k = {{0, 0, 0}}},
      {.name = "packed, no sequence",
       .batch = 0,
       .rows_q = 3,
       .rows_k = 3,
       .starts_q = {{0}},
       .starts_k = {{0}}},
      {.name = "packed Q without queries, dense K",
       .batch = 2,
       .rows_q = 3,
       .rows_k = 5,
       .starts_q = {{0, 0, 0}}},
      {.name = "packed Q without a sequence, dense K",
       .batch = 0,
       .rows_q = 3,
       .rows_k = 5,
       .starts_q = {{0}}},
      {.name = "packed Q without queries, paged K",
       .batch = 1,
       .rows_q = 3,
       .rows_k = 4,
       .starts_q = {{0, 0}},
       .used_k = {{3}},
       .paged = true},
      {.name = "dense Q, packed K without a sequence",
       .batch = 0,
       .rows_q = 3,
       .rows_k = 5,
       .starts_k = {{0}}},
      {.name = "dense, no query", .batch = 2, .rows_q = 0, .rows_k = 5},
      {.name = "dense, no key", .batch = 2, .rows_q = 3, .rows_k = 0},
      {.name = "dense, no batch", .batch = 0, .rows_q = 3, .rows_k = 5},
      {.name = "padded, no query", .batch = 2, .rows_q = 3, .rows_k = 5, .used_q = {{0, 0}}},
      {.name = "padded, no key", .batch = 2, .rows_q = 3, .rows_k = 5, .used_k = {{0, 0}}},
      {.name = "paged, no key",
       .batch = 1,
       .rows_q = 3,
       .rows_k = 4,
       .used_k = {{0}},
       .paged = true},
  };
  return sizes;
}

// The tensors of a call; results hold NaN.
class Call {
 public:
  Call(const Sizes& sizes, bool sink) : sizes_(sizes) {
    problem_.sink = sink;
    inputs_.q = like_q(q_, 1);
    inputs_.k = like_k(k_, 1);
    inputs_.v = like_k(v_, 1);
    if (sizes.starts_q) inputs_.cu_seqlens_q = ints(starts_q_ = *sizes.starts_q);
    if (sizes.starts_k) inputs_.cu_seqlens_k = ints(starts_k_ = *sizes.starts_k);
    if (sizes.used_q) inputs_.seqused_q = ints(used_q_ = *sizes.used_q);
    if (sizes.used_k) inputs_.seqused_k = ints(used_k_ = *sizes.used_k);
    if (sink) inputs_.sink = tensor(sink_.data(), {kHeads});
    if (sizes.starts_q) problem_.layout_q = Layout::packed;
    if (sizes.starts_k) problem_.layout_k = Layout::packed;
    if (sizes.paged) {
      problem_.layout_k = Layout::paged;
      inputs_.page_table = tensor(pages_.data(), {1, sizes.rows_k / kPage});
    }
    outputs_.o = like_q(o_, kNaN);
    lse_.assign(static_cast<std::size_t>(std::max<std::int64_t>(1, q_rows() * kHeads)), kNaN);
    outputs_.lse = sizes.starts_q ? tensor(lse_.data(), {kHeads, sizes.rows_q})
                                  : tensor(lse_.data(), {sizes.batch, kHeads, sizes.rows_q});
    d_o_tensor_ = like_q(d_o_, 1);
    gradients_ = {.dq = like_q(dq_, kNaN), .dk = like_k(dk_, kNaN), .dv = like_k(dv_, kNaN)};
    if (sink) gradients_.dsink = tensor(dsink_.data(), {kHeads});
  }

  void forward(const PlanOptions& options, const Context& context) {
    attn::forward(problem_, inputs_, outputs_, options, context);
    expect_zero(outputs_.o, "o");
    for (std::int64_t i = 0; i < outputs_.lse.size(); ++i) {
      const float lse = lse_[static_cast<std::size_t>(i)];
      // Rows that are queries have the sink, 1, as LSE.
      EXPECT_TRUE((std::isinf(lse) && lse < 0) || (problem_.sink && lse == 1))
          << "lse[" << i << "] is " << lse;
    }
  }
  void backward(const PlanOptions& options, const Context& context) {
    if (sizes_.paged) return;
    attn::backward(problem_, inputs_, outputs_, d_o_tensor_, gradients_, options, context);
    expect_zero(gradients_.dq, "dq");
    expect_zero(gradients_.dk, "dk");
    expect_zero(gradients_.dv, "dv");
    if (problem_.sink) expect_zero(gradients_.dsink, "dsink");
  }

 private:
  std::int64_t q_rows() const { return (sizes_.starts_q ? 1 : sizes_.batch) * sizes_.rows_q; }
  Tensor like_q(std::vector<float>& x, float value) const {
    x.assign(static_cast<std::size_t>(std::max<std::int64_t>(1, q_rows() * kHeads * kDim)), value);
    return sizes_.starts_q ? tensor(x.data(), {sizes_.rows_q, kHeads, kDim})
                           : tensor(x.data(), {sizes_.batch, sizes_.rows_q, kHeads, kDim});
  }
  Tensor like_k(std::vector<float>& x, float value) const {
    const std::int64_t rows = (sizes_.starts_k ? 1 : sizes_.batch) * sizes_.rows_k;
    x.assign(static_cast<std::size_t>(std::max<std::int64_t>(1, rows * kHeads * kDim)), value);
    if (sizes_.paged) return tensor(x.data(), {sizes_.rows_k / kPage, kPage, kHeads, kDim});
    return sizes_.starts_k ? tensor(x.data(), {sizes_.rows_k, kHeads, kDim})
                           : tensor(x.data(), {sizes_.batch, sizes_.rows_k, kHeads, kDim});
  }
  static Tensor ints(std::vector<std::int32_t>& x) {
    return tensor(x.data(), {static_cast<std::int64_t>(x.size())});
  }
  static void expect_zero(const Tensor& t, const char* name) {
    for (std::int64_t i = 0; i < t.size(); ++i) {
      EXPECT_EQ(static_cast<const float*>(t.data)[i], 0) << name << ", element " << i;
    }
  }

  const Sizes& sizes_;
  Problem problem_;
  Inputs inputs_;
  Outputs outputs_;
  Gradients gradients_;
  Tensor d_o_tensor_;
  std::vector<float> q_, k_, v_, o_, lse_, d_o_, dq_, dk_, dv_;
  std::vector<float> sink_ = {1, 1}, dsink_ = {kNaN, kNaN};
  std::vector<std::int32_t> starts_q_, starts_k_, used_q_, used_k_, pages_ = {1, 0};
};

TEST(EmptyResults, AreWrittenByEveryAlgorithm) {
  for (const Sizes& sizes : all_sizes()) {
    for (const bool sink : {false, true}) {
      SCOPED_TRACE(sizes.name + (sink ? ", sink" : ""));
      Call reference(sizes, sink);
      reference.forward({.backend = Backend::reference}, {});
      reference.backward({.backend = Backend::reference}, {});
      for (const InstructionSet isa : available_instruction_sets()) {
        Context context;
        context.isa = isa;
        for (const Algorithm algorithm : algorithms(Phase::forward)) {
          SCOPED_TRACE(std::string(name(isa)) + ", " + std::string(name(algorithm)));
          Call(sizes, sink).forward({.backend = Backend::cpu, .algorithm = algorithm}, context);
        }
        for (const Algorithm algorithm : algorithms(Phase::backward)) {
          SCOPED_TRACE(std::string(name(isa)) + ", backward " + std::string(name(algorithm)));
          Call call(sizes, sink);
          call.forward({.backend = Backend::cpu}, context);
          call.backward({.backend = Backend::cpu, .algorithm = algorithm}, context);
        }
      }
    }
  }
}

}  // namespace
}  // namespace attn::verify
