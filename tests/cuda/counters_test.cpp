// Work counters in several contexts of a device, on the driver that pretends. A counter is a
// variable of the kernel's module, of which every context has its own, and a launch names one by
// its number: so no pointer that is good in one context only is given to a launch in another.
#include <dlfcn.h>

#include <cstring>

#include "attn/run.hpp"
#include "cuda/device/params.cuh"
#include "cuda/driver/memory.hpp"
#include "cuda/support.hpp"
#include "cuda/temporary_folder.hpp"
#include "fake_driver/fake_driver.hpp"

namespace attn::cuda {
namespace {

const Environment kNoCache("ATTN_CACHE_DIR", "");
const Environment kCompiler("ATTN_NVRTC", ATTN_FAKE_DRIVER);
constexpr Device kHopper{DeviceType::cuda, 0};

class Counters : public ::testing::Test {
 public:
  Counters(const Counters&) = delete;
  Counters& operator=(const Counters&) = delete;

 protected:
  Counters() {
    void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    fake = reinterpret_cast<FakeDriver* (*)()>(dlsym(library, "attn_fake_driver"))();
    contexts =
        reinterpret_cast<std::vector<CUcontext>* (*)()>(dlsym(library, "attn_fake_contexts"))();
    fake->parameter_bytes = sizeof(device::ForwardParams);
  }
  ~Counters() override {
    contexts->clear();
    fake->captures.clear();
    fake->parameter_bytes = 0;
  }
  // Runs in `context`; what the kernel was told. More tiles than multiprocessors, so that they are
  // dealt out by a counter.
  int counter_in(CUcontext context, void* stream) {
    *contexts = {context};
    const auto view = [&](void* data) {
      return tensor(data, DType::bf16, {1, 64 * 200, 2, 64}, kHopper);
    };
    Context run;
    run.stream = stream;
    forward({}, {.q = view(q.data()), .k = view(k.data()), .v = view(v.data())},
            {.o = view(o.data())}, {.algorithm = Algorithm::flash_attention_2}, run);
    EXPECT_EQ(fake->launch_context, context);
    EXPECT_EQ(*contexts, std::vector<CUcontext>{context});
    device::ForwardParams parameters{};
    std::memcpy(&parameters, fake->parameter.data(), sizeof(parameters));
    EXPECT_GT(parameters.num_tiles, 132);
    EXPECT_EQ(fake->launch.gridDimX, 132U);
    return parameters.counter;
  }

  FakeDriver* fake = nullptr;
  std::vector<CUcontext>* contexts = nullptr;  // of this thread
  static constexpr std::size_t kBytes = std::size_t{2} * 64 * 200 * 2 * 64;
  DeviceBuffer q{0, kBytes}, k{0, kBytes}, v{0, kBytes}, o{0, kBytes};
};

TEST_F(Counters, AreNumbersThatHoldInEveryContext) {
  const CUcontext primary = fake_context(0), other = fake_context(0, false);
  int one = 0, two = 0;
  const int first = counter_in(primary, &one);
  const std::size_t allocated = fake->memory.size();
  const int libraries = fake->libraries;
  EXPECT_GE(first, 0);
  EXPECT_LT(first, device::kStreamCounters);
  // Work of a stream runs in order, whatever the context: one counter. Others have their own.
  EXPECT_EQ(counter_in(other, &one), first);
  const int second = counter_in(other, &two);
  EXPECT_NE(second, first);
  EXPECT_EQ(counter_in(primary, &two), second);
  EXPECT_EQ(counter_in(primary, &one), first);
  // A library is loaded once and has a module in each context; nothing is allocated for counters.
  EXPECT_EQ(fake->memory.size(), allocated);
  EXPECT_EQ(fake->libraries, libraries);
}

TEST_F(Counters, OfACapturedLaunchAreFoundWhenItRuns) {
  int stream = 0;
  fake->captures[reinterpret_cast<CUstream>(&stream)] = CU_STREAM_CAPTURE_STATUS_ACTIVE;
  const std::size_t allocated = fake->memory.size();
  EXPECT_EQ(counter_in(fake_context(0, false), &stream), device::kGridCounter);
  EXPECT_EQ(fake->memory.size(), allocated);
}

// The last test: it uses all counters up.
TEST_F(Counters, AreNotTakenFromAnotherStream) {
  std::vector<char> streams(device::kStreamCounters + 1);
  std::vector<bool> taken(device::kStreamCounters);
  int without = 0;
  for (char& stream : streams) {
    const int counter = counter_in(fake_context(0), &stream);
    if (counter == device::kNoCounter) {
      ++without;
      continue;
    }
    ASSERT_GE(counter, 0);
    ASSERT_LT(counter, device::kStreamCounters);
    EXPECT_FALSE(taken[static_cast<std::size_t>(counter)]);
    taken[static_cast<std::size_t>(counter)] = true;
  }
  EXPECT_GT(without, 0);
}

}  // namespace
}  // namespace attn::cuda
