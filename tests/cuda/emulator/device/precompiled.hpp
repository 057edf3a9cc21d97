// What the text of every emulated kernel begins with. GCC reads it precompiled, with those headers
// of src/cuda/device that many kernels include and that no macro of a kernel's text changes: those
// that the library brings are then passed over, as they have the same text. A kernel that
// forgets to include one of these fails only where NVRTC compiles it.
#include "emulated.hpp"

#if __INCLUDE_LEVEL__ == 0
#define ATTN_PRECOMPILED  // what nvrtc.cpp asks for
#include "divide_up.cuh"
#include "expr/buffer.cuh"
#include "expr/exact.cuh"
#include "expr/integer.cuh"
#include "expr/range.cuh"
#include "expr/range_float.cuh"
#include "expr/range_load.cuh"
#include "expr/superaccumulator.cuh"
#include "expr/trigonometry.cuh"
#include "expr/vector.cuh"
#include "params.cuh"
#include "ptx/dependent.cuh"
#include "ptx/halves.cuh"
#include "schedule/gradient_tile.cuh"
#include "schedule/sequence.cuh"
#include "softmax/far_rows.cuh"
#include "softmax/online.cuh"
#include "tile/accumulator.cuh"
#include "tile/coverage.cuh"
#include "tile/scalar.cuh"
#include "tile/transpose_quad.cuh"
#endif
