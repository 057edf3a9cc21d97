#include "core/fork_safe.hpp"

#include <mutex>
#include <type_traits>

#include "core/platform/platform.hpp"

namespace attn::core {

// The list of all handlers of the process.
class ForkHandlers {
 public:
  static ForkHandlers& all();

  void add(ForkHandler& handler) {
    const std::lock_guard lock(mutex_);
    handler.next_ = first_;
    if (first_ != nullptr) first_->previous_ = &handler;
    first_ = &handler;
  }

  void remove(ForkHandler& handler) {
    const std::lock_guard lock(mutex_);
    (handler.previous_ != nullptr ? handler.previous_->next_ : first_) = handler.next_;
    if (handler.next_ != nullptr) handler.next_->previous_ = handler.previous_;
  }

 private:
  void prepare() {
    mutex_.lock();
    for (ForkHandler* h = first_; h != nullptr; h = h->next_) h->lock_before_fork();
  }
  void parent() {
    for (ForkHandler* h = first_; h != nullptr; h = h->next_) h->unlock_in_parent();
    mutex_.unlock();
  }
  void child() {
    for (ForkHandler* h = first_; h != nullptr; h = h->next_) h->renew_in_child();
    std::construct_at(&mutex_);
  }

  static const int kRegistered;  // when the library is loaded

  std::mutex mutex_;
  ForkHandler* first_ = nullptr;
};

// Made by the compiler, not at its first use, when another thread may fork. It is not destroyed
// either: objects with static storage leave the list when they are.
static_assert(std::is_trivially_destructible_v<std::mutex>);
ForkHandlers& ForkHandlers::all() {
  static constinit ForkHandlers list;
  return list;
}

const int ForkHandlers::kRegistered =
    at_fork([] { all().prepare(); }, [] { all().parent(); }, [] { all().child(); });

ForkHandler::ForkHandler() { ForkHandlers::all().add(*this); }
ForkHandler::~ForkHandler() { ForkHandlers::all().remove(*this); }

}  // namespace attn::core
