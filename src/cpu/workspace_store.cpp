#include "cpu/workspace_store.hpp"

#include <algorithm>
#include <new>
#include <utility>

#include "attn/error.hpp"
#include "cpu/budgets.hpp"

namespace attn {

Executor::Executor() : workspaces_(std::make_shared<WorkspaceStore>()) {}

WorkspaceStore::Block WorkspaceStore::take() {
  const std::lock_guard lock(mutex_);
  if (blocks_.empty()) return {};
  Block block = std::move(blocks_.back());
  blocks_.pop_back();
  return block;
}

void WorkspaceStore::give_back(Block block, std::size_t wanted) noexcept {
  const std::lock_guard lock(mutex_);
  try {
    if (wanted > block.bytes && bytes_ - block.bytes + wanted <= cpu::kKeptBytes) {
      bytes_ -= std::exchange(block, {}).bytes;
      block = {cpu::allocate(wanted), wanted};
      bytes_ += wanted;
    }
    if (block.bytes == 0) return;
    blocks_.push_back(std::move(block));
  } catch (const std::exception&) {  // no memory: the next call will ask for its own
    bytes_ -= block.bytes;
  }
}

namespace cpu {

CallWorkspace::CallWorkspace(Executor& executor, const Tensor& given)
    : store_(given.given() ? nullptr : &WorkspaceStore::of(executor)),
      block_(store_ == nullptr ? WorkspaceStore::Block{} : store_->take()),
      workspace_(store_ == nullptr ? static_cast<std::byte*>(given.data) : block_.memory.get(),
                 store_ == nullptr ? static_cast<std::size_t>(given.size()) : block_.bytes) {}

CallWorkspace::~CallWorkspace() {
  if (store_ != nullptr) store_->give_back(std::move(block_), workspace_.most());
}

}  // namespace cpu
}  // namespace attn
