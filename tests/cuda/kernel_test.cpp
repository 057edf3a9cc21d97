// Loading and launching. Needs a GPU.
#include "cuda/jit/kernel.hpp"

#include <future>
#include <numeric>
#include <vector>

#include "attn/error.hpp"
#include "cuda/driver/memory.hpp"
#include "cuda/support.hpp"
#include "cuda/temporary_folder.hpp"

namespace attn::cuda {
namespace {

// Each compilation is one.
const Environment kNoCache("ATTN_CACHE_DIR", "");

constexpr int kSize = 1000;

std::vector<float> numbers() {
  std::vector<float> x(kSize);
  std::iota(x.begin(), x.end(), 0.5F);
  return x;
}

struct Arguments {
  Arguments() : x(0, kSize * sizeof(float)), y(0, kSize * sizeof(float)) {
    const std::vector<float> host = numbers();
    x.upload(host.data(), x.bytes());
    y.fill(0xff);
  }
  void** parameters() { return pointers.data(); }
  void expect(float factor) const {
    std::vector<float> result(kSize);
    y.download(result.data(), y.bytes());
    const std::vector<float> host = numbers();
    for (int i = 0; i < kSize; ++i) {
      const auto k = static_cast<std::size_t>(i);
      ASSERT_EQ(result[k], factor * host[k] + static_cast<float>(i)) << i;
    }
  }

  DeviceBuffer x, y;
  void* x_data = x.data();
  void* y_data = y.data();
  int n = kSize;
  std::array<void*, 3> pointers{&x_data, &y_data, &n};
};

const LaunchConfig kConfig{.grid = {(kSize + 127) / 128, 1, 1}};

TEST(Kernel, RunsOnTheStream) {
  ATTN_NEEDS_GPU();
  const auto kernel = get_kernel(0, scale_source("3"), {});
  EXPECT_EQ(kernel, get_kernel(0, scale_source("3"), {}));
  EXPECT_GT(kernel->max_blocks_per_sm(128, 0), 0);
  Arguments arguments;
  const Stream stream(0);
  synchronize(0);
  kernel->launch(kConfig, stream.handle(), arguments.parameters());
  stream.synchronize();
  arguments.expect(3);
}

TEST(Kernel, RunsInAGraph) {
  ATTN_NEEDS_GPU();
  Arguments arguments;
  const Stream stream(0);
  synchronize(0);
  // Compiled and loaded for the first time within the capture.
  const Graph graph(stream, [&] {
    get_kernel(0, scale_source("5"), {})->launch(kConfig, stream.handle(), arguments.parameters());
  });
  graph.launch(stream.handle());
  stream.synchronize();
  arguments.expect(5);
}

TEST(Kernel, ThreadsShareOneCompilation) {
  ATTN_NEEDS_GPU();
  std::vector<std::future<std::shared_ptr<const Kernel>>> futures;
  for (int i = 0; i < 4; ++i) {
    futures.push_back(
        std::async(std::launch::async, [] { return get_kernel(0, scale_source("7"), {}); }));
  }
  const auto first = futures[0].get();
  for (std::size_t i = 1; i < futures.size(); ++i) EXPECT_EQ(futures[i].get(), first);
}

TEST(Kernel, DriverErrorsAreNamed) {
  ATTN_NEEDS_GPU();
  const auto kernel = get_kernel(0, scale_source(), {});
  Arguments arguments;
  LaunchConfig config = kConfig;
  config.block = 4096;
  try {
    kernel->launch(config, nullptr, arguments.parameters());
    FAIL() << "nothing was refused";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::device);
    expect_contains(error.what(), "CUDA_ERROR_INVALID_VALUE");
    expect_contains(error.what(), "4096 threads");
  }
}

TEST(Device, IsDescribed) {
  ATTN_NEEDS_GPU();
  const DeviceInfo& info = device_info(0);
  EXPECT_FALSE(info.name.empty());
  EXPECT_GE(info.arch, 50);
  EXPECT_GT(info.sm_count, 0);
  EXPECT_GE(info.shared_bytes_per_block, 48 * 1024);
  EXPECT_GT(info.l2_bytes, 0);
  EXPECT_GT(info.memory_bytes, 0);
  EXPECT_THROW(device_info(device_count()), Error);
  EXPECT_THROW(device_info(-1), Error);
}

}  // namespace
}  // namespace attn::cuda
