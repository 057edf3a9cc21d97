// LSE, the gradient of a sink and those of buffers lie at any strides: the same numbers are
// written wherever they lie, and nothing between them.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "core/call.hpp"

namespace attn {
namespace {

using testing::Call;

std::vector<float> values_of(const Tensor& t) {
  std::vector<float> values;
  std::array<std::int64_t, kMaxRank> i{};
  for (std::int64_t n = 0; n < t.size(); ++n) {
    values.push_back(static_cast<const float*>(t.data)[t.offset({i[0], i[1], i[2], i[3]})]);
    for (std::int32_t k = t.rank - 1; k >= 0; --k) {
      if (++i[k] < t.shape[k]) break;
      i[k] = 0;
    }
  }
  return values;
}

// t's shape and dtype in memory of its own, each stride three times as long and, of the last
// dimension, backwards.
Tensor spread(Call& call, const Tensor& t) {
  std::vector<std::int64_t> shape(t.shape.begin(), t.shape.begin() + t.rank);
  const std::int32_t last = t.rank - 1;
  shape.back() *= 3;
  Tensor out = call.poisoned(t.dtype, shape);
  out.shape = t.shape;
  out.strides[last] = -3;
  out.data = static_cast<float*>(out.data) + 3 * (t.shape[last] - 1);
  return out;
}

std::size_t numbers(const std::vector<double>& memory) {
  const auto* floats = reinterpret_cast<const float*>(memory.data());
  std::size_t count = 0;
  for (std::size_t i = 0; i < 2 * memory.size(); ++i) count += std::isnan(floats[i]) ? 0 : 1;
  return count;
}

Call random_call() {
  Call call = testing::dense_call();
  std::mt19937 random(20261123);
  std::normal_distribution<float> normal;
  for (const Tensor& t : {call.in.q, call.in.k, call.in.v, call.in.sink, call.d_o, call.d_lse}) {
    for (std::int64_t i = 0; i < t.size(); ++i) static_cast<float*>(t.data)[i] = normal(random);
  }
  return call;
}

TEST(ResultStrides, AreFree) {
  for (const Backend backend : {Backend::reference, Backend::cpu}) {
    SCOPED_TRACE(std::string(name(backend)));
    PlanOptions options;
    options.backend = backend;
    Call call = random_call();
    Call other = random_call();
    std::vector<Tensor*> results{&call.out.lse, &call.out.max_logit, &call.grad.dsink,
                                 &call.grad.buffers[0].second};
    std::vector<Tensor*> spread_out{&other.out.lse, &other.out.max_logit, &other.grad.dsink,
                                    &other.grad.buffers[0].second};
    std::vector<const std::vector<double>*> memories;
    for (Tensor* t : spread_out) {
      *t = spread(other, *t);
      memories.push_back(&other.memory.back());
    }
    for (const Call* c : {&call, &other}) {
      forward(c->problem, c->in, c->out, options);
      backward(c->problem, c->in, c->out, {c->d_o, c->d_lse}, c->grad, options);
    }
    for (std::size_t i = 0; i < results.size(); ++i) {
      SCOPED_TRACE(to_string(*spread_out[i]));
      const std::vector<float> expected = values_of(*results[i]);
      EXPECT_EQ(values_of(*spread_out[i]), expected);
      EXPECT_EQ(numbers(*memories[i]), expected.size()) << "written beside the tensor";
    }
  }
}

// A sink of -inf is as none: a row without keys has LSE -inf, and its D no meaning.
TEST(Sink, OfMinusInfinityHasNoGradientFromRowsWithoutKeys) {
  for (const Backend backend : {Backend::reference, Backend::cpu}) {
    SCOPED_TRACE(std::string(name(backend)));
    PlanOptions options;
    options.backend = backend;
    Call call = random_call();
    call.problem.mask = expr::symbols().query < expr::symbols().key - 3;
    for (std::int64_t h = 0; h < testing::kHeadsQ; ++h) {
      static_cast<float*>(call.in.sink.data)[h] = -std::numeric_limits<float>::infinity();
    }
    forward(call.problem, call.in, call.out, options);
    backward(call.problem, call.in, call.out, {call.d_o, call.d_lse}, call.grad, options);
    EXPECT_EQ(values_of(call.grad.dsink), std::vector<float>(testing::kHeadsQ, 0.0F));
  }
}

}  // namespace
}  // namespace attn
