// Complete, valid arguments of a call, to be spoilt one at a time.
#pragma once

#include <cstdint>
#include <cstring>
#include <limits>
#include <list>
#include <vector>

#include "attn/mask.hpp"
#include "attn/run.hpp"

namespace attn::testing {

struct Call {
  Problem problem;
  Inputs in;
  Outputs out;
  Tensor d_o, d_lse;
  Gradients grad;

  // A row-major tensor with memory of its own: zeros.
  Tensor zeros(DType dtype, const std::vector<std::int64_t>& shape) {
    Tensor t{.dtype = dtype, .rank = static_cast<std::int32_t>(shape.size())};
    std::int64_t size = 1;
    for (std::int32_t k = t.rank - 1; k >= 0; --k) {
      t.shape[k] = shape[static_cast<std::size_t>(k)];
      t.strides[k] = size;
      size *= t.shape[k];
    }
    // With room behind it for the largest tensor of a call: another one that is laid over it
    // reaches no third one, wherever the heap has that.
    memory.emplace_back(static_cast<std::size_t>(size) * size_of(dtype) / 8 + kRoom, 0.0);
    t.data = memory.back().data();
    return t;
  }
  // Full of NaN.
  Tensor poisoned(DType dtype, const std::vector<std::int64_t>& shape) {
    const Tensor t = zeros(dtype, shape);
    std::memset(t.data, 0xff, memory.back().size() * sizeof(double));
    return t;
  }
  Tensor integers(const std::vector<std::int32_t>& values) {
    const Tensor t = zeros(DType::i32, {static_cast<std::int64_t>(values.size())});
    std::memcpy(t.data, values.data(), values.size() * sizeof(std::int32_t));
    return t;
  }
  std::int32_t& integer(const Tensor& t, std::int64_t i) {
    return static_cast<std::int32_t*>(t.data)[i];
  }

  void forward() const { attn::forward(problem, in, out); }
  void backward() const { attn::backward(problem, in, out, {d_o, d_lse}, grad); }

  std::list<std::vector<double>> memory;

 private:
  static constexpr std::size_t kRoom = 256;  // doubles; dQ of f32 has 160
};

inline constexpr std::int64_t kBatch = 2, kSeqlenQ = 5, kSeqlenK = 7, kHeadsQ = 4, kHeadsK = 2;
inline constexpr std::int64_t kHeadDim = 8, kHeadDimV = 6;

inline void add_outputs(Call& c, const std::vector<std::int64_t>& rows_q,
                        const std::vector<std::int64_t>& lse) {
  const auto with = [](std::vector<std::int64_t> shape, std::int64_t heads, std::int64_t dim) {
    shape.push_back(heads);
    shape.push_back(dim);
    return shape;
  };
  c.out.o = c.poisoned(DType::f32, with(rows_q, kHeadsQ, kHeadDimV));
  c.out.lse = c.poisoned(DType::f32, lse);
  c.d_o = c.zeros(DType::f32, with(rows_q, kHeadsQ, kHeadDimV));
  c.d_lse = c.zeros(DType::f32, lse);
  c.grad.dq = c.poisoned(DType::f32, with(rows_q, kHeadsQ, kHeadDim));
}

// Dense GQA with causal mask, bias, sink, dropout and padded lengths; every optional argument
// given.
inline Call dense_call() {
  Call c;
  c.problem.mask = causal();
  c.problem.score = bias(c.zeros(DType::f32, {1, kHeadsQ, kSeqlenQ, kSeqlenK}));
  c.problem.sink = true;
  c.problem.dropout.probability = 0.25;
  c.in.q = c.zeros(DType::f32, {kBatch, kSeqlenQ, kHeadsQ, kHeadDim});
  c.in.k = c.zeros(DType::f32, {kBatch, kSeqlenK, kHeadsK, kHeadDim});
  c.in.v = c.zeros(DType::f32, {kBatch, kSeqlenK, kHeadsK, kHeadDimV});
  c.in.seqused_q = c.integers({5, 3});
  c.in.seqused_k = c.integers({0, 7});
  c.in.sink = c.zeros(DType::f32, {kHeadsQ});
  add_outputs(c, {kBatch, kSeqlenQ}, {kBatch, kHeadsQ, kSeqlenQ});
  c.grad.dk = c.poisoned(DType::f32, {kBatch, kSeqlenK, kHeadsK, kHeadDim});
  c.grad.dv = c.poisoned(DType::f32, {kBatch, kSeqlenK, kHeadsK, kHeadDimV});
  c.grad.dsink = c.poisoned(DType::f32, {kHeadsQ});
  c.grad.buffers = {{"bias", c.poisoned(DType::f32, {1, kHeadsQ, kSeqlenQ, kSeqlenK})}};
  c.out.max_logit = c.poisoned(DType::f32, {kHeadsQ});
  return c;
}

inline Call packed_call() {
  Call c;
  c.problem.layout_q = c.problem.layout_k = Layout::packed;
  c.in.q = c.zeros(DType::f32, {10, kHeadsQ, kHeadDim});
  c.in.k = c.zeros(DType::f32, {12, kHeadsK, kHeadDim});
  c.in.v = c.zeros(DType::f32, {12, kHeadsK, kHeadDimV});
  c.in.cu_seqlens_q = c.integers({0, 5, 5, 9});
  c.in.cu_seqlens_k = c.integers({0, 1, 8, 12});
  c.in.seqused_k = c.integers({1, 4, 0});
  add_outputs(c, {10}, {kHeadsQ, 10});
  c.grad.dk = c.poisoned(DType::f32, {12, kHeadsK, kHeadDim});
  c.grad.dv = c.poisoned(DType::f32, {12, kHeadsK, kHeadDimV});
  return c;
}

inline Call paged_call() {
  Call c;
  c.problem.layout_k = Layout::paged;
  c.in.q = c.zeros(DType::f32, {kBatch, 1, kHeadsQ, kHeadDim});
  c.in.k = c.zeros(DType::f32, {6, 4, kHeadsK, kHeadDim});
  c.in.v = c.zeros(DType::f32, {6, 4, kHeadsK, kHeadDimV});
  c.in.page_table = c.zeros(DType::i32, {kBatch, 3});
  const std::int32_t pages[] = {5, 2, -1, 0, 1, 3};  // the entry past the length is not looked at
  std::memcpy(c.in.page_table.data, pages, sizeof(pages));
  c.in.seqused_k = c.integers({8, 12});
  add_outputs(c, {kBatch, 1}, {kBatch, kHeadsQ, 1});
  return c;
}

}  // namespace attn::testing
