// Where work runs: threads and instruction set of the CPU; stream and workspace of a GPU.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "attn/export.hpp"
#include "attn/tensor.hpp"

// Of the library, not exported.
namespace attn {
class WorkspaceStore;
}

namespace ATTN_API attn {

// Runs loops. Replace it to put the library's work on your own threads.
class Executor {
 public:
  Executor();
  virtual ~Executor() = default;
  // Number of workers that may call a body at the same time; at least 1; does not change.
  virtual int concurrency() const noexcept = 0;
  // Calls body(index, worker) once for each index in [0, count); 0 <= worker < concurrency(), and
  // no two calls of one loop run at the same time with the same worker. Indices start in increasing
  // order.
  // Returns when all are done. If bodies throw, one of the exceptions is rethrown here and indices
  // not yet started are skipped. Callable from several threads at once and from within a body; such
  // a loop may run on its caller alone.
  virtual void parallel_for(std::int64_t count,
                            const std::function<void(std::int64_t index, int worker)>& body) = 0;

 private:
  friend class WorkspaceStore;
  // Memory that calls keep here for the next ones: at most 64 MiB (docs/cpu.md). Copies share it.
  std::shared_ptr<WorkspaceStore> workspaces_;
};

// A pool of `threads` workers, the caller being one of them; 0 means one for each CPU this process
// may run on. Throws Error(invalid_argument) for less than 0 or more than 4096, Error(unavailable)
// where the system does not start as many. A child of fork() starts workers of its own, at its
// first loop.
std::shared_ptr<Executor> make_thread_pool(int threads = 0);
// How many workers the default executor has: what set_num_threads() said last, else the environment
// variable ATTN_NUM_THREADS, else the first number of OMP_NUM_THREADS, else one for each CPU this
// process may run on. Results do not depend on it. Thread-safe. Throws Error(invalid_argument)
// where ATTN_NUM_THREADS holds anything but a number from 1 to 4096.
int get_num_threads();
// For calls that begin later, in the whole process; 0: as if it had never been called. Thread-safe.
// Throws Error(invalid_argument) for less than 0 or more than 4096.
void set_num_threads(int threads);
// An executor of that many workers, the same each time. All of these share the process's workers,
// of which there are as many as the largest asked for: one loop at a time has them, and others run
// on their caller alone. Made at first use and never destroyed, so that static destructors may use
// it. Thread-safe. Throws as make_thread_pool().
std::shared_ptr<Executor> shared_executor(int threads);
// The pool used when a Context has none: shared_executor(get_num_threads()).
std::shared_ptr<Executor> default_executor();

// What the kernels of the CPU backend are compiled for. All give results within the error rule, not
// the same bits.
enum class InstructionSet : std::uint8_t {
  automatic,    // the best that the machine has
  portable,     // no more than the library is built for; any CPU but AArch64
  avx2,         // AVX2 and FMA
  avx512,       // AVX-512 F, BW, DQ and VL
  avx512_bf16,  // and VDPBF16PS, for bf16 operands
  amx_bf16,     // and AMX tiles, for bf16 operands
  neon,         // AArch64, where it takes the place of portable
  neon_bf16     // and BFDOT (Armv8.6 FEAT_BF16), for bf16 operands
};
std::string_view name(InstructionSet isa) noexcept;  // as spelled here; "unknown" for other values
// Its inverse. Throws Error(invalid_argument) that lists the names.
InstructionSet parse_instruction_set(std::string_view text);

struct InstructionSetInfo {
  InstructionSet isa{};
  bool available = false;
  std::string reason{};  // why not, when not available
};
// What this machine has of each, automatic left out; of those that it has, the best is last.
// Thread-safe.
std::vector<InstructionSetInfo> instruction_sets();

// Where a call works. Copies are cheap; one Context may serve calls at the same time, but for its
// workspace.
struct Context {
  std::shared_ptr<Executor> executor{};            // null: default_executor()
  InstructionSet isa = InstructionSet::automatic;  // automatic: the best available
  // Receives warnings, one sentence each, one at a time in a call, but perhaps by a thread that
  // compiles for it while it waits; null: dropped.
  std::function<void(std::string_view message)> log{};

  // The cuda backend puts its work into this stream and returns: a CUstream or cudaStream_t of the
  // tensors' device; null is the legacy default stream. It never waits and allocates nothing, so a
  // run can be captured in a graph.
  void* stream = nullptr;
  // Memory that the call may write: u8, contiguous, aligned to 128 bytes, on the tensors' device,
  // of at least Plan::workspace_bytes. In use until the work is done: calls at the same time, or in
  // different streams, need different workspaces. The cuda backend needs it where workspace_bytes
  // is not 0; without it the cpu backend takes what the executor keeps. The reference backend does
  // not look at it.
  Tensor workspace{};
};

}  // namespace attn
