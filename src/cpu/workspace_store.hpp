// What an executor keeps for the calls that run on it. A call takes the block that was given back
// last, or none; when it ends, the block comes back, grown to what the call used. So calls that
// follow each other use one block, which is still in the caches, and n calls at the same time n.
#pragma once

#include <cstddef>
#include <mutex>
#include <vector>

#include "attn/context.hpp"
#include "core/fork_safe.hpp"
#include "cpu/workspace.hpp"

namespace attn {

// Thread-safe. Not in the namespace cpu, which a program that says `using namespace attn` would
// see.
class WorkspaceStore {
 public:
  struct Block {
    cpu::AlignedBytes memory;
    std::size_t bytes = 0;
  };

  static WorkspaceStore& of(Executor& executor) { return *executor.workspaces_; }

  Block take();
  // `wanted`: bytes that the call used. The block is not kept, or not grown, where all blocks of
  // the executor, lent ones too, would be more than kKeptBytes.
  void give_back(Block block, std::size_t wanted) noexcept;

 private:
  core::ForkSafe<std::mutex> mutex_;
  std::vector<Block> blocks_;
  std::size_t bytes_ = 0;  // of blocks_ and of those that are lent
};

namespace cpu {

// The workspace of one call: `given` (Context::workspace, validated) or a block of the executor's.
class CallWorkspace {
 public:
  CallWorkspace(Executor& executor, const Tensor& given);
  ~CallWorkspace();
  CallWorkspace(const CallWorkspace&) = delete;
  CallWorkspace& operator=(const CallWorkspace&) = delete;

  Workspace& operator*() { return workspace_; }

 private:
  WorkspaceStore* store_;  // null: the memory is the caller's
  WorkspaceStore::Block block_;
  Workspace workspace_;
};

}  // namespace cpu
}  // namespace attn
