// The bandwidth of memory, measured by summing a buffer that no cache holds.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <limits>
#include <memory>
#include <new>

#include "attn/error.hpp"
#include "attn/machine.hpp"
#include "cpu/plan_check.hpp"

namespace attn {
namespace {

// 16-byte vectors are in the baseline of every 64-bit architecture; two loads a cycle exceed any
// DRAM.
using Vector = std::uint64_t __attribute__((vector_size(16)));
constexpr std::int64_t kAccumulators = 8;  // adds in flight, so that their latency does not count
// Work is handed out in pieces so that a late worker does not stretch the run; long enough that
// the hardware prefetchers stream.
constexpr std::int64_t kPieceBytes = std::int64_t{1} << 20;
constexpr std::int64_t kPiece = kPieceBytes / static_cast<std::int64_t>(sizeof(Vector));
constexpr int kMinRuns = 3;

// A sanitizer's check of each access would be what is measured, and took 50 s of a test that waits
// for 60.
__attribute__((no_sanitize("thread", "address"))) void write(Vector* x) {
  for (std::int64_t i = 0; i < kPiece; ++i) x[i] = Vector{1, 1};
}

__attribute__((no_sanitize("thread", "address"))) void read(const Vector* x) {
  Vector sum[kAccumulators] = {};
  for (std::int64_t i = 0; i < kPiece; i += kAccumulators) {
#pragma GCC unroll 8
    for (std::int64_t a = 0; a < kAccumulators; ++a) sum[a] += x[i + a];
  }
  for (const Vector& s : sum) asm volatile("" : : "m"(s));  // keeps the loads
}

// Four times the last-level cache, but at most a quarter of memory.
std::int64_t buffer_pieces() {
  constexpr std::int64_t kUnknownCache = std::int64_t{64} << 20;
  const Machine machine = describe_machine();
  std::int64_t bytes = 4 * std::max(machine.l2_bytes, machine.l3_bytes);
  if (bytes == 0) bytes = 4 * kUnknownCache;
  if (machine.memory_bytes > 0) bytes = std::min(bytes, machine.memory_bytes / 4);
  return std::max<std::int64_t>(1, bytes / kPieceBytes);
}

}  // namespace

double measure_read_gbps(const Context& context, double seconds) {
  if (!(seconds > 0 && seconds <= std::numeric_limits<double>::max())) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("seconds is {}; accepted are finite numbers above 0", seconds));
  }
  using Clock = std::chrono::steady_clock;
  const std::shared_ptr<Executor> executor = cpu::executor_of(context);
  const std::int64_t pieces = buffer_pieces();
  const std::unique_ptr<Vector[]> buffer(new (std::nothrow)
                                             Vector[static_cast<std::size_t>(pieces * kPiece)]);
  if (!buffer) {
    throw Error(ErrorCode::out_of_memory,
                fmt::format("a buffer of {} bytes could not be allocated", pieces * kPieceBytes));
  }
  // Memory that was never written would all be the kernel's one page of zeros.
  executor->parallel_for(pieces, [&](std::int64_t piece, int) {
    write(&buffer[static_cast<std::size_t>(piece * kPiece)]);
  });
  const Clock::time_point start = Clock::now();
  double best = 0;
  for (int runs = 0;; ++runs) {
    const Clock::time_point run_start = Clock::now();
    if (runs >= kMinRuns && std::chrono::duration<double>(run_start - start).count() > seconds) {
      return best;
    }
    executor->parallel_for(pieces, [&](std::int64_t piece, int) {
      read(&buffer[static_cast<std::size_t>(piece * kPiece)]);
    });
    const double elapsed = std::chrono::duration<double>(Clock::now() - run_start).count();
    best = std::max(best, static_cast<double>(pieces * kPieceBytes) / elapsed * 1e-9);
  }
}

}  // namespace attn
