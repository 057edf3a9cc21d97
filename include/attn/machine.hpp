// What this machine is and can do at most, measured: the ceilings beside every benchmark.
#pragma once

#include <cstdint>
#include <string>

#include "attn/context.hpp"
#include "attn/export.hpp"

namespace ATTN_API attn {

struct Machine {
  std::string cpu;  // model name
  int cpus = 1;     // that this process may run on
  std::int64_t l1d_bytes = 0, l2_bytes = 0,
               l3_bytes = 0;  // of one core, one core, shared; 0 when unknown
  std::int64_t memory_bytes = 0;
};
Machine describe_machine();

// GFLOP/s of independent multiply-adds in registers (f32: FMA; bf16: VDPBF16PS where the
// instruction set has it, else as f32) on `threads` workers of the context at once, the best of
// several short runs within about `seconds`. f16 and f64 count as f32. Throws
// Error(invalid_argument) for types that are not floating and for seconds that are not above 0.
double measure_peak_gflops(DType dtype, const Context& context = {}, double seconds = 0.2);
// GB/s of summing a buffer of four times the last-level cache, split over the workers; best of
// several; `seconds` as above.
double measure_read_gbps(const Context& context = {}, double seconds = 0.3);

}  // namespace attn
