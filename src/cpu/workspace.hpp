// Scratch memory of a run: one aligned block for each worker, carved into typed pieces.
#pragma once

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>

#include "attn/error.hpp"
#include "core/size.hpp"

namespace attn::cpu {

inline constexpr std::size_t kAlignment = 64;  // a cache line and a 512-bit vector

constexpr core::Size aligned(core::Size bytes) { return core::round_up(bytes, kAlignment); }

// Frees the block that an aligned pointer lies in.
struct FreeDeleter {
  void* block = nullptr;
  void operator()(void*) const noexcept { std::free(block); }
};
using AlignedBytes = std::unique_ptr<std::byte, FreeDeleter>;

// Asks for huge pages where they fit whole, so that no more memory is touched than without: packed
// K and V of 16 MB are 4,096 page faults a call otherwise, and a TLB miss every few rows.
inline void use_huge_pages([[maybe_unused]] std::byte* p, [[maybe_unused]] std::size_t bytes) {
#if defined(__linux__)
  constexpr std::size_t kHugePage = std::size_t{2} << 20;
  const std::size_t before =
      (kHugePage - reinterpret_cast<std::uintptr_t>(p) % kHugePage) % kHugePage;
  if (bytes < before + kHugePage) return;
  const std::size_t whole = (bytes - before) / kHugePage * kHugePage;
  // Only advice: a kernel without huge pages refuses, and nothing is lost.
  static_cast<void>(madvise(p + before, whole, MADV_HUGEPAGE));
#endif
}

// Throws Error(out_of_memory), which names the purpose and the size. The memory is not initialised.
// Not by aligned_alloc: the block that glibc's frees is smaller than what it looks for when asked
// for as much again, so that each run would take fresh pages, and the kernel clear them.
inline AlignedBytes allocate(core::Size bytes, std::string_view purpose = "workspace") {
  const core::Size wanted = bytes + kAlignment;
  void* block = wanted.fits() ? std::malloc(wanted.bytes()) : nullptr;
  if (block == nullptr) {
    throw Error(ErrorCode::out_of_memory, std::string(purpose) + " of " + core::to_string(bytes) +
                                              " bytes could not be allocated");
  }
  const std::uintptr_t past = reinterpret_cast<std::uintptr_t>(block) % kAlignment;
  auto* p = static_cast<std::byte*>(block) + (kAlignment - past);
  use_huge_pages(p, bytes.bytes());
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

// One scratch struct a worker. Scratch has carve(Carver&).
template <class Scratch>
class WorkerScratch {
 public:
  WorkerScratch(int workers, const Scratch& prototype) : prototype_(prototype) {
    const core::Size each = bytes(prototype);
    memory_ = allocate(each * workers, "scratch memory of the workers");
    bytes_each_ = each.bytes();
  }
  static core::Size bytes(Scratch prototype) {
    Carver counter;
    prototype.carve(counter);
    return counter.used();
  }
  Scratch of(int worker) const {
    Scratch scratch = prototype_;
    Carver carver(memory_.get() + bytes_each_ * static_cast<std::size_t>(worker));
    scratch.carve(carver);
    return scratch;
  }

 private:
  Scratch prototype_;
  std::size_t bytes_each_ = 0;
  AlignedBytes memory_;
};

}  // namespace attn::cpu
