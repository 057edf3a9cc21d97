// How many CPUs this process may use.
#pragma once

namespace attn::cpu {

// CPUs of the affinity mask, or fewer where a control group limits the CPU time (rounded up); at
// least 1. Reads a few small files: not for inner loops.
int available_cpus();

}  // namespace attn::cpu
