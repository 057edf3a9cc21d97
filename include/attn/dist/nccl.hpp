// Ranks of NCCL for attn/dist.hpp. Header-only, compiled with the program's own nccl.h and linked
// with its NCCL and CUDA runtime: the library itself knows neither.
//
//   ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
//   config.blocking = 0;
//   ncclCommInitRankConfig(&comm, ranks, id, rank, &config);
//   attn::dist::Group group = attn::dist::nccl(comm);  // Options::local.device: the comm's GPU
//
// One GPU a rank. Messages of a call are one group of ncclSend and ncclRecv in a stream of the
// engine's own; what lies in memory of the host goes through memory of the GPU. A rank that is
// silent is given up by its time-out, for which the communicator must be one that does not block
// (config.blocking 0): it is aborted then, and the group is of no use.
#pragma once

#include <cuda_runtime.h>
#include <nccl.h>

#include <chrono>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "attn/dist.hpp"
#include "attn/error.hpp"

namespace attn::dist {

class NcclEngine : public Engine {
 public:
  // `comm` lives as long as the engine, which alone uses it meanwhile; the engine aborts it where
  // the group fails, and after that nobody may.
  explicit NcclEngine(ncclComm_t comm) : comm_(comm) {
    until_ready(std::chrono::steady_clock::now() + std::chrono::seconds(60), "making the group");
    check(ncclCommUserRank(comm_, &rank_), "ncclCommUserRank");
    check(ncclCommCount(comm_, &size_), "ncclCommCount");
    check(ncclCommCuDevice(comm_, &device_), "ncclCommCuDevice");
    const OnDevice here(device_);
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate");
  }
  NcclEngine(const NcclEngine&) = delete;
  NcclEngine& operator=(const NcclEngine&) = delete;
  ~NcclEngine() override {
    const OnDevice here(device_);
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
    if (staged_ != nullptr) cudaFree(staged_);
  }

  std::string_view name() const noexcept override { return "nccl"; }
  int rank() const noexcept override { return rank_; }
  int size() const noexcept override { return size_; }
  bool carries(Device device) const noexcept override {
    return device.type == DeviceType::cpu || device == Device{DeviceType::cuda, device_};
  }

  void exchange(std::span<const Send> sends, std::span<const Receive> receives,
                std::chrono::milliseconds timeout) override {
    if (!failure_.empty()) refuse();
    const OnDevice here(device_);
    const auto deadline = std::chrono::steady_clock::now() + timeout;
    std::size_t bytes = 0;
    for (const Send& s : sends) bytes += staged_bytes(s.device, s.bytes);
    for (const Receive& r : receives) bytes += staged_bytes(r.device, r.bytes);
    stage(bytes);
    std::vector<void*> received;
    std::vector<const void*> sent;
    char* next = static_cast<char*>(staged_);
    for (const Receive& r : receives) {
      const std::size_t taken = staged_bytes(r.device, r.bytes);
      received.push_back(taken > 0 ? next : r.data);
      next += taken;
    }
    for (const Send& s : sends) {
      sent.push_back(s.data);
      const std::size_t taken = staged_bytes(s.device, s.bytes);
      if (taken == 0) continue;
      check(cudaMemcpyAsync(next, s.data, s.bytes, cudaMemcpyHostToDevice, stream_),
            "a copy to the GPU");
      sent.back() = next;
      next += taken;
    }
    // An error is told when the group has ended: what a thread calls within one only waits for
    // that.
    ncclResult_t first = ncclGroupStart();
    const auto keep = [&](ncclResult_t result) {
      if (first == ncclSuccess || first == ncclInProgress) first = result;
    };
    for (std::size_t i = 0; i < receives.size(); ++i) {
      const Receive& r = receives[i];
      if (r.bytes > 0) keep(ncclRecv(received[i], r.bytes, ncclChar, r.from, comm_, stream_));
    }
    for (std::size_t i = 0; i < sends.size(); ++i) {
      const Send& s = sends[i];
      if (s.bytes > 0) keep(ncclSend(sent[i], s.bytes, ncclChar, s.to, comm_, stream_));
    }
    keep(ncclGroupEnd());
    enqueue(first, "ncclSend or ncclRecv");
    const std::string waits = "rank " + std::to_string(rank_) + " waits for others";
    until_ready(deadline, waits);
    finish(deadline, waits);
    for (std::size_t i = 0; i < receives.size(); ++i) {
      if (received[i] == receives[i].data) continue;
      check(cudaMemcpyAsync(receives[i].data, received[i], receives[i].bytes,
                            cudaMemcpyDeviceToHost, stream_),
            "a copy from the GPU");
    }
    finish(deadline, waits);
  }

