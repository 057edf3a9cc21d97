// Matrix products: C = activation(A B + bias), in the order of attention: describe, plan, run.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "attn/context.hpp"
#include "attn/export.hpp"
#include "attn/plan.hpp"
#include "attn/tensor.hpp"

namespace ATTN_API attn {

// Applied to each element of A B + bias, before C is rounded.
enum class Activation : std::uint8_t {
  none,
  relu,       // max(x, 0); NaN stays NaN
  gelu,       // x (1 + erf(x / sqrt 2)) / 2
  gelu_tanh,  // x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2
  silu,       // x / (1 + exp(-x))
};
std::string_view name(Activation activation) noexcept;
// Its inverse. Throws Error(invalid_argument) that lists the names.
Activation parse_activation(std::string_view text);

// Which of the last two dimensions of a tensor has neighbours that lie next to each other in
// memory.
enum class MatrixOrder : std::uint8_t {
  row_major,     // the last one has stride 1
  column_major,  // the one before it has
};
std::string_view name(MatrixOrder order) noexcept;

// How the bytes of A and B are read where dtype is u8: the 8-bit floats of the Open Compute Project
// (OFP8, 2023). e4m3 has no infinity (NaN is 0x7f and 0xff, the largest number 448), e5m2 has one.
enum class Float8 : std::uint8_t { none, e4m3, e5m2 };
std::string_view name(Float8 format) noexcept;

// How the bytes of B are read where dtype_b is u8: blocks of 32 elements of a column of B, in
// ggml's layout. d and m are f16, the first numbers of a block; element i of 16 bytes is the lower
// four bits of byte i, or the upper four of byte i - 16.
enum class BlockFormat : std::uint8_t {
  none,
  q8_0,  // 34 bytes: d and 32 integers of 8 bits in two's complement, which stand for d q
  q4_0,  // 18 bytes: d and 16 bytes, d (q - 8)
  q4_1,  // 20 bytes: d, m and 16 bytes, d q + m
};
std::string_view name(BlockFormat format) noexcept;
// Bytes of k elements, which 32 divides; of none 0. Example: 64 elements of q8_0 are 68 bytes.
std::int64_t row_size(BlockFormat format, std::int64_t k) noexcept;

// The matrix of which a block mask leaves out blocks (MatmulInputs::block_mask). A sparse A is the
// sparse B of C^T = B^T A^T.
enum class MaskedMatrix : std::uint8_t {
  none,
  b,  // what is left out of B counts as zero, whatever it holds, and is neither read nor multiplied
  c,  // what is left out of C is neither computed nor written
};
std::string_view name(MaskedMatrix masked) noexcept;

// What is to be computed, for every p below batch:
//   C[p, i, j] = activation(scale_a scale_b sum_l A[p, i, l] B[p, l, j] + bias[j] + C'[p, i, j])
// with C' what C held before, where accumulate, else 0.
// A: m x k, B: k x n, C: m x n. Products and sums are f32 (f64 where dtype is); of 8-bit floats
// tensor cores keep 13 bits of sums of 128 products. k = 0 gives activation(bias).
struct MatmulProblem {
  std::int64_t batch = 1, m = 0, n = 0, k = 0;
  // The type of A, and of B but for dtype_b: f32, bf16, f16; u8 with float8 on a GPU and the
  // reference backend, f64 on the latter.
  DType dtype = DType::f32;
  DType output = DType::f32;  // of C: dtype or f32 (f64 where dtype is); of float8 bf16, f16 or f32
  MatrixOrder order_a = MatrixOrder::row_major;
  MatrixOrder order_b = MatrixOrder::row_major;
  MatrixOrder order_c = MatrixOrder::row_major;
  // The type of B where it is another one: bf16 or f16 beside an A of f32, as stored weights are.
  // Each element counts as the f32 that it is. CPU and reference backends.
  OptionalDType dtype_b{};
  // Of weights in blocks, as GGUF files have them: u8 [n, row_size(format_b, k)], of which B is
  // attn::transposed(). Beside an A of f32, bf16 or f16, and a row-major C; dtype_b is u8, 32
  // divides k, and there is no mask. Each element counts as the number that it stands for; products
  // and sums are f32. CPU (few_rows, packed) and reference backends.
  BlockFormat format_b = BlockFormat::none;
  bool bias = false;
  bool accumulate = false;  // C is added to, as by a layer with a residual; CPU and reference
  Activation activation = Activation::none;
  Float8 float8 = Float8::none;
  bool scaled = false;  // scale_a and scale_b are given; with float8
  MaskedMatrix masked = MaskedMatrix::none;
  std::int64_t block = 0;  // rows and columns of a block of it, 1 and up; 0 where there is no mask

