// Memory of a call: a block that the caller gave or the executor keeps (workspace_store.hpp), from
// which pieces are taken one after the other.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <memory_resource>
#include <string>
#include <string_view>
#include <vector>

#include "attn/error.hpp"
#include "core/platform/platform.hpp"
#include "core/tensor/size.hpp"

namespace attn::cpu {

inline constexpr std::size_t kAlignment = 64;  // a cache line and a 512-bit vector

constexpr core::Size aligned(core::Size bytes) { return core::round_up(bytes, kAlignment); }

// Frees the block that an aligned pointer lies in.
struct FreeDeleter {
  void* block = nullptr;
  void operator()(void*) const noexcept { std::free(block); }
};
using AlignedBytes = std::unique_ptr<std::byte, FreeDeleter>;

// Throws Error(out_of_memory), which names the purpose and the size. The memory is not initialised.
// It does not come from aligned_alloc: the block that glibc's frees is smaller than the one that it
// looks for when asked for as much again, so that each run would take fresh pages, and the kernel
// clear them.
inline AlignedBytes allocate(core::Size bytes, std::string_view purpose = "workspace") {
  const core::Size wanted = bytes + kAlignment;
  void* block = wanted.fits() ? std::malloc(wanted.bytes()) : nullptr;
  if (block == nullptr) {
    throw Error(ErrorCode::out_of_memory, std::string(purpose) + " of " + core::to_string(bytes) +
                                              " bytes could not be allocated");
  }
  const std::uintptr_t past = reinterpret_cast<std::uintptr_t>(block) % kAlignment;
  auto* p = static_cast<std::byte*>(block) + (kAlignment - past);
  // Packed K and V of 16 MB are 4,096 page faults a call otherwise, and a TLB miss every few rows.
  core::use_huge_pages(p, bytes.bytes());
  return AlignedBytes(p, {block});
}

// Hands out consecutive aligned pieces of a block. Over a null base it only counts: the same
// carve() function of a scratch struct computes its size and places it.
class Carver {
 public:
  explicit Carver(std::byte* base = nullptr) : base_(base) {}

  template <class T>
  void take(T*& pointer, core::Size count) {
    pointer = base_ == nullptr ? nullptr : reinterpret_cast<T*>(base_ + used_.bytes());
    used_ = used_ + aligned(count * sizeof(T));
  }
  core::Size used() const { return used_; }

 private:
  std::byte* base_;
  core::Size used_;
};

// The memory of one call. Pieces follow each other in the block; a piece that does not fit is asked
// of the system, and given back with the workspace. Also what the vectors of a call live in: they
// should reserve, as memory that they outgrow stays taken. For the calling thread alone.
class Workspace final : public std::pmr::memory_resource {
 public:
  // Uses block[0, bytes), which must outlive this; aligned to kAlignment.
  Workspace(std::byte* block, std::size_t bytes) : block_(block), bytes_(bytes) {}

  // Takes memory that is not initialised. Throws Error(out_of_memory), which names the purpose and
  // the size.
  std::byte* take(core::Size bytes, std::string_view purpose = "workspace") {
    const core::Size wanted = aligned(bytes);
    const std::size_t piece = wanted.fits() ? wanted.bytes() : SIZE_MAX;
    std::byte* p = block_ + used_;
    if (piece <= bytes_ - used_) {
      used_ += piece;
    } else {
      outside_.push_back(cpu::allocate(wanted, purpose));
      p = outside_.back().get();
    }
    taken_ += piece;
    most_ = std::max(most_, taken_);
    return p;
  }
  template <class T>
  T* take_array(core::Size count, std::string_view purpose = "workspace") {
    return reinterpret_cast<T*>(take(count * sizeof(T), purpose));
  }

  // Bytes of all pieces held at the same time, at most: a block of this size would have held them.
  std::size_t most() const { return most_; }

  // Gives back, when it ends, what was taken meanwhile.
  class Scope {
   public:
    explicit Scope(Workspace& workspace)
        : workspace_(workspace),
          used_(workspace.used_),
          taken_(workspace.taken_),
          outside_(workspace.outside_.size()) {}
    ~Scope() {
      workspace_.used_ = used_;
      workspace_.taken_ = taken_;
      workspace_.outside_.resize(outside_);
    }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Workspace& workspace_;
    std::size_t used_, taken_, outside_;
  };

 private:
  void* do_allocate(std::size_t bytes, std::size_t) override { return take(bytes); }
  void do_deallocate(void*, std::size_t, std::size_t) override {}
  bool do_is_equal(const std::pmr::memory_resource& other) const noexcept override {
    return this == &other;
  }

  std::byte* block_;
  std::size_t bytes_;
  std::size_t used_ = 0;   // of the block
  std::size_t taken_ = 0;  // everywhere
  std::size_t most_ = 0;
  std::vector<AlignedBytes> outside_;
};

// One scratch struct a worker. Scratch has carve(Carver&).
template <class Scratch>
class WorkerScratch {
 public:
  WorkerScratch(Workspace& workspace, int workers, const Scratch& prototype)
      : prototype_(prototype) {
    const core::Size each = bytes(prototype);
    memory_ = workspace.take(each * workers, "scratch memory of the workers");
    bytes_each_ = each.bytes();
  }
  static core::Size bytes(Scratch prototype) {
    Carver counter;
    prototype.carve(counter);
    return counter.used();
  }
  Scratch of(int worker) const {
    Scratch scratch = prototype_;
    Carver carver(memory_ + bytes_each_ * static_cast<std::size_t>(worker));
    scratch.carve(carver);
    return scratch;
  }

 private:
  Scratch prototype_;
  std::size_t bytes_each_ = 0;
  std::byte* memory_ = nullptr;
};

}  // namespace attn::cpu
