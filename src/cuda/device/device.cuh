// The macro of every function that runs on the device.
#pragma once

// Inlined always: a call would keep accumulators, which are registers, in local memory.
#define ATTN_DEVICE __device__ __forceinline__
