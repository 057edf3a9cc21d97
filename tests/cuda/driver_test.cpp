// The driver layer on a libcuda.so.1 that pretends (fake_driver/). Needs no GPU.
#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "cuda/driver/device.hpp"
#include "cuda/driver/memory.hpp"
#include "cuda/driver/pointer.hpp"
#include "cuda/jit/kernel.hpp"
#include "cuda/support.hpp"
#include "cuda/temporary_folder.hpp"
#include "fake_driver/fake_driver.hpp"

namespace attn::cuda {
namespace {

const Environment kNoCache("ATTN_CACHE_DIR", "");
// NVIDIA's compiler does not bear the driver of these tests beside it.
const Environment kCompiler("ATTN_NVRTC", ATTN_FAKE_DRIVER);

class Driver : public ::testing::Test {
 protected:
  void SetUp() override {
    void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    ASSERT_NE(library, nullptr) << dlerror();
    const auto get = reinterpret_cast<FakeDriver* (*)()>(dlsym(library, "attn_fake_driver"));
    ASSERT_NE(get, nullptr) << "libcuda.so.1 is not the one of these tests";
    fake = get();
    contexts =
        reinterpret_cast<std::vector<CUcontext>* (*)()>(dlsym(library, "attn_fake_contexts"))();
  }
  void TearDown() override {
    fake->failures.clear();
    contexts->clear();
  }

  FakeDriver* fake = nullptr;
  std::vector<CUcontext>* contexts = nullptr;  // of this thread
};

// Each in a process of its own, because a driver is opened once.
void expect_unavailable(const char* variable, const char* value, const std::string& pattern) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto report = [&] {
    setenv(variable, value, 1);
    const std::string reason = why_unavailable().value_or("nothing is missing");
    std::fprintf(stderr, "%s; %d devices\n", reason.c_str(), device_count());
    try {
      api();
      std::exit(1);
    } catch (const Error& error) {
      std::exit(error.code() == ErrorCode::unavailable &&
                        std::string(error.what()).ends_with(reason) && try_api() == nullptr
                    ? 0
                    : 2);
    }
  };
  EXPECT_EXIT(report(), ::testing::ExitedWithCode(0), pattern);
}

TEST(WhyUnavailable, OldDriver) {
  expect_unavailable("FAKE_DRIVER_VERSION", "11080",
                     "CUDA 11.8, which is too old; needed is CUDA 12.0.*; 0 devices");
}
TEST(WhyUnavailable, NoDevice) {
  expect_unavailable("FAKE_DRIVER_DEVICES", "0", "finds no CUDA device; 0 devices");
}
TEST(WhyUnavailable, DriverWithoutDevice) {
  expect_unavailable("FAKE_DRIVER_INIT", "100", "finds no CUDA device; 0 devices");
}
TEST(WhyUnavailable, DriverThatDoesNotStart) {
  expect_unavailable("FAKE_DRIVER_INIT", "999", "cuInit gives CUDA error 999; 0 devices");
}
TEST(WhyUnavailable, NoCompiler) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto report = [] {
    setenv("ATTN_NVRTC", "/nowhere/libnvrtc.so", 1);
    std::fprintf(stderr, "%s\n", why_unavailable().value_or("nothing").c_str());
    std::exit(why_no_driver() ? 1 : 0);
  };
  EXPECT_EXIT(report(), ::testing::ExitedWithCode(0), "NVRTC.*/nowhere/libnvrtc.so.*ATTN_NVRTC");
}

TEST(WhyUnavailable, OldCompiler) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto report = [] {
    setenv("FAKE_NVRTC_MAJOR", "11", 1);
    std::fprintf(stderr, "%s\n", why_unavailable().value_or("nothing").c_str());
    std::exit(0);
  };
  EXPECT_EXIT(report(), ::testing::ExitedWithCode(0), "libcuda.so.1 is version 11.0, too old");
}

TEST(WhyUnavailable, NothingIsMissing) { EXPECT_EQ(why_unavailable(), std::nullopt); }

TEST_F(Driver, DevicesAreDescribed) {
  EXPECT_EQ(device_count(), 2);
  EXPECT_EQ(version_text(api().driver_version), "12.4");
  EXPECT_EQ(device_info(0).name, "Fake 0");
  EXPECT_EQ(device_info(0).arch, 90);
  EXPECT_EQ(device_info(1).arch, 86);
  EXPECT_EQ(device_info(1).sm_count, 132);
  EXPECT_EQ(device_info(0).shared_bytes_per_block, 232448);
  EXPECT_EQ(device_info(0).memory_bytes, std::int64_t{80} << 30);
  EXPECT_EQ(device_info(0).clock_khz, 0);  // this driver does not tell
  expect_contains(refusal(ErrorCode::invalid_argument, [] { device_info(2); }),
                  "device is cuda:2; accepted are cuda:0 to cuda:1");
  expect_contains(refusal(ErrorCode::invalid_argument, [] { device_info(-1); }), "cuda:-1");
}

