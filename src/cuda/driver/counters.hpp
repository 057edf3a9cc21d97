// Which of a kernel's counters its blocks of threads take their next piece of work from. The
// counters themselves are variables of the kernel (device/schedule/dealer.cuh): of each context,
// zero when it is loaded.
#pragma once

namespace attn::cuda {

// The counter of a kernel about to be put into `stream`, in the current context, for
// ForwardParams::counter. Work of one stream runs in order and shares a counter. A kernel that is
// captured finds one when it runs, since its graph may run anywhere, and twice at once. kNoCounter
// when 128 streams were seen. Nothing is allocated, waited for or put into a stream. Thread-safe.
// Throws Error(device).
int work_counter(void* stream);

}  // namespace attn::cuda
