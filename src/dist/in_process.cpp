// Ranks that are threads of one process: a message is copied from the sender's memory to the
// receiver's by the receiver, and a sender waits until its messages are taken.
#include <fmt/format.h>

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "attn/dist.hpp"
#include "attn/error.hpp"
#include "dist/device_copy.hpp"

namespace attn::dist {
namespace {

constexpr std::size_t kMostRanks = 256;  // boxes of letters grow with its square
// Some times what it takes to wake a thread.
constexpr std::chrono::microseconds kSpins{300};

// A message that waits for its receiver, in memory of the sender's call.
struct Letter {
  const void* data = nullptr;
  std::size_t bytes = 0;
  Device device{};
  bool is_being_read = false;
  bool is_taken = false;
};

// What the ranks share.
class Post {
 public:
  // spins: ranks are GPUs, which idle while their threads are woken, and each has a CPU.
  Post(int ranks, bool spins)
      : ranks_(ranks),
        spins_(spins),
        boxes_(static_cast<std::size_t>(ranks * ranks)),
        left_(static_cast<std::size_t>(ranks)) {}

  int ranks() const { return ranks_; }

  void leave(int rank) {
    const std::lock_guard lock(mutex_);
    left_[static_cast<std::size_t>(rank)] = true;
    changed_.notify_all();
  }

  void fail(const std::string& cause) {
    const std::lock_guard lock(mutex_);
    if (!failure_) failure_ = cause;
    changed_.notify_all();
  }

  void exchange(int rank, std::span<const Send> sends, std::span<const Receive> receives,
                std::chrono::milliseconds timeout) {
    const auto deadline = std::chrono::steady_clock::now() + timeout;
    std::unique_lock lock(mutex_);
    if (failure_) refuse();
    std::deque<Letter> letters;  // does not move
    for (const Send& send : sends) {
      letters.push_back({.data = send.data, .bytes = send.bytes, .device = send.device});
      box(rank, send.to).push_back(&letters.back());
    }
    changed_.notify_all();
    try {
      for (const Receive& receive : receives) take(rank, receive, lock, deadline, timeout);
      for (std::size_t i = 0; i < letters.size(); ++i) {
        wait(lock, deadline, timeout, rank, sends[i].to, [&] { return letters[i].is_taken; });
      }
    } catch (...) {
      take_back(rank, sends, letters, lock);
      throw;
    }
  }

 private:
  using Box = std::deque<Letter*>;
  Box& box(int from, int to) { return boxes_[static_cast<std::size_t>(from * ranks_ + to)]; }

  [[noreturn]] void refuse() const { throw Error(ErrorCode::unavailable, *failure_); }

  // Waits until `is_done`, which rank `peer` has to bring about.
  template <class Done>
  void wait(std::unique_lock<std::mutex>& lock, std::chrono::steady_clock::time_point deadline,
            std::chrono::milliseconds timeout, int rank, int peer, const Done& is_done) {
    const auto ends = [&] {
      return is_done() || failure_ || left_[static_cast<std::size_t>(peer)];
    };
    const auto spun = std::chrono::steady_clock::now() + kSpins;
    while (spins_ && !ends() && std::chrono::steady_clock::now() < spun) {
      lock.unlock();
      std::this_thread::yield();
      lock.lock();
    }
    const bool in_time = changed_.wait_until(lock, deadline, ends);
    if (is_done()) return;
    if (!failure_) {
      failure_ = in_time
                     ? fmt::format("rank {} has left the group, rank {} waits for it", peer, rank)
                     : fmt::format("rank {} did not come within {} ms, rank {} waits for it", peer,
                                   timeout.count(), rank);
      changed_.notify_all();
    }
    refuse();
  }

  void take(int rank, const Receive& receive, std::unique_lock<std::mutex>& lock,
            std::chrono::steady_clock::time_point deadline, std::chrono::milliseconds timeout) {
    Box& from = box(receive.from, rank);
    wait(lock, deadline, timeout, rank, receive.from, [&] { return !from.empty(); });
    Letter& letter = *from.front();
    if (letter.bytes != receive.bytes) {
      failure_ = fmt::format("rank {} sent {} bytes where rank {} waits for {}", receive.from,
                             letter.bytes, rank, receive.bytes);
      changed_.notify_all();
      refuse();
    }
    from.pop_front();
    letter.is_being_read = true;
    lock.unlock();
    std::string error;
    try {
      copy(receive, letter);
    } catch (const std::exception& failed) {
      error = failed.what();
    }
    lock.lock();
    letter.is_being_read = false;
    letter.is_taken = error.empty();
    if (!error.empty() && !failure_) failure_ = fmt::format("rank {}: {}", rank, error);
    changed_.notify_all();
    if (!error.empty()) refuse();
  }

