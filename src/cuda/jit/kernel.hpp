// Kernels loaded onto a device, and their launch.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "attn/context.hpp"
#include "cuda/driver/types.hpp"
#include "cuda/jit/compile.hpp"

namespace attn::cuda {

struct LaunchConfig {
  // Blocks in x, y, z: up to 2^31 - 1, 65535 and 65535.
  std::array<std::int64_t, 3> grid{1, 1, 1};
  unsigned block = 128;       // threads of a block, in x
  unsigned shared_bytes = 0;  // dynamic, of one block; up to what the device has
  unsigned cluster = 1;       // blocks of a cluster, in x; divides grid[0]
  // The kernel may start before the one ahead of it in the stream has ended, and waits itself where
  // it must (griddepcontrol.wait). Compute capability 9.0.
  bool programmatic_dependent_launch = false;
};

// A kernel of one device. Immutable; threads may share it. Unloaded with the last pointer.
class Kernel {
 public:
  // The cubin is of this device's architecture. Throws Error(device | out_of_memory).
  Kernel(int device, std::string name, const std::string& entry, const Compiled& compiled);
  ~Kernel();
  Kernel(const Kernel&) = delete;
  Kernel& operator=(const Kernel&) = delete;

  // Puts the kernel into the stream (CUstream, null: the default stream) and returns; args points
  // to the address of each parameter, which are copied. Never waits; can be captured in a graph.
  // Throws Error(unsupported) for a grid that is larger than any GPU takes, Error(device) with the
  // driver's name for what else is wrong.
  void launch(const LaunchConfig& config, void* stream, void** args) const;

  // Blocks of `block` threads with `shared_bytes` of dynamic shared memory that fit on an SM.
  int max_blocks_per_sm(unsigned block, unsigned shared_bytes) const;
  // Clusters of this configuration that run at once on the whole device.
  int max_active_clusters(const LaunchConfig& config) const;

  int device() const noexcept { return device_; }
  const std::string& name() const noexcept { return name_; }
  const Report& report() const noexcept { return report_; }

 private:
  int device_ = 0;
  std::string name_;
  Report report_;
  CUlibrary library_ = nullptr;
  CUkernel kernel_ = nullptr;
};

// The kernel of `source` for `device`: kept in memory for the process, else compile(). Threads that
// ask for the same one wait for one compilation; those that ask for others do not. Throws as
// compile() and Kernel().
std::shared_ptr<const Kernel> get_kernel(int device, const Source& source, const Context& context);

struct KernelRequest {
  Source source;
  std::shared_ptr<const Kernel>* kernel;  // set
};
// get_kernel() of each. Those that are not in memory are made side by side, one by the calling
// thread and each other by a thread of its own, since compilers run for seconds: four kernels of a
// backward pass take as long as the longest of them. One message at a time goes to context.log.
// Returns, or throws an error of one of them, when all have ended.
void get_kernels(int device, const std::vector<KernelRequest>& requests, const Context& context);

}  // namespace attn::cuda
