// Kernels of calls that have no plan of attention: matrix products, softmax, dropout's mask.
#pragma once

#include <memory>
#include <utility>

#include "core/first_made.hpp"
#include "cuda/jit/kernel.hpp"
#include "cuda/kept_runs.hpp"

namespace attn::cuda {

// Kernels by what their source is printed from, so that a call which is like an earlier one prints
// and compares no source, waits for nobody and does not allocate. Key has operator==, and says all
// that the source depends on beside the device. Thread-safe. Kept as get_kernel() keeps them, for
// the process: keys are few, as each takes a compilation.
template <class Key>
class KernelsByKey {
 public:
  // print() is the source of the key's kernel, called where none is kept. Throws as get_kernel().
  template <class Print>
  const Kernel& get(int device, const Key& key, const Context& context, const Print& print) {
    const auto suits = [&](const Kept& kept) {
      return kept.kernel->device() == device && kept.key == key;
    };
    const Kept* found = kept_.find(suits);
    if (found == nullptr) found = &kept_.add({key, get_kernel(device, print(), context)});
    return *found->kernel;
  }

 private:
  struct Kept {
    Key key;
    std::shared_ptr<const Kernel> kernel;
  };

  KeptRuns<Kept> kept_;
};

// The kernels of the process. Never destroyed: at exit the driver may be gone before this.
template <class Key>
KernelsByKey<Key>& kernels_by_key() {
  static constinit core::FirstMade<KernelsByKey<Key>> all;
  return all.get([] { return KernelsByKey<Key>(); });
}

}  // namespace attn::cuda
