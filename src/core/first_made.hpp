// Values that are made when they are first asked for, and that a child of fork() never waits for.
#pragma once

#include <atomic>
#include <memory>

namespace attn::core {

// For static variables whose making takes time or a lock, as `static constinit FirstMade<T> made`.
// Of a `static T made(...)` another thread of the parent may be the maker when the process forks:
// the child would wait for a thread that it does not have. Here nobody waits. Threads that ask at
// the same time each make a value; the first one stays, for ever, so that static destructors may
// use it, and the others are destroyed. Thread-safe.
template <class T>
class FirstMade {
 public:
  constexpr FirstMade() = default;
  FirstMade(const FirstMade&) = delete;
  FirstMade& operator=(const FirstMade&) = delete;

  // make() gives a T; what it throws is passed on, and the next call makes one.
  template <class Make>
  T& get(const Make& make) {
    if (T* const known = made_.load(std::memory_order_acquire)) return *known;
    std::unique_ptr<T> mine(new T(make()));
    T* first = nullptr;
    if (!made_.compare_exchange_strong(first, mine.get(), std::memory_order_acq_rel)) return *first;
    return *mine.release();
  }

 private:
  std::atomic<T*> made_{nullptr};
};

}  // namespace attn::core
