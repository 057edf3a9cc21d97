// The translation units of the kernels of the backward pass.
#pragma once

#include <string>
#include <vector>

#include "attn/expr.hpp"
#include "attn/problem.hpp"
#include "cuda/codegen/printed_buffers.hpp"
#include "cuda/codegen/source.hpp"
#include "cuda/kernels/backward_kernel.hpp"

namespace attn::cuda {

// ATTN_PRECISE_MATH of a kernel (src/cuda/device/expr/fast.cuh).
int backward_precise_math(const BackwardKernel& kernel, DType dtype) noexcept;

// Throws Error(unsupported) where the parameters of such a kernel are too many.
void check_backward_parameters(const Problem& problem, const BackwardConfig& config,
                               const std::vector<std::string>& names);

// names: of the buffers whose gradients are asked for, with Gradient::buffers. Throws as
// check_backward_parameters.
Source backward_source(const Problem& problem, const BackwardConfig& config,
                       const std::vector<std::string>& names, const PrintedBuffers& printed = {});
// LSE and D of the rows of Q; before the others.
Source backward_rows_source(const BackwardConfig& config);
// Before and after the kernels that compute S once; words for those that read them.
Source backward_one_pass_rows_source(const BackwardConfig& config, bool aligned_o);
Source backward_words_source(const Problem& problem, const BackwardConfig& config,
                             const PrintedBuffers& printed = {});
Source backward_one_pass_dq_source(const BackwardConfig& config);
// What rows have whose LSE is far from 0; before all others, where config.features.far_rows.
Source backward_far_rows_source(const Problem& problem, BackwardConfig config,
                                const PrintedBuffers& printed = {});
Source backward_sink_source(const Problem& problem, const BackwardConfig& config);
// Sums of the gradients of buffers: 0 before, float32 after. config: of the gradients.
Source backward_clear_source();
Source backward_store_source(const BackwardConfig& config);

}  // namespace attn::cuda
