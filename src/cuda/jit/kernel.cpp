#include "cuda/jit/kernel.hpp"

#include <fmt/format.h>

#include <cstddef>
#include <future>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "attn/error.hpp"
#include "core/first_made.hpp"
#include "core/fork_safe.hpp"
#include "cuda/driver/device.hpp"

namespace attn::cuda {
namespace {

// Loading may allocate, which a capturing thread may not do unless it says that it is no part of
// the capture.
class RelaxedCapture {
 public:
  RelaxedCapture() { api().cuThreadExchangeStreamCaptureMode(&mode_); }
  ~RelaxedCapture() { api().cuThreadExchangeStreamCaptureMode(&mode_); }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;
};

// The driver takes a kernel of a library wherever it takes a function; it then runs in the context
// that is current.
CUfunction function_of(CUkernel kernel) { return reinterpret_cast<CUfunction>(kernel); }

// Attributes point into this object.
struct DriverConfig {
  explicit DriverConfig(const LaunchConfig& config, void* stream) {
    driver = {.gridDimX = static_cast<unsigned>(config.grid[0]),
              .gridDimY = static_cast<unsigned>(config.grid[1]),
              .gridDimZ = static_cast<unsigned>(config.grid[2]),
              .blockDimX = config.block,
              .blockDimY = 1,
              .blockDimZ = 1,
              .sharedMemBytes = config.shared_bytes,
              .hStream = static_cast<CUstream>(stream),
              .attrs = attributes.data(),
              .numAttrs = 0};
    if (config.cluster > 1) {
      CUlaunchAttribute& attribute = add(CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION);
      attribute.value.clusterDim = {config.cluster, 1, 1};
    }
    if (config.programmatic_dependent_launch) {
      CUlaunchAttribute& attribute = add(CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION);
      attribute.value.programmaticStreamSerializationAllowed = 1;
    }
  }
  DriverConfig(const DriverConfig&) = delete;
  DriverConfig& operator=(const DriverConfig&) = delete;

  CUlaunchAttribute& add(CUlaunchAttributeID id) {
    CUlaunchAttribute& attribute = attributes[driver.numAttrs++];
    attribute.id = id;
    return attribute;
  }

  std::array<CUlaunchAttribute, 2> attributes{};
  CUlaunchConfig driver{};
};

std::string launch_text(const std::string& name, int device, const LaunchConfig& config) {
  return fmt::format(
      "the launch of {} on cuda:{} (grid {} x {} x {}, {} threads, {} bytes of shared "
      "memory, clusters of {})",
      name, device, config.grid[0], config.grid[1], config.grid[2], config.block,
      config.shared_bytes, config.cluster);
}

void check_grid(const std::string& name, int device, const LaunchConfig& config) {
  constexpr std::array<std::int64_t, 3> kMost{(std::int64_t{1} << 31) - 1, 65535, 65535};
  for (std::size_t i = 0; i < kMost.size(); ++i) {
    if (config.grid[i] >= 1 && config.grid[i] <= kMost[i]) continue;
    throw Error(ErrorCode::unsupported,
                fmt::format("{}: its grid has {} blocks in dimension {}; accepted are 1 to {}",
                            launch_text(name, device, config), config.grid[i], i, kMost[i]));
  }
}

}  // namespace

Kernel::Kernel(int device, std::string name, const std::string& entry, const Compiled& compiled)
    : device_(device), name_(std::move(name)), report_(compiled.report) {
  const DeviceInfo& info = device_info(device);
  const ContextGuard guard(device);
  const RelaxedCapture relaxed;
  check(api().cuLibraryLoadData(&library_, compiled.cubin.data(), nullptr, nullptr, 0, nullptr,
                                nullptr, 0),
        fmt::format("loading {} onto cuda:{} ({})", name_, device, info.name));
  try {
    check(api().cuLibraryGetKernel(&kernel_, library_, entry.c_str()),
          fmt::format("looking up {} in {}", entry, name_));
    // Drivers load a function at its first use; that may wait for the device, so it is done here.
    CUfunction function = nullptr;
    check(api().cuKernelGetFunction(&function, kernel_), fmt::format("loading {}", entry));
    const auto attribute = [&](CUfunction_attribute id) {
      int value = 0;
      check(api().cuKernelGetAttribute(&value, id, kernel_, device), "cuKernelGetAttribute");
      return value;
    };
    const int shared = attribute(CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES);
    if (report_.registers == 0) {  // a compiler whose log has no report
      report_.registers = attribute(CU_FUNC_ATTRIBUTE_NUM_REGS);
      report_.local_bytes = attribute(CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES);
      report_.shared_bytes = shared;
    }
    check(api().cuKernelSetAttribute(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                                     static_cast<int>(info.shared_bytes_per_block) - shared,
                                     kernel_, device),
          fmt::format("allowing {} all shared memory", name_));
  } catch (...) {
    api().cuLibraryUnload(library_);
    throw;
  }
}

Kernel::~Kernel() { api().cuLibraryUnload(library_); }

void Kernel::launch(const LaunchConfig& config, void* stream, void** args) const {
  check_grid(name_, device_, config);
  const ContextGuard guard(device_);
  const DriverConfig driver(config, stream);
  const CUresult result =
      api().cuLaunchKernelEx(&driver.driver, function_of(kernel_), args, nullptr);
  if (result != CUDA_SUCCESS) check(result, launch_text(name_, device_, config));
}

int Kernel::max_blocks_per_sm(unsigned block, unsigned shared_bytes) const {
  const ContextGuard guard(device_);
  int blocks = 0;
  check(api().cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, function_of(kernel_),
                                                          static_cast<int>(block), shared_bytes),
        "cuOccupancyMaxActiveBlocksPerMultiprocessor of " + name_);
  return blocks;
}