  // The others' time-outs tell them: NCCL carries no text.
  void fail(const std::string& cause) noexcept override {
    if (!failure_.empty()) return;
    try {
      failure_ = cause.empty() ? "a rank failed" : cause;
    } catch (...) {  // no memory for the text
      failure_ = "failed";
    }
    ncclCommAbort(comm_);
  }

 private:
  class OnDevice {
   public:
    explicit OnDevice(int device) {
      cudaGetDevice(&before_);
      cudaSetDevice(device);
    }
    OnDevice(const OnDevice&) = delete;
    OnDevice& operator=(const OnDevice&) = delete;
    ~OnDevice() { cudaSetDevice(before_); }

   private:
    int before_ = 0;
  };

  static std::size_t staged_bytes(Device device, std::size_t bytes) {
    constexpr std::size_t kAlign = 256;
    return device.type == DeviceType::cuda ? 0 : (bytes + kAlign - 1) / kAlign * kAlign;
  }
  void stage(std::size_t bytes) {
    if (bytes <= staged_size_) return;
    if (staged_ != nullptr) cudaFree(staged_);
    staged_ = nullptr;
    staged_size_ = 0;
    check(cudaMalloc(&staged_, bytes), "cudaMalloc");
    staged_size_ = bytes;
  }

  [[noreturn]] void refuse() const { throw Error(ErrorCode::unavailable, failure_); }
  [[noreturn]] void give_up(const std::string& cause) {
    fail("rank " + std::to_string(rank_) + ": " + cause);
    refuse();
  }
  void check(cudaError_t code, const char* call) {
    if (code != cudaSuccess) give_up(std::string(call) + ": " + cudaGetErrorString(code));
  }
  void check(ncclResult_t code, const char* call) {
    if (code != ncclSuccess) give_up(std::string(call) + ": " + ncclGetErrorString(code));
  }
  // A communicator that does not block goes on by itself.
  void enqueue(ncclResult_t code, const char* call) {
    if (code != ncclInProgress) check(code, call);
  }
  void look(std::chrono::steady_clock::time_point deadline, const std::string& waits) {
    if (std::chrono::steady_clock::now() >= deadline) {
      give_up("the others did not come in time, " + waits);
    }
    std::this_thread::yield();
  }
  // Until NCCL has taken what it was given.
  void until_ready(std::chrono::steady_clock::time_point deadline, const std::string& waits) {
    for (ncclResult_t state = ncclInProgress; state == ncclInProgress;) {
      check(ncclCommGetAsyncError(comm_, &state), "ncclCommGetAsyncError");
      enqueue(state, "NCCL");
      if (state == ncclInProgress) look(deadline, waits);
    }
  }
  // Until the stream has done it.
  void finish(std::chrono::steady_clock::time_point deadline, const std::string& waits) {
    for (cudaError_t state = cudaErrorNotReady; state == cudaErrorNotReady;) {
      state = cudaStreamQuery(stream_);
      if (state == cudaSuccess) return;
      if (state != cudaErrorNotReady) check(state, "a message");
      ncclResult_t error = ncclSuccess;
      check(ncclCommGetAsyncError(comm_, &error), "ncclCommGetAsyncError");
      enqueue(error, "NCCL");
      look(deadline, waits);
    }
  }

  ncclComm_t comm_;
  int rank_ = 0, size_ = 1, device_ = 0;
  cudaStream_t stream_ = nullptr;
  void* staged_ = nullptr;  // of messages that lie in memory of the host
  std::size_t staged_size_ = 0;
  std::string failure_;  // of the group, which is of no use from then on
};

// The ranks of a communicator, which lives as long as the group.
inline Group nccl(ncclComm_t comm) { return Group(std::make_shared<NcclEngine>(comm)); }

}  // namespace attn::dist
