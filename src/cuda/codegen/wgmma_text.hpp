// Warpgroup matrix products as text: one function for each shape a kernel uses.
#pragma once

#include <string>
#include <string_view>

#include "attn/tensor.hpp"

namespace attn::cuda {

// A struct with a function run() that issues wgmma.mma_async m64 x `columns` x k16 (PTX ISA) with
// float accumulators. columns: a multiple of 8, up to 256; dtype: bf16 or f16.
//
//   ProductSS<Element, columns>::run(d, a, b, add)   A and B in shared memory, rows along k
//   ProductRS<Element, columns>::run(d, a, b, add)   A in four registers, B with rows along columns
//   ProductST<Element, columns>::run(d, a, b, add)   both in shared memory, B with rows along
//   columns ProductTS<Element, columns>::run(d, a, b, add)   both in shared memory, A with rows
//   along d's ProductTT<Element, columns>::run(d, a, b, add)   both in shared memory, with rows
//   along d's
//
// d: columns / 2 accumulators; a, b: low words of descriptors (src/cuda/device/ptx/wgmma.cuh);
// add == 0: d is overwritten.
std::string print_product_ss(DType dtype, int columns);
std::string print_product_rs(DType dtype, int columns);
std::string print_product_st(DType dtype, int columns);
std::string print_product_ts(DType dtype, int columns);
std::string print_product_tt(DType dtype, int columns);

// The same of 8-bit floats, m64 x `columns` x k32, both in shared memory with rows along k, as
// ProductSS of `element`, the device's type. format: "e4m3" or "e5m2".
std::string print_product_float8(std::string_view element, std::string_view format, int columns);

}  // namespace attn::cuda
