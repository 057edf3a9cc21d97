// Locks that a child of fork() finds free, whatever the other threads of its parent were doing.
#pragma once

#include <memory>

namespace attn::core {

// What fork() waits for. Objects register themselves while they live; pthread_atfork() has them
// locked before the process is copied, so that what they guard is whole in the child.
class ForkHandler {
 public:
  ForkHandler(const ForkHandler&) = delete;
  ForkHandler& operator=(const ForkHandler&) = delete;

  virtual void lock_before_fork() = 0;
  virtual void unlock_in_parent() = 0;
  virtual void renew_in_child() = 0;

 protected:
  ForkHandler();
  ~ForkHandler();

 private:
  friend class ForkHandlers;
  ForkHandler* previous_ = nullptr;
  ForkHandler* next_ = nullptr;
};

// A std::mutex or std::shared_mutex with the members of it. A thread that holds one may not lock,
// make or destroy another, nor call fork(): fork() locks the list of them, then each.
template <class Mutex>
class ForkSafe final : private ForkHandler {
 public:
  void lock() { mutex_.lock(); }
  void unlock() { mutex_.unlock(); }
  void lock_shared() { mutex_.lock_shared(); }
  void unlock_shared() { mutex_.unlock_shared(); }

 private:
  void lock_before_fork() override { mutex_.lock(); }
  void unlock_in_parent() override { mutex_.unlock(); }
  // Its owner was a thread of the parent, so the child may not unlock it.
  void renew_in_child() override { std::construct_at(&mutex_); }

  Mutex mutex_;
};

}  // namespace attn::core