  static void copy(const Receive& to, const Letter& from) {
    if (to.bytes == 0) return;
    if (to.device.type == DeviceType::cpu && from.device.type == DeviceType::cpu) {
      std::memcpy(to.data, from.data, to.bytes);
    } else {
      copy_between_devices(to.data, to.device, from.data, to.bytes);
    }
  }

  // Nothing reads the letters any more once this returns.
  void take_back(int rank, std::span<const Send> sends, const std::deque<Letter>& letters,
                 std::unique_lock<std::mutex>& lock) {
    for (const Send& send : sends) {
      std::erase_if(box(rank, send.to), [&](const Letter* waiting) {
        return std::any_of(letters.begin(), letters.end(),
                           [&](const Letter& own) { return &own == waiting; });
      });
    }
    changed_.wait(lock, [&] {
      return std::none_of(letters.begin(), letters.end(),
                          [](const Letter& letter) { return letter.is_being_read; });
    });
  }

  int ranks_;
  bool spins_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Box> boxes_;              // [from][to]
  std::vector<bool> left_;              // of each rank
  std::optional<std::string> failure_;  // of the group, which is of no use from then on
};

class InProcess : public Engine {
 public:
  InProcess(std::shared_ptr<Post> post, int rank, Device device)
      : post_(std::move(post)), rank_(rank), device_(device) {}
  InProcess(const InProcess&) = delete;
  InProcess& operator=(const InProcess&) = delete;
  ~InProcess() override { post_->leave(rank_); }

  std::string_view name() const noexcept override {
    return device_.type == DeviceType::cpu ? "in_process" : "local";
  }
  bool carries(Device device) const noexcept override {
    return device.type == DeviceType::cpu || device == device_;
  }
  bool shares_memory() const noexcept override { return device_.type == DeviceType::cuda; }
  int rank() const noexcept override { return rank_; }
  int size() const noexcept override { return post_->ranks(); }
  void exchange(std::span<const Send> sends, std::span<const Receive> receives,
                std::chrono::milliseconds timeout) override {
    post_->exchange(rank_, sends, receives, timeout);
  }
  void fail(const std::string& cause) noexcept override { post_->fail(cause); }

 private:
  std::shared_ptr<Post> post_;
  int rank_;
  Device device_;
};

std::vector<Group> ranks_of(const std::vector<Device>& devices) {
  const auto post =
      std::make_shared<Post>(static_cast<int>(devices.size()),
                             devices.size() <= std::thread::hardware_concurrency() &&
                                 !devices.empty() && devices.front().type == DeviceType::cuda);
  std::vector<Group> groups;
  for (std::size_t r = 0; r < devices.size(); ++r) {
    groups.emplace_back(std::make_shared<InProcess>(post, static_cast<int>(r), devices[r]));
  }
  return groups;
}

void check_number(std::size_t ranks, const char* name) {
  if (ranks >= 1 && ranks <= kMostRanks) return;
  throw Error(ErrorCode::invalid_argument,
              fmt::format("{} is {}; accepted are 1 to {}", name, ranks, kMostRanks));
}

}  // namespace

std::vector<Group> in_process(int ranks) {
  check_number(static_cast<std::size_t>(std::max(ranks, 0)), "ranks");
  return ranks_of(std::vector<Device>(static_cast<std::size_t>(ranks)));
}

std::vector<Group> local(const std::vector<Device>& devices) {
  check_number(devices.size(), "the number of devices");
  for (const Device& device : devices) {
    if (device.type == DeviceType::cuda) continue;
    throw Error(ErrorCode::invalid_argument,
                "devices has " + to_string(device) + "; accepted are GPUs, as cuda:0");
  }
  let_devices_copy(devices);
  return ranks_of(devices);
}

}  // namespace attn::dist