TEST_F(Driver, ContextsAreRestored) {
  const auto current = [&] { return contexts->empty() ? nullptr : contexts->back(); };
  {
    const ContextGuard guard(1);
    EXPECT_EQ(current(), fake_context(1));
  }
  EXPECT_EQ(current(), nullptr);
  // The caller's own context is used where it is of the device.
  const CUcontext own = fake_context(0, false);
  (*contexts) = {own};
  {
    const ContextGuard same(0);
    EXPECT_EQ(current(), own);
    const ContextGuard other(1);
    EXPECT_EQ(current(), fake_context(1));
  }
  EXPECT_EQ((*contexts), std::vector<CUcontext>{own});
}

TEST_F(Driver, ErrorsAreNamed) {
  expect_contains(
      refusal(ErrorCode::device, [] { check(CUDA_ERROR_INVALID_VALUE, "cuThis of 3"); }),
      "cuThis of 3 gives CUDA_ERROR_INVALID_VALUE (a sentence of the driver)");
  const std::string sticky =
      refusal(ErrorCode::device, [] { check(CUDA_ERROR_ILLEGAL_ADDRESS, "cuThis"); });
  expect_contains(sticky, "CUDA_ERROR_ILLEGAL_ADDRESS");
  expect_contains(sticky, "was left by earlier work on this device");
  expect_contains(refusal(ErrorCode::out_of_memory, [] { DeviceBuffer(0, std::size_t{1} << 50); }),
                  "1125899906842624 bytes on cuda:0 gives CUDA_ERROR_OUT_OF_MEMORY");
  EXPECT_NO_THROW(check(CUDA_SUCCESS, "cuThis"));
}

TEST_F(Driver, BuffersCopy) {
  const std::vector<char> bytes{1, 2, 3, 4};
  DeviceBuffer buffer(1, 8);
  buffer.fill(7);
  buffer.upload(bytes.data(), 4, 2);
  std::vector<char> back(8);
  buffer.download(back.data(), 8);
  EXPECT_EQ(back, (std::vector<char>{7, 7, 1, 2, 3, 4, 7, 7}));
  EXPECT_THROW(buffer.upload(bytes.data(), 4, 5), Error);
  EXPECT_THROW(buffer.download(back.data(), 9), Error);
  EXPECT_EQ(fake->memory.size(), 1U);
  {
    const DeviceBuffer moved = std::move(buffer);
    EXPECT_EQ(moved.bytes(), 8U);
  }
  EXPECT_TRUE(fake->memory.empty());
}

TEST_F(Driver, MemoryMustBeOfTheDevice) {
  const Problem problem = parse_problem("b1_n8_h1_d8_f32");
  const DeviceBuffer here(1, 64), elsewhere(0, 64), managed(0, 64, true), pinned(1, 64);
  fake->memory[reinterpret_cast<CUdeviceptr>(pinned.data())].type = CU_MEMORYTYPE_HOST;
  std::array<float, 16> host{};
  const auto check_one = [&](void* data, std::int64_t size = 16) {
    const Tensor t = tensor(data, DType::f32, {size}, {DeviceType::cuda, 1});
    const core::NamedTensor named{"k", t};
    check_memory(problem, {&named, 1}, 1);
  };
  EXPECT_NO_THROW(check_one(here.data()));
  EXPECT_NO_THROW(check_one(static_cast<char*>(here.data()) + 32, 8));
  EXPECT_NO_THROW(check_one(managed.data()));
  EXPECT_NO_THROW(check_one(host.data(), 0));
  const auto refused = [&](void* data, const std::string& part) {
    const std::string message = refusal(ErrorCode::invalid_argument, [&] { check_one(data); });
    expect_contains(message, "k is f32[16]");
    expect_contains(message, part);
    expect_contains(message, "accepted is memory of cuda:1 or managed memory");
    expect_contains(message, "b1_n8_h1_d8_f32");
  };
  refused(elsewhere.data(), "which is memory of cuda:0");
  refused(pinned.data(), "which is page-locked memory of the host");
  refused(host.data(), "which is memory that the driver does not know");
  fake->failures["cuPointerGetAttributes"] = CUDA_ERROR_ILLEGAL_ADDRESS;
  expect_contains(refusal(ErrorCode::device, [&] { check_one(here.data()); }),
                  "left by earlier work");
}