  DType type_of_b() const { return dtype_b.given() ? DType{dtype_b} : dtype; }
  double flops() const;  // 2 batch m n k, of all blocks
  bool operator==(const MatmulProblem&) const = default;
};
std::string to_string(
    const MatmulProblem& problem);  // "b1_m1024_n1024_k64_bf16_bias_gelu"; of a mask "_bblock256"

// Tensors of rank 2, or 3 with the batch first, all on one device. One of the last two strides is
// 1 (MatrixOrder); the other strides are free, and that of the batch may be 0.
struct MatmulInputs {
  Tensor a{};                   // [m, k] or [batch, m, k]
  Tensor b{};                   // [k, n] or [batch, k, n]; of blocks row_size() in place of k
  Tensor bias{};                // f32 [n] (f64 where dtype is), any stride; optional
  Tensor scale_a{}, scale_b{};  // f32 [1], both or none
  // u8, any strides, the same for the whole batch: not 0 where a block of the masked matrix is
  // there. [ceil(k / block), ceil(n / block)] of B, [ceil(m / block), ceil(n / block)] of C.
  Tensor block_mask{};
};

struct MatmulOptions {
  Backend backend = Backend::automatic;
  Device device{};  // make_plan: where the tensors will be. A call with tensors takes theirs.
  // One of matmul_rungs(backend); empty: the fastest that takes the problem. On a GPU the shape of
  // its tiles may follow: "split_k/64x192_s8" (docs/matmul.md).
  std::string rung{};
  int threads = 0;  // cpu: workers that a call may use; 0: as many as there is work for
};

// The implementations of a backend, slowest first: each adds what the one before lacks
// (docs/matmul.md). Empty for the reference.
std::vector<std::string> matmul_rungs(Backend backend);

// How a product will run. A call honours or refuses fields that were changed, but for `reasons`.
struct MatmulPlan {
  MatmulProblem problem{};
  Backend backend = Backend::cpu;
  Device device{};
  std::string rung{};  // empty: the reference
  InstructionSet isa = InstructionSet::portable;
  DType compute = DType::f32;                          // what is multiplied
  std::int32_t block_m = 0, block_n = 0, block_k = 0;  // of a tile of C; of its pieces along k
  std::int32_t splits = 1;   // parts of k that run apart and are summed; never depends on threads
  std::int32_t threads = 1;  // workers that a call uses at most
  std::int64_t tasks = 1;
  std::int64_t workspace_bytes = 0;  // cuda: what Context::workspace must have; cpu: an upper bound
  Launch launch{};
  double bytes = 0;  // inputs and output, each moved once
  std::vector<std::string> reasons{};
  // What make_plan set, by which a call sees what was changed. Copies of a plan share it. Empty in
  // a plan that was moved from, which a call refuses.
  std::shared_ptr<const void> state{};
};
std::string to_string(const MatmulPlan& plan);

// The description of a call with these tensors. Throws Error(invalid_argument) naming the tensor,
// what it is and what is accepted. The caller sets float8 where A is u8, format_b where B alone is,
// masked and block where block_mask is given, and accumulate. Reads no element.
MatmulProblem describe(const MatmulInputs& inputs, const Tensor& c,
                       Activation activation = Activation::none);

// The plan of a product, which many calls may run, also at the same time. On a GPU it asks the
// driver what the device is, and compiles nothing. Throws Error(invalid_argument | unsupported |
// unavailable), on a GPU Error(device) too: unsupported names why the rung that was asked for does
// not take the problem.
MatmulPlan make_plan(const MatmulProblem& problem, const MatmulOptions& options = {},
                     const Context& context = {});

// C <- the product, with accumulate added to what C holds. Checks, then writes; C must not overlap
// an input. Same inputs give the same bits for every number of threads. An element of C differs
// from the exact one by at most about 4 sqrt(k) 2^-24 sum_l |A_il B_lj| and its own rounding
// (Higham and Mary 2019, docs/matmul.md, "What is allowed"); of 8-bit floats on tensor cores from
// what these compute with sums of 13 bits. Subnormal bf16 inputs may count as zero (AMX,
// VDPBF16PS). Throws Error as forward() does. Thread-safe. On a GPU the work is put into
// context.stream.
void matmul(const MatmulPlan& plan, const MatmulInputs& inputs, const Tensor& c,
            const Context& context = {});
// Describes the product from the tensors, plans it, or finds the plan of an earlier such call
// (docs/plan-cache.md), and runs it; errors are those of the three.
void matmul(const MatmulInputs& inputs, const Tensor& c, Activation activation = Activation::none,
            const MatmulOptions& options = {}, const Context& context = {});

}  // namespace attn
