#include "command/interrupt.hpp"

#include <fmt/format.h>

#include <csignal>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

#include "command/message.hpp"

namespace attn::command {
namespace {

struct Actions {
  std::mutex mutex;  // held while they run: the process does not end their objects' scope meanwhile
  std::list<std::function<void()>> list;  // the newest first
};

// Never destroyed: the thread may outlive main().
Actions& actions() {
  static auto& all = *new Actions;
  return all;
}

sigset_t watched_signals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    struct sigaction current {};
    sigaction(signal, nullptr, &current);
    if (current.sa_handler != SIG_IGN) sigaddset(&set, signal);
  }
  return set;
}

void wait_for_signal(const sigset_t& set) {
  int signal = 0;
  if (sigwait(&set, &signal) != 0) return;
  pthread_sigmask(SIG_UNBLOCK, &set, nullptr);  // a second one ends the process here and now
  Actions& all = actions();
  const std::scoped_lock lock(all.mutex);
  for (const std::function<void()>& action : all.list) {
    try {
      action();
    } catch (const std::exception& error) {
      tell(fmt::format("attn: {}\n", error.what()));
    }
  }
  raise(signal);
}

}  // namespace

void watch_interrupts() {
  const sigset_t set = watched_signals();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  std::thread([set] { wait_for_signal(set); }).detach();
}

OnInterrupt::OnInterrupt(std::function<void()> action) {
  Actions& all = actions();
  const std::scoped_lock lock(all.mutex);
  at_ = all.list.insert(all.list.begin(), std::move(action));
}

OnInterrupt::~OnInterrupt() {
  Actions& all = actions();
  const std::scoped_lock lock(all.mutex);
  all.list.erase(at_);
}

}  // namespace attn::command
