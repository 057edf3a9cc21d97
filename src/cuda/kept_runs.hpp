// What calls keep for those that come after them: of a plan (plan_state.hpp) or of the process
// (jit/kernels_by_key.hpp).
#pragma once

#include <atomic>
#include <utility>

namespace attn::cuda {

// A list that only grows, newest first. Threads that find what they look for neither wait nor
// allocate; two that miss one at once both make it, and both stay. A Run stays where it is as long
// as the list lives.
template <class Run>
class KeptRuns {
 public:
  KeptRuns() = default;
  KeptRuns(const KeptRuns&) = delete;
  KeptRuns& operator=(const KeptRuns&) = delete;
  ~KeptRuns() {
    for (Node* node = newest_.load(); node != nullptr;) delete std::exchange(node, node->before);
  }

  // Null where there is none.
  template <class Suits>
  const Run* find(const Suits& suits) const {
    for (const Node* node = newest_.load(std::memory_order_acquire); node != nullptr;
         node = node->before) {
      if (suits(node->run)) return &node->run;
    }
    return nullptr;
  }
  const Run& add(Run run) {
    auto* const node = new Node{std::move(run), newest_.load(std::memory_order_relaxed)};
    while (!newest_.compare_exchange_weak(node->before, node, std::memory_order_acq_rel)) continue;
    return node->run;
  }

 private:
  struct Node {
    Run run;
    Node* before;
  };

  std::atomic<Node*> newest_{nullptr};
};

}  // namespace attn::cuda
