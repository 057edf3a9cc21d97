// What calls of GPUs of one process keep from one to the next.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include "attn/run.hpp"
#include "cuda/copy_rows.hpp"
#include "cuda/driver/memory.hpp"
#include "dist/plan_data.hpp"

namespace attn::dist {

// Streams, events and memory of a rank's calls. A call takes them in one order, so the next one
// finds what it needs. Others may read what was taken until they come to the next call.
class PeerMemory {
 public:
  explicit PeerMemory(Device device)
      : copies(device.index), second(device.index), device_(device) {}

  // Before the first take of a call; nothing of the last one is used any more.
  void begin() { buffers_ = events_ = 0; }
  void* take(std::size_t bytes);
  // Row-major, on the device.
  Tensor take(DType dtype, std::vector<std::int64_t> shape);
  // Not recorded yet, or recorded in the stream.
  cuda::Event& event();
  void* record(void* stream);

  // Lengths and tables of the rank's own problem, on the device: the same for all calls.
  const Inputs& tables(const PlanData& plan);

  // Whether kernels read memory of all devices, those of a call's letters: asked once.
  template <class Letters, class DeviceOf>
  bool reads(const Letters& letters, const DeviceOf& device_of) {
    if (!reads_) {
      reads_ = std::ranges::all_of(letters, [&](const auto& letter) {
        return cuda::can_read(device_.index, device_of(letter).index);
      });
    }
    return *reads_;
  }

  cuda::Stream copies, second;  // K and V come; every other group of heads is worked on
  Device device() const { return device_; }

 private:
  Device device_;
  std::size_t buffers_ = 0, events_ = 0;  // taken
  std::deque<cuda::DeviceBuffer> buffer_{}, table_{};
  std::deque<cuda::Event> event_{};
  std::optional<Inputs> tables_{};
  std::optional<bool> reads_{};
};

}  // namespace attn::dist
