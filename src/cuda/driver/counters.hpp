// Words of device memory that are 0 between kernels: counters from which the blocks of a kernel
// take their next piece of work.
#pragma once

namespace attn::cuda {

// Two words for a kernel about to be put into `stream`, which must leave them 0. Work of one stream
// runs in order and shares them; a stream that is being captured gets words of its own for each
// kernel, since the graph may run anywhere. Null when all are taken, or when the first call comes
// while a stream is captured: kernels then do without. The memory (64 KB a device) is taken once
// and kept. Thread-safe. Throws Error(device | out_of_memory).
unsigned* work_counter(int device, void* stream);
// Takes the memory now, so that a later call in a captured stream finds it.
void prepare_work_counters(int device);

}  // namespace attn::cuda
