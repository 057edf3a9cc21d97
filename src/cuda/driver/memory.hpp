// Device memory, streams, events and graphs that free themselves: for tests, tools and benches. A
// run of attention makes none of them.
#pragma once

#include <cstddef>
#include <utility>

#include "cuda/driver/device.hpp"

namespace attn::cuda {

// All members throw Error(out_of_memory | device | unavailable). Streams are CUstream or null, the
// legacy default stream. Objects may be used by several threads as far as the driver allows.

class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  // The memory is not initialised. managed: the host can reach it as well.
  explicit DeviceBuffer(int device, std::size_t bytes, bool managed = false);
  ~DeviceBuffer();
  DeviceBuffer(DeviceBuffer&& other) noexcept { swap(other); }
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
    swap(other);
    return *this;
  }

  void* data() const noexcept { return reinterpret_cast<void*>(pointer_); }
  std::size_t bytes() const noexcept { return bytes_; }
  int device() const noexcept { return device_; }

  // Copies of `bytes` from or to `offset`; done when they return. They wait for the default stream
  // alone: work in a Stream that writes the buffer must be waited for before.
  void upload(const void* host, std::size_t bytes, std::size_t offset = 0);
  void download(void* host, std::size_t bytes, std::size_t offset = 0) const;
  void fill(unsigned char value, void* stream = nullptr);  // in stream order

 private:
  void swap(DeviceBuffer& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(pointer_, other.pointer_);
    std::swap(bytes_, other.bytes_);
  }
  int device_ = 0;
  CUdeviceptr pointer_ = 0;
  std::size_t bytes_ = 0;
};

// A stream that does not wait for the default stream.
class Stream {
 public:
  explicit Stream(int device);
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  void* handle() const noexcept { return stream_; }
  int device() const noexcept { return device_; }
  void synchronize() const;

 private:
  int device_ = 0;
  CUstream stream_ = nullptr;
};

// A point in a stream, with its time.
class Event {
 public:
  explicit Event(int device);
  ~Event();
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  void* handle() const noexcept { return event_; }
  void record(void* stream);
  void synchronize() const;

 private:
  int device_ = 0;
  CUevent event_ = nullptr;
};
// The time between two events in seconds; both were recorded and are waited for.
double seconds_between(const Event& start, const Event& end);

// What `work` puts into `stream`, as a graph to launch again. The stream is not the default one.
class Graph {
 public:
  template <class Work>
  Graph(const Stream& stream, Work&& work) : device_(stream.device()) {
    begin(stream);
    try {
      std::forward<Work>(work)();
    } catch (...) {
      abandon(stream);
      throw;
    }
    end(stream);
  }
  ~Graph();
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  void launch(void* stream) const;

 private:
  static void begin(const Stream& stream);
  static void abandon(const Stream& stream) noexcept;
  void end(const Stream& stream);

  int device_ = 0;
  CUgraphExec executable_ = nullptr;
};

// Waits for all work of the device.
void synchronize(int device);

}  // namespace attn::cuda
