#include "cuda/driver/memory.hpp"

#include <fmt/format.h>

#include "attn/error.hpp"

namespace attn::cuda {
namespace {

CUstream stream_of(void* handle) { return static_cast<CUstream>(handle); }

void check_range(std::size_t offset, std::size_t bytes, std::size_t size) {
  if (offset > size || bytes > size - offset) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("bytes {} to {} are not in a device buffer of {} bytes", offset,
                            offset + bytes, size));
  }
}

// With unified addressing the driver sees by the address which side is the host.
void copy(CUdeviceptr to, CUdeviceptr from, std::size_t bytes) {
  if (bytes == 0) return;
  check(api().cuMemcpyAsync(to, from, bytes, nullptr), fmt::format("cuMemcpy of {} bytes", bytes));
  check(api().cuStreamSynchronize(nullptr), fmt::format("waiting for a copy of {} bytes", bytes));
}

}  // namespace

DeviceBuffer::DeviceBuffer(int device, std::size_t bytes, bool managed)
    : device_(device), bytes_(bytes) {
  const ContextGuard guard(device);
  if (bytes == 0) return;
  check(managed ? api().cuMemAllocManaged(&pointer_, bytes, CU_MEM_ATTACH_GLOBAL)
                : api().cuMemAlloc(&pointer_, bytes),
        fmt::format("cuMemAlloc of {} bytes on cuda:{}", bytes, device));
}

DeviceBuffer::~DeviceBuffer() {
  if (pointer_ != 0) api().cuMemFree(pointer_);
}

// NOLINTNEXTLINE(readability-make-member-function-const): it changes what the buffer holds
void DeviceBuffer::upload(const void* host, std::size_t bytes, std::size_t offset) {
  check_range(offset, bytes, bytes_);
  const ContextGuard guard(device_);
  copy(pointer_ + offset, reinterpret_cast<CUdeviceptr>(host), bytes);
}

void DeviceBuffer::download(void* host, std::size_t bytes, std::size_t offset) const {
  check_range(offset, bytes, bytes_);
  const ContextGuard guard(device_);
  copy(reinterpret_cast<CUdeviceptr>(host), pointer_ + offset, bytes);
}

void DeviceBuffer::fill(unsigned char value, void* stream) {
  if (bytes_ == 0) return;
  const ContextGuard guard(device_);
  check(api().cuMemsetD8Async(pointer_, value, bytes_, stream_of(stream)),
        fmt::format("cuMemsetD8Async of {} bytes", bytes_));
}

Stream::Stream(int device) : device_(device) {
  const ContextGuard guard(device);
  check(api().cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
}

Stream::~Stream() { api().cuStreamDestroy(stream_); }

void Stream::synchronize() const {
  const ContextGuard guard(device_);
  check(api().cuStreamSynchronize(stream_), "cuStreamSynchronize");
}

Event::Event(int device) : device_(device) {
  const ContextGuard guard(device);
  check(api().cuEventCreate(&event_, CU_EVENT_DEFAULT), "cuEventCreate");
}

Event::~Event() { api().cuEventDestroy(event_); }

void Event::record(void* stream) {
  const ContextGuard guard(device_);
  check(api().cuEventRecord(event_, stream_of(stream)), "cuEventRecord");
}

void Event::synchronize() const {
  const ContextGuard guard(device_);
  check(api().cuEventSynchronize(event_), "cuEventSynchronize");
}

double seconds_between(const Event& start, const Event& end) {
  end.synchronize();
  float milliseconds = 0;
  check(api().cuEventElapsedTime(&milliseconds, static_cast<CUevent>(start.handle()),
                                 static_cast<CUevent>(end.handle())),
        "cuEventElapsedTime");
  return static_cast<double>(milliseconds) * 1e-3;
}

void Graph::begin(const Stream& stream) {
  const ContextGuard guard(stream.device());
  check(api().cuStreamBeginCapture(stream_of(stream.handle()), CU_STREAM_CAPTURE_MODE_GLOBAL),
        "cuStreamBeginCapture");
}

void Graph::abandon(const Stream& stream) noexcept {
  CUgraph graph = nullptr;
  api().cuStreamEndCapture(stream_of(stream.handle()), &graph);
  if (graph != nullptr) api().cuGraphDestroy(graph);
}

void Graph::end(const Stream& stream) {
  const ContextGuard guard(device_);
  CUgraph graph = nullptr;
  check(api().cuStreamEndCapture(stream_of(stream.handle()), &graph), "cuStreamEndCapture");
  const CUresult result = api().cuGraphInstantiateWithFlags(&executable_, graph, 0);
  api().cuGraphDestroy(graph);
  check(result, "cuGraphInstantiate");
}

Graph::~Graph() {
  if (executable_ != nullptr) api().cuGraphExecDestroy(executable_);
}

void Graph::launch(void* stream) const {
  const ContextGuard guard(device_);
  check(api().cuGraphLaunch(executable_, stream_of(stream)), "cuGraphLaunch");
}

void synchronize(int device) {
  const ContextGuard guard(device);
  check(api().cuCtxSynchronize(), fmt::format("waiting for cuda:{}", device));
}

}  // namespace attn::cuda
