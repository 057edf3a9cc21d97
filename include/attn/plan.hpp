// Which kernel, tiles, splits and workspace a problem gets, and why. A plan is made once and run
// many times.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "attn/context.hpp"
#include "attn/export.hpp"
#include "attn/problem.hpp"

namespace ATTN_API attn {

enum class Phase : std::uint8_t { forward, backward };

enum class Backend : std::uint8_t {
  automatic,  // by the device of the tensors
  reference,  // fp64 standard attention on one thread: the definition; slow
  cpu,
  cuda,  // kernels compiled at run time; docs/cuda.md
};

// Every algorithm computes the same result within the error rule; automatic picks the fast one. A
// backend that lacks one for a phase refuses it with Error(unsupported) that names those it has.
enum class Algorithm : std::uint8_t {
  automatic,
  standard,         // FlashAttention paper, algorithms 0 and 3: materialises S and P, O(seqlen_q *
                    // seqlen_k) memory
  flash_attention,  // FlashAttention, algorithm 1: outer loop over K, V blocks
  flash_attention_2,  // FlashAttention-2, algorithm 1: outer loop over Q blocks, one normalisation
                      // at the end
  flash_decoding,     // split over K, V; partial results combined by LSE
  memory_efficient,   // Rabe and Staats 2021: query chunks, key chunks summarised, then merged
  block_sparse,  // FlashAttention, algorithm 5: outer loop over K, V blocks, empty blocks skipped
};
// An enumerator's name as it is spelled here ("flash_attention_2"); "unknown" for other values.
std::string_view name(Phase phase) noexcept;
std::string_view name(Backend backend) noexcept;
std::string_view name(Algorithm algorithm) noexcept;
// Inverses of name(). Throw Error(invalid_argument) that lists the names.
Backend parse_backend(std::string_view text);
Algorithm parse_algorithm(std::string_view text);
// All that the CPU backend has for the phase, automatic left out, in the order of Algorithm.
std::vector<Algorithm> algorithms(Phase phase);

struct PlanOptions {
  Backend backend = Backend::automatic;
  Algorithm algorithm = Algorithm::automatic;
  Device device{};  // make_plan: where the tensors will be. A call with tensors takes theirs.
  // cuda: the name of a kernel, as "forward_sm80" or "backward_simt" (docs/cuda-forward.md and
  // docs/cuda-backward.md, "Which kernel"); empty: the fastest that takes the problem. For trials
  // some take parts of a tile shape: "forward_sm90/wg2_n160_s2" (docs/cuda.md, "Trying tile
  // shapes"). A name is refused on other backends.
  std::string kernel{};
  // cpu: workers of the executor that a call may use; 0: as many as there is work for.
  int threads = 0;
  // True: equal inputs give equal bits of every result, call after call, on devices that are alike
  // (of as many multiprocessors). What is computed and how accurately is the same either way; a
  // call that cannot promise it is refused with Error(unsupported). Forward passes, and the cpu and
  // reference backends, keep the promise unasked, so it costs nothing there. cuda, backward:
  // without it, the kernels with tensor cores may add dQ to memory in the order in which tiles of
  // keys get there, so that its last bits (not of dK, dV, dsink) may differ between two calls. With
  // it tiles take turns on Hopper, and on other GPUs another kernel runs. With lists of keys it is
  // dK and dV that differ, not dQ, and this is refused. The gradient of a
  // buffer whose elements are each of one query and one key, as those of a bias, keeps the promise
  // unasked; of others, as slopes, sums of threads are added exactly with this, in 56 bytes of
  // workspace an element, not 8. Plan::reasons says what it costs.
  bool deterministic = false;
  // True: O and LSE of a sequence have the same bits in every batch. They depend on its own rows,
  // lengths and pages, and on what the problem says of all sequences alike (seqlen_q, heads, head
  // sizes, dtype, layouts, mask, score), but not on `batch`, on the other sequences, nor on
  // seqlen_k or the width of the page table beyond its length. Example: a request decoded alone
  // over a table of 8 pages and one decoded among 64 over a table of 500 pages give equal bits.
  // So calls that are compared set one seqlen_q: a server that packs prompts and decoding sets the
  // largest chunk in every call. With dropout, or `batch` in mask or score, the place in the batch
  // counts too. Kernel and tiles are chosen as for one sequence, and each sequence's own length
  // says into how many parts its keys are cut: Plan::num_splits is the most that one may have. Two
  // calls that are compared give the same optional tensors, aligned alike, on devices that are
  // alike. Forward only: backward refuses it with Error(unsupported).
  bool batch_invariant = false;
};

// The main kernel of the cuda backend. Plan::reasons names what runs beside it.
struct Launch {
  std::string kernel{};                // its name; empty on other backends
  std::string arch{};                  // what it is compiled for: "sm_90a"
  std::array<std::int64_t, 3> grid{};  // blocks
  std::int32_t threads = 0;            // of a block
  std::int32_t cluster = 1;            // blocks of a cluster
  std::int64_t shared_bytes = 0;       // dynamic shared memory of a block
  std::int32_t stages = 0;             // K, V blocks in flight (V, where K has more)
};

// A complete description of how a problem will run. Reading it costs nothing. A run honours or
// refuses fields that were changed, but for `reasons`.
struct Plan {
  Problem problem{};  // complete: every size set
  Phase phase = Phase::forward;
  Backend backend = Backend::cpu;
  Device device{};
  Algorithm algorithm = Algorithm::flash_attention_2;
  InstructionSet isa = InstructionSet::portable;
  DType compute = DType::f32;      // operands of the matrix products: f32, bf16, or f64;
                                   // sums are f32 (f64)
  std::int32_t block_q = 0;        // rows of a Q block (one row a query and head)
  std::int32_t block_k = 0;        // keys of a K, V block
  std::int32_t rows_per_task = 0;  // rows that share one pass over K, V
  std::int32_t num_splits =
      1;  // parts of the keys that run apart and are merged; never depends on the threads
  std::int32_t threads = 1;  // workers of the executor that a call uses at most
  std::int64_t tasks = 1;    // of the largest size; the last ones of a forward pass may be divided
  std::int64_t workspace_bytes = 0;  // what Context::workspace must have where it is given (cuda:
                                     // needed); cpu: an upper bound of what a run uses
  Launch launch{};
  std::string kernel{};          // PlanOptions::kernel
  bool deterministic = false;    // PlanOptions::deterministic
  bool batch_invariant = false;  // PlanOptions::batch_invariant
  // What the backend keeps between runs (compiled kernels); copies of a plan share it. Thread-safe.
  // Empty in a plan that was moved from, which a run refuses.
  std::shared_ptr<void> state{};
  double bytes = 0;                    // inputs and outputs, each moved once
  std::vector<std::string> reasons{};  // one sentence a choice

  // Useful floating-point operations of a call: 4 d per visible (query, key) forward, 10 d backward
  // (for d == d_v); upper bound where the mask reads buffers without data. Counted anew at each
  // call, tile by tile of the mask, in some milliseconds at 4096 x 4096 and more with its length.
  // Where too many tiles are neither empty nor full, as of (query + key) % 2 == 0, 65,536 elements
  // of them are drawn, always the same: 1 % off at most but by a rare accident.
  double flops() const;
};

// The plan of a problem that has every size set. It knows no tensors and assumes that they are
// aligned: a run whose tensors are not takes another kernel, of the same accuracy. Of the context
// it reads isa and the executor's concurrency (cpu). On a GPU it asks the driver what the device
// is, and compiles nothing. About 0.1 ms at most on a CPU. Throws Error(invalid_argument |
// unsupported | unavailable), on a GPU Error(device) too, where the driver refuses a call.
// Thread-safe; so are runs of one plan.
Plan make_plan(const Problem& problem, Phase phase, const PlanOptions& options = {},
               const Context& context = {});
// Some lines for people: the problem, what runs it, tiles, workspace and the reasons.
std::string to_string(const Plan& plan);

}  // namespace attn