TEST(Alignment, OfAddressAndStrides) {
  alignas(128) static float memory[1024];
  EXPECT_EQ(alignment_of(tensor(memory, {4, 32})), 128);
  EXPECT_EQ(alignment_of(tensor(memory, {4, 4})), 16);
  EXPECT_EQ(alignment_of(tensor(memory, {1, 5})), 128);  // a stride that is never taken
  EXPECT_EQ(alignment_of(tensor(memory, {4, 6})), 8);
  EXPECT_EQ(alignment_of(tensor(memory + 1, {4, 32})), 4);
  Tensor strided = tensor(memory, {4, 4, 32});
  strided.strides[0] = -24;
  EXPECT_EQ(alignment_of(strided), 32);
  strided.strides[0] = 0;
  EXPECT_EQ(alignment_of(strided), 128);
}

Compiled nothing() {
  Compiled compiled;
  compiled.cubin = {'x'};
  return compiled;
}

TEST_F(Driver, LaunchesAsConfigured) {
  {
    const Kernel kernel(0, "name", "entry", nothing());
    EXPECT_EQ(fake->libraries, 1);
    // All that a block may opt in to, less the kernel's static shared memory.
    EXPECT_EQ(fake->dynamic_shared_bytes, 231424);
    int parameter = 0;
    std::array<void*, 1> parameters{&parameter};
    int stream = 0;
    kernel.launch({.grid = {8, 2, 3},
                   .block = 384,
                   .shared_bytes = 200'000,
                   .cluster = 2,
                   .programmatic_dependent_launch = true},
                  &stream, parameters.data());
    EXPECT_EQ(fake->launch.gridDimX, 8U);
    EXPECT_EQ(fake->launch.gridDimY, 2U);
    EXPECT_EQ(fake->launch.gridDimZ, 3U);
    EXPECT_EQ(fake->launch.blockDimX, 384U);
    EXPECT_EQ(fake->launch.blockDimY * fake->launch.blockDimZ, 1U);
    EXPECT_EQ(fake->launch.sharedMemBytes, 200'000U);
    EXPECT_EQ(static_cast<void*>(fake->launch.hStream), &stream);
    ASSERT_EQ(fake->attributes.size(), 2U);
    EXPECT_EQ(fake->attributes[0].id, CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION);
    EXPECT_EQ(fake->attributes[0].value.clusterDim.x, 2U);
    EXPECT_EQ(fake->attributes[0].value.clusterDim.y, 1U);
    EXPECT_EQ(fake->attributes[1].id, CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION);
    EXPECT_EQ(fake->attributes[1].value.programmaticStreamSerializationAllowed, 1);
    kernel.launch({}, nullptr, parameters.data());
    EXPECT_TRUE(fake->attributes.empty());
    EXPECT_TRUE(contexts->empty());
  }
  EXPECT_EQ(fake->libraries, 0);
}

// A grid is 31 bits in x and 16 in y and z. A number of blocks that does not fit is told, not cut.
TEST_F(Driver, GridsThatNoDeviceTakesAreRefused) {
  const Kernel kernel(0, "name", "entry", nothing());
  constexpr std::int64_t kMost = (std::int64_t{1} << 31) - 1;
  fake->launch = {};
  const auto refused = [&](std::array<std::int64_t, 3> grid) {
    return refusal(ErrorCode::unsupported,
                   [&] { kernel.launch({.grid = grid}, nullptr, nullptr); });
  };
  expect_contains(refused({kMost + 1, 1, 1}),
                  "the launch of name on cuda:0 (grid 2147483648 x 1 x 1, 128 threads, 0 bytes of "
                  "shared memory, clusters of 1): its grid has 2147483648 blocks in dimension 0; "
                  "accepted are 1 to 2147483647");
  expect_contains(refused({(std::int64_t{1} << 32) + 1, 1, 1}), "has 4294967297 blocks");
  expect_contains(refused({1, 65536, 1}), "65536 blocks in dimension 1; accepted are 1 to 65535");
  expect_contains(refused({1, 1, 65536}), "dimension 2");
  expect_contains(refused({0, 1, 1}), "its grid has 0 blocks");
  EXPECT_EQ(fake->launch.gridDimX, 0U) << "something was launched";
  kernel.launch({.grid = {kMost, 65535, 65535}}, nullptr, nullptr);
  EXPECT_EQ(fake->launch.gridDimX, 2147483647U);
  EXPECT_EQ(fake->launch.gridDimY, 65535U);
}

// Where the compiler says nothing, the driver does.
TEST_F(Driver, ReportsOfTheDriver) {
  Compiled compiled = nothing();
  EXPECT_EQ(Kernel(0, "name", "entry", compiled).report().registers, 24);
  EXPECT_EQ(Kernel(0, "name", "entry", compiled).report().shared_bytes, 1024);
  compiled.report.registers = 168;
  EXPECT_EQ(Kernel(0, "name", "entry", compiled).report().registers, 168);
}

TEST_F(Driver, LaunchErrorsNameTheKernel) {
  const Kernel kernel(1, "name", "entry", nothing());
  fake->failures["cuLaunchKernelEx"] = CUDA_ERROR_ILLEGAL_ADDRESS;
  const std::string message = refusal(ErrorCode::device, [&] {
    kernel.launch({.grid = {7, 1, 1}}, nullptr, nullptr);
  });
  expect_contains(message, "the launch of name on cuda:1 (grid 7 x 1 x 1, 128 threads");
  expect_contains(message, "CUDA_ERROR_ILLEGAL_ADDRESS");
  expect_contains(message, "was left by earlier work");
  EXPECT_TRUE(contexts->empty());
}

TEST_F(Driver, AKernelThatDoesNotLoadIsUnloaded) {
  fake->failures["cuLibraryGetKernel"] = CUDA_ERROR_INVALID_VALUE;
  expect_contains(refusal(ErrorCode::device, [] { Kernel(0, "name", "entry", nothing()); }),
                  "looking up entry in name gives CUDA_ERROR_INVALID_VALUE");
  EXPECT_EQ(fake->libraries, 0);
}

TEST_F(Driver, KernelsAreKept) {
  const auto first = get_kernel(0, scale_source("2"), {});
  EXPECT_EQ(fake->compilations, 1);
  EXPECT_EQ(get_kernel(0, scale_source("2"), {}), first);
  EXPECT_EQ(fake->compilations, 1);
  EXPECT_NE(get_kernel(1, scale_source("2"), {}), first);
  EXPECT_NE(get_kernel(0, scale_source("3"), {}), first);
  Source options = scale_source("2");
  options.options = {"--use_fast_math"};
  EXPECT_NE(get_kernel(0, options, {}), first);
  EXPECT_EQ(fake->compilations, 4);
  EXPECT_EQ(first->device(), 0);
  EXPECT_EQ(first->name(), "scale");
}

TEST_F(Driver, ThreadsWaitForOneCompilation) {
  fake->compilations = 0;
  std::vector<std::future<std::shared_ptr<const Kernel>>> kernels;
  for (int i = 0; i < 8; ++i) {
    kernels.push_back(std::async(std::launch::async, [i] {
      return get_kernel(0, scale_source(i % 2 == 0 ? "5" : "6"), {});
    }));
  }
  const auto even = kernels[0].get();
  const auto odd = kernels[1].get();
  EXPECT_NE(even, odd);
  for (std::size_t i = 2; i < kernels.size(); ++i) {
    EXPECT_EQ(kernels[i].get(), i % 2 == 0 ? even : odd);
  }
  EXPECT_EQ(fake->compilations, 2);
}

TEST_F(Driver, KernelsAreCompiledSideBySide) {
  constexpr std::size_t kKernels = 6;
  const auto known = get_kernel(0, scale_source("10"), {});
  fake->compilations = 0;
  fake->most_compiling = 0;
  std::vector<std::shared_ptr<const Kernel>> kernels(kKernels);
  std::vector<KernelRequest> requests;
  for (std::size_t i = 0; i < kKernels; ++i) {  // the last is asked for twice
    const std::size_t factor = 10 + std::min(i, kKernels - 2);
    requests.push_back({scale_source(std::to_string(factor)), &kernels[i]});
  }
  fake->compile_together = 2;
  get_kernels(0, requests, {});
  fake->compile_together = 1;
  EXPECT_EQ(fake->compilations, 4);
  EXPECT_GT(fake->most_compiling, 1);
  EXPECT_EQ(kernels[0], known);
  for (std::size_t i = 0; i < kKernels; ++i) {
    EXPECT_EQ(kernels[i], get_kernel(0, requests[i].source, {})) << i;
  }
  EXPECT_EQ(fake->compilations, 4);

  // An error is the caller's, and what did load is kept.
  fake->failures["cuLibraryGetKernel"] = CUDA_ERROR_INVALID_VALUE;
  kernels.assign(2, nullptr);
  requests = {{scale_source("10"), &kernels[0]}, {scale_source("20"), &kernels[1]}};
  expect_contains(refusal(ErrorCode::device, [&] { get_kernels(0, requests, {}); }),
                  "looking up scale in scale");
  EXPECT_EQ(kernels[0], known);
  EXPECT_EQ(kernels[1], nullptr);
}

// A kernel that could not be had is tried again.
TEST_F(Driver, ErrorsAreNotKept) {
  fake->failures["cuLibraryGetKernel"] = CUDA_ERROR_INVALID_VALUE;
  EXPECT_THROW(get_kernel(0, scale_source("4"), {}), Error);
  fake->failures.clear();
  EXPECT_NO_THROW(get_kernel(0, scale_source("4"), {}));
}

}  // namespace
}  // namespace attn::cuda
