// What is still done when the process is told to end in the middle of its work.
#pragma once

#include <functional>
#include <list>

namespace attn::command {

// SIGINT, SIGTERM and SIGHUP are from now on received by a thread made here, so that what they
// cause may lock, allocate and write files. Called once, before another thread is made: threads
// inherit that these signals are not theirs. A signal that the process was started to ignore
// stays ignored.
void watch_interrupts();

// While this object lives, such a signal calls `action`, in a thread of its own beside the work;
// the object made last comes first. Then the process ends as the signal alone would end it. A
// second signal does not wait for the actions.
class OnInterrupt {
 public:
  explicit OnInterrupt(std::function<void()> action);
  OnInterrupt(const OnInterrupt&) = delete;
  OnInterrupt& operator=(const OnInterrupt&) = delete;
  ~OnInterrupt();

 private:
  std::list<std::function<void()>>::iterator at_;
};

}  // namespace attn::command
