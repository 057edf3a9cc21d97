// Softmax and its largest elements on a GPU, against the definition in fp64.
#include "attn/softmax.hpp"

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <string>
#include <vector>

#include "core/softmax_expected.hpp"
#include "cuda/driver/memory.hpp"
#include "cuda/gpu.hpp"
#include "cuda/jit/compile.hpp"
#include "cuda/softmax.hpp"

namespace attn::cuda {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr SoftmaxAlgorithm kAlgorithms[] = {SoftmaxAlgorithm::three_pass, SoftmaxAlgorithm::online};

// A tensor in memory of the GPU, filled with bytes that are NaN and no column.
struct OnGpu {
  explicit OnGpu(std::size_t elements)
      : memory(kGpu.index, std::max<std::size_t>(1, 4 * elements)) {
    memory.fill(0xff);
    synchronize(kGpu.index);
  }
  explicit OnGpu(const std::vector<float>& host) : OnGpu(host.size()) {
    if (!host.empty()) memory.upload(host.data(), 4 * host.size());
  }
  template <class T>
  std::vector<T> get() const {
    std::vector<T> host(memory.bytes() / sizeof(T));
    memory.download(host.data(), host.size() * sizeof(T));
    return host;
  }
  Tensor view(DType dtype, std::initializer_list<std::int64_t> shape) const {
    return tensor(memory.data(), dtype, shape, kGpu);
  }
  DeviceBuffer memory;
};

struct Call {
  Call() : stream(kGpu.index) { context.stream = stream.handle(); }
  Stream stream;
  Context context;
};

// stride: of rows, in elements; 16-byte loads and stores need multiples of 4.
void check_rows(std::int64_t rows, std::int64_t columns, std::int64_t stride,
                SoftmaxAlgorithm algorithm, bool in_place) {
  SCOPED_TRACE(std::to_string(columns) + " columns, stride " + std::to_string(stride));
  const std::vector<float> x = softmax_rows(rows * stride, 5);
  const OnGpu x_there(x), y_there(x.size()), lse_there(static_cast<std::size_t>(2 * rows));
  const OnGpu& written = in_place ? x_there : y_there;
  Tensor from = x_there.view(DType::f32, {rows, columns});
  Tensor to = written.view(DType::f32, {rows, columns});
  from.strides[0] = to.strides[0] = stride;
  Tensor lse = lse_there.view(DType::f32, {rows});
  lse.strides[0] = 2;
  const Call call;
  softmax(from, to, lse, algorithm, call.context);
  call.stream.synchronize();
  const std::vector<float> y = written.get<float>(), sums = lse_there.get<float>();
  for (std::int64_t i = 0; i < rows; ++i) {
    const SoftmaxExpected expected(x.data() + i * stride, columns);
    const auto row = static_cast<std::size_t>(i * stride);
    for (std::int64_t j = 0; j < stride; ++j) {
      const std::size_t at = row + static_cast<std::size_t>(j);
      if (j >= columns) {  // between rows
        ASSERT_TRUE(in_place ? y[at] == x[at] : std::isnan(y[at])) << i << ' ' << j;
        continue;
      }
      const double exact = expected.y[static_cast<std::size_t>(j)];
      ASSERT_NEAR(y[at], exact,
                  expected.allowed(x[at], exact, static_cast<double>(columns) / 256 + 8))
          << i << ' ' << j;
    }
    const float got = sums[static_cast<std::size_t>(2 * i)];
    if (expected.order.empty()) {
      ASSERT_EQ(got, -kInfinity);
    } else {
      ASSERT_NEAR(got, expected.lse, 1e-6 * (4 + std::abs(expected.lse)));
    }
    ASSERT_TRUE(std::isnan(sums[static_cast<std::size_t>(2 * i + 1)]));
  }
}

TEST(CudaSoftmax, AgreesWithTheDefinition) {
  ATTN_NEEDS_GPU();
  for (const SoftmaxAlgorithm algorithm : kAlgorithms) {
    for (const std::int64_t columns : {0, 1, 3, 17, 250, 1023, 5000}) {
      check_rows(3, columns, columns, algorithm, false);
      check_rows(3, columns, columns / 4 * 4 + 8, algorithm, columns % 2 == 0);
    }
  }
}

TEST(CudaSoftmax, ManyRows) {
  ATTN_NEEDS_GPU();
  check_rows(300, 40, 40, SoftmaxAlgorithm::online, true);
}

TEST(CudaSoftmax, SpecialValuesStayInTheirRow) {
  ATTN_NEEDS_GPU();
  for (const SoftmaxAlgorithm algorithm : kAlgorithms) {
    const std::vector<float> x = {kNaN,       1,          2,           // NaN
                                  1,          2,          kInfinity,   // NaN
                                  -kInfinity, -kInfinity, kNaN,        // NaN
                                  -kInfinity, -kInfinity, -kInfinity,  // 0, LSE -inf
                                  3e38F,      3e38F,      -3e38F};     // 1/2, 1/2, 0
    const OnGpu there(x), y_there(x.size()), lse_there(5);
    const Call call;
    softmax(there.view(DType::f32, {5, 3}), y_there.view(DType::f32, {5, 3}),
            lse_there.view(DType::f32, {5}), algorithm, call.context);
    call.stream.synchronize();
    const std::vector<float> y = y_there.get<float>(), lse = lse_there.get<float>();
    for (std::size_t i = 0; i < 9; ++i) EXPECT_TRUE(std::isnan(y[i])) << i;
    for (std::size_t i = 0; i < 3; ++i) EXPECT_TRUE(std::isnan(lse[i])) << i;
    EXPECT_EQ(std::vector<float>(y.begin() + 9, y.end()),
              (std::vector<float>{0, 0, 0, 0.5F, 0.5F, 0}));
    EXPECT_EQ(lse[3], -kInfinity);
  }
}

TEST(CudaSoftmaxTop, AgreesWithTheDefinition) {
  ATTN_NEEDS_GPU();
  for (const SoftmaxAlgorithm algorithm : kAlgorithms) {
    for (const std::int64_t columns : {1, 250, 3000}) {
      for (const std::int64_t k : {5, 32}) {
        SCOPED_TRACE(std::to_string(columns) + " columns, top " + std::to_string(k));
        const std::int64_t rows = 3;
        const std::vector<float> x = softmax_rows(rows * columns, 7);
        const auto size = static_cast<std::size_t>(rows * k);
        const OnGpu there(x), values_there(size), columns_there(size), lse_there(3);
        Tensor values = values_there.view(DType::f32, {rows, k});
        values.strides = {1, rows};  // transposed
        const Call call;
        softmax_top(there.view(DType::f32, {rows, columns}), values,
                    columns_there.view(DType::i32, {rows, k}), lse_there.view(DType::f32, {rows}),
                    algorithm, call.context);
        call.stream.synchronize();
        const std::vector<float> y = values_there.get<float>();
        const std::vector<std::int32_t> at = columns_there.get<std::int32_t>();
        for (std::int64_t i = 0; i < rows; ++i) {
          const SoftmaxExpected expected(x.data() + i * columns, columns);
          for (std::int64_t j = 0; j < k; ++j) {
            const float got = y[static_cast<std::size_t>(j * rows + i)];
            const std::int32_t column = at[static_cast<std::size_t>(i * k + j)];
            if (static_cast<std::size_t>(j) >= expected.order.size()) {
              ASSERT_EQ(column, -1);
              ASSERT_EQ(got, 0);
              continue;
            }
            ASSERT_EQ(column, expected.order[static_cast<std::size_t>(j)]);
            const double exact = expected.y[static_cast<std::size_t>(column)];
            ASSERT_NEAR(got, exact,
                        expected.allowed(x[static_cast<std::size_t>(i * columns + column)], exact,
                                         static_cast<double>(columns) / 256 + 8));
          }
        }
      }
    }
  }
}

TEST(CudaSoftmax, Refusals) {
  ATTN_NEEDS_GPU();
  const std::vector<float> x(12, 1);
  const OnGpu there(x), y_there(x.size());
  std::vector<float> host(12, kNaN);
  const Tensor from = there.view(DType::f32, {3, 4});
  EXPECT_THROW(softmax(from, tensor(host.data(), {3, 4})), Error);
  EXPECT_THROW(softmax(tensor(host.data(), {3, 4}), y_there.view(DType::f32, {3, 4})), Error);
  EXPECT_THROW(softmax(from, tensor(host.data(), DType::f32, {3, 4}, kGpu)), Error);
  EXPECT_THROW(softmax_top(from, y_there.view(DType::f32, {3, 2}), from), Error);
  synchronize(kGpu.index);
  for (const float v : y_there.get<float>()) EXPECT_TRUE(std::isnan(v));
}

// The emulated GPU compiles with the host's compiler, which takes more.
TEST(CudaSoftmax, KernelsCompileWithoutSpills) {
  ATTN_NEEDS_NVRTC();
  if (std::getenv("ATTN_NVRTC") != nullptr) GTEST_SKIP() << "skipped: NVRTC is the emulator's";
  const std::string folder = testing::TempDir() + "attn_softmax_kernels";
  void* const aligned = reinterpret_cast<void*>(4096);  // never read
  for (const std::int64_t columns : {1000, 999}) {
    const Tensor x = tensor(aligned, DType::f32, {8, columns}, kGpu);
    for (const std::int64_t top : {0, 5}) {
      SoftmaxCall call{x, x, {}, {}, {}, SoftmaxAlgorithm::online};
      if (top > 0) {
        call.y = {};
        call.values = tensor(aligned, DType::f32, {8, top}, kGpu);
        call.columns = tensor(aligned, DType::i32, {8, top}, kGpu);
      }
      for (const SoftmaxAlgorithm algorithm : kAlgorithms) {
        call.algorithm = algorithm;
        const Report report = compile_into(softmax_source(call), {80, false}, {}, folder).report;
        EXPECT_EQ(report.spill_store_bytes, 0) << columns << " columns, top " << top;
      }
    }
  }
}

}  // namespace
}  // namespace attn::cuda