int Kernel::max_active_clusters(const LaunchConfig& config) const {
  const ContextGuard guard(device_);
  const DriverConfig driver(config, nullptr);
  int clusters = 0;
  check(api().cuOccupancyMaxActiveClusters(&clusters, function_of(kernel_), &driver.driver),
        "cuOccupancyMaxActiveClusters of " + name_);
  return clusters;
}

namespace {

struct Slot {
  std::mutex busy;
  std::shared_ptr<const Kernel> kernel;
};

struct Kernels {
  core::ForkSafe<std::mutex> mutex;
  std::unordered_map<std::string, std::shared_ptr<Slot>> slots;
};

// Never destroyed: at exit the driver may be gone before this.
Kernels& kernels() {
  static constinit core::FirstMade<Kernels> all;
  return all.get([] { return Kernels(); });
}

std::string memory_key(int device, const Source& source) {
  std::string key = fmt::format("{}\n{}\n", device, source.entry);
  for (const std::string& option : source.options) key += option + "\n";
  return key + source.text;
}

std::shared_ptr<Slot> slot_of(int device, const Source& source) {
  const std::lock_guard lock(kernels().mutex);
  std::shared_ptr<Slot>& found = kernels().slots[memory_key(device, source)];
  if (found == nullptr) found = std::make_shared<Slot>();
  return found;
}

// Null where it is not there yet, or being made.
std::shared_ptr<const Kernel> if_known(Slot& slot) {
  const std::unique_lock lock(slot.busy, std::try_to_lock);
  return lock.owns_lock() ? slot.kernel : nullptr;
}

}  // namespace

std::shared_ptr<const Kernel> get_kernel(int device, const Source& source, const Context& context) {
  const std::shared_ptr<Slot> slot = slot_of(device, source);
  const std::lock_guard lock(slot->busy);
  if (slot->kernel == nullptr) {
    const Arch arch = arch_of_capability(device_info(device).arch);
    slot->kernel = std::make_shared<const Kernel>(device, source.name, source.entry,
                                                  compile(source, arch, context));
  }
  return slot->kernel;
}

void get_kernels(int device, const std::vector<KernelRequest>& requests, const Context& context) {
  std::mutex log_mutex;
  Context shared = context;
  if (context.log) {
    shared.log = [&](std::string_view message) {
      const std::lock_guard lock(log_mutex);
      context.log(message);
    };
  }
  const auto make = [&](const KernelRequest* request) {
    *request->kernel = get_kernel(device, request->source, shared);
  };
  std::vector<const KernelRequest*> missing;
  for (const KernelRequest& request : requests) {
    *request.kernel = if_known(*slot_of(device, request.source));
    if (*request.kernel == nullptr) missing.push_back(&request);
  }
  if (missing.empty()) return;
  std::vector<std::future<void>> others;  // whose destructors wait
  for (std::size_t i = 1; i < missing.size(); ++i) {
    others.push_back(std::async(make, missing[i]));
  }
  make(missing.front());
  for (std::future<void>& other : others) other.get();
}

}  // namespace attn::cuda
