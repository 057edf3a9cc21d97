// What this machine is and can do at most, measured: the ceilings beside every benchmark.
#pragma once

#include <cstdint>
#include <string>

#include "attn/context.hpp"
#include "attn/export.hpp"

namespace ATTN_API attn {

struct Machine {
  std::string cpu;  // model name, or the architecture where the system tells none
  int cpus = 1;     // that this process may run on
  // Caches of the first core: L1 for data, L2, and L3, which cores share. 0 when unknown.
  std::int64_t l1d_bytes = 0, l2_bytes = 0, l3_bytes = 0;
  std::int64_t memory_bytes = 0;  // of the whole machine; 0 when unknown
};
// What the operating system tells, read anew at each call. Thread-safe.
Machine describe_machine();

// GFLOP/s of independent multiply-adds in registers (f32: FMA; bf16: tiles of AMX, VDPBF16PS or
// BFDOT where the instruction set has them, else as f32) on `threads` workers of the context at
// once, the best of several short runs within about `seconds`. f16 and f64 count as f32. Throws
// Error(invalid_argument) for types that are not floating and for seconds that are not above 0,
// Error(unavailable) for an instruction set that the machine lacks. Calls at the same time, like
// any other load, disturb each other's numbers.
double measure_peak_gflops(DType dtype, const Context& context = {}, double seconds = 0.2);
// GB/s (10^9 bytes a second) of summing a buffer of four times the last-level cache, but at most a
// quarter of memory, split over the workers; best of several runs; `seconds` as above. Throws
// Error(invalid_argument | out_of_memory).
double measure_read_gbps(const Context& context = {}, double seconds = 0.3);

}  // namespace attn
