// Warpgroup matrix products as text: one function for each shape a kernel uses.
#pragma once

#include <string>
#include <string_view>

#include "attn/tensor.hpp"

namespace attn::cuda {

// The text of a struct with a function run(d, a, b, add), which issues wgmma.mma_async m64 x
// `columns` x k16 (PTX ISA) with float accumulators. columns: a multiple of 8, up to 256; dtype:
// bf16 or f16. Structs are templates of the element's type and of columns, and differ in how the
// operands are stored: with rows along k, or transposed, with rows along m (of A) or n (of B).
//
//   ProductSS   A and B in shared memory, rows along k
//   ProductRS   A in four registers, B in shared memory, transposed
//   ProductST   A and B in shared memory, B transposed
//   ProductTS   A and B in shared memory, A transposed
//   ProductTT   A and B in shared memory, both transposed
//
// d: columns / 2 accumulators; a, b: low words of descriptors
// (src/cuda/device/tile/matrix_descriptor.cuh); add == 0: d is overwritten.
std::string print_product_ss(DType dtype, int columns);
std::string print_product_rs(DType dtype, int columns);
std::string print_product_st(DType dtype, int columns);
std::string print_product_ts(DType dtype, int columns);
std::string print_product_tt(DType dtype, int columns);

// Prints a product of 8-bit floats, m64 x `columns` x k32, both in shared memory with rows along k,
// as ProductSS of `element`, a type's name in device code. formats: of A and B, as "e4m3.e5m2".
std::string print_product_float8(std::string_view element, std::string_view formats, int columns);
// The same as ProductRS, with A in registers; B has rows along k too.
std::string print_product_rs_float8(std::string_view element, std::string_view formats,
                                    int columns);
// The same as ProductWithSums: B has 8 rows behind its `columns`, whose products go to four
// accumulators of their own, run(d, sums, a, b, add).
std::string print_product_with_sums(std::string_view element, std::string_view formats,
                                    int columns);

}  // namespace attn::cuda
