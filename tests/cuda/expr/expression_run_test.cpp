// Expressions on a GPU agree with evaluate, and classify with brute force.
#include <algorithm>
#include <cmath>
#include <string_view>

#include "cases.hpp"
#include "cuda/codegen/expression_pack.hpp"
#include "cuda/codegen/expression_text.hpp"
#include "cuda/driver/memory.hpp"
#include "cuda/jit/kernel.hpp"
#include "cuda/support.hpp"

namespace attn::cuda {
namespace {

using expr::Expr;
using expr::Point;

constexpr unsigned kPoints = 512;

// One thread a point; the tile of its classify is [query, query + 3] x [key, key + 5], one head.
constexpr const char* kRun = R"(
struct Point { float score; int query, key, batch, head, seqlen_q, seqlen_k; };
struct Result { float score; int visible, coverage; };
extern "C" __global__ void evaluate(const __grid_constant__ attn::device::Expressions e,
                                    const Point* points, Result* results, int count) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= count) return;
  const Point p = points[i];
  results[i].score = e.kScoreFactor *
      e.score(p.score, p.query, p.key - 3, p.batch, p.head, p.seqlen_q, p.seqlen_k, 3);
  results[i].visible = e.mask(p.query, p.key, p.batch, p.head, p.seqlen_q, p.seqlen_k);
  results[i].coverage = static_cast<int>(e.classify(p.query, p.query + 3, p.key, p.key + 5, p.batch,
                                                    p.head, p.head, p.seqlen_q, p.seqlen_k));
}
)";
struct DevicePoint {
  float score;
  std::int32_t query, key, batch, head, seqlen_q, seqlen_k;
};
struct Result {
  float score;
  std::int32_t visible, coverage;
};

std::vector<DevicePoint> draw_points(test::RandomExpr& random) {
  std::vector<DevicePoint> points(kPoints);
  for (DevicePoint& p : points) {
    p = {static_cast<float>(random.real(-9, 9)),
         random.uniform(0, 24),
         random.uniform(0, 24),
         random.uniform(0, 3),
         random.uniform(0, 3),
         random.uniform(0, 24),
         random.uniform(0, 24)};
  }
  return points;
}

Point host_point(const DevicePoint& p) {
  return {p.score, p.query, p.key, p.batch, p.head, p.seqlen_q, p.seqlen_k};
}

// Buffers of the expressions on the GPU: whole elements arrays, whatever their views skip.
expr::Bindings upload_buffers(const test::DeviceExpressions& e, std::vector<DeviceBuffer>& memory) {
  expr::Bindings bindings;
  for (auto& [name, tensor] : test::as_device_tensors(e)) {
    if (tensor.size() == 0 || !tensor.given()) {  // nothing, or a scalar
      bindings.emplace_back(name, tensor);
      continue;
    }
    std::int64_t elements = 1;
    for (std::size_t d = 0; d < static_cast<std::size_t>(tensor.rank); ++d) {
      elements += (tensor.shape[d] - 1) * tensor.strides[d];
    }
    const auto bytes = static_cast<std::size_t>(elements) * size_of(tensor.dtype);
    memory.emplace_back(0, bytes);
    memory.back().upload(tensor.data, bytes);
    tensor.data = memory.back().data();
    bindings.emplace_back(name, tensor);
  }
  return bindings;
}

// Values that differ by a rounding of exp and the like may compare otherwise.
bool is_exact(const Expr& mask) {
  const std::string text = to_string(mask);
  constexpr std::string_view kApproximate[] = {"exp(", "exp2(", "log(", "tanh(",
                                               "erf(", "sin(",  "cos("};
  return std::ranges::none_of(kApproximate, [&](std::string_view function) {
    return text.find(function) != std::string::npos;
  });
}

std::vector<Result> run(const test::DeviceExpressions& e, const std::vector<DevicePoint>& points) {
  const Source source{.name = "expressions",
                      .text = print_expressions(e.mask, e.score) + kRun,
                      .entry = "evaluate",
                      .options = {}};
  const auto kernel = get_kernel(0, source, {});
  std::vector<DeviceBuffer> memory;
  std::vector<std::byte> packed =
      expression_pack(e.mask, e.score, 1, 2).packed(upload_buffers(e, memory));
  DeviceBuffer in(0, points.size() * sizeof(DevicePoint));
  DeviceBuffer out(0, points.size() * sizeof(Result));
  in.upload(points.data(), in.bytes());
  void* from = in.data();
  void* to = out.data();
  auto count = static_cast<int>(points.size());
  void* arguments[] = {packed.data(), &from, &to, &count};
  kernel->launch({.grid = {(kPoints + 127) / 128, 1, 1}, .block = 128}, nullptr, arguments);
  synchronize(0);
  std::vector<Result> results(points.size());
  out.download(results.data(), out.bytes());
  return results;
}

void expect_covered(const test::DeviceExpressions& e, const DevicePoint& p,
                    expr::Coverage claimed) {
  if (claimed == expr::Coverage::mixed) return;
  for (std::int32_t q = p.query; q <= p.query + 3; ++q) {
    for (std::int32_t k = p.key; k <= p.key + 5; ++k) {
      const Point at{0, q, k, p.batch, p.head, p.seqlen_q, p.seqlen_k};
      ASSERT_EQ(evaluate<float>(e.mask, at) != 0, claimed == expr::Coverage::full)
          << e.name << ": " << to_string(e.mask) << " at query " << q << " key " << k;
    }
  }
}

TEST(ExpressionRun, AgreesWithEvaluation) {
  if (const auto missing = why_unavailable()) GTEST_SKIP() << "skipped: " << *missing;
  test::RandomExpr random(5);
  const auto all = test::device_expressions();
  for (std::size_t i = 0; i < all.size(); ++i) {
    const test::DeviceExpressions& e = all[i];
    const bool is_random = e.name.find(' ') != std::string::npos;  // "mask 7"
    if (is_random && i % 5 != 0) continue;
    SCOPED_TRACE(e.name + ": mask " + to_string(e.mask) + ", score " + to_string(e.score));
    const std::vector<DevicePoint> points = draw_points(random);
    const std::vector<Result> results = run(e, points);
    for (std::size_t p = 0; p < points.size(); ++p) {
      const Point at = host_point(points[p]);
      if (e.mask.empty()) {
        ASSERT_TRUE(results[p].visible);
      } else {
        if (is_exact(e.mask)) {
          ASSERT_EQ(results[p].visible != 0, evaluate<float>(e.mask, at) != 0) << "point " << p;
        }
        expect_covered(e, points[p], static_cast<expr::Coverage>(results[p].coverage));
      }
      if (e.score.empty()) {
        ASSERT_EQ(results[p].score, points[p].score);
        continue;
      }
      const double expected = evaluate<double>(e.score, at);
      const double standard = evaluate<float>(e.score, at);
      const double allowed =
          8 * std::abs(standard - expected) + 2e-5 * std::max(1.0, std::abs(expected));
      ASSERT_NEAR(results[p].score, expected, allowed) << "point " << p;
    }
  }
}

}  // namespace
}  // namespace attn::cuda
