// The translation unit of a forward kernel.
#pragma once

#include "attn/expr.hpp"
#include "attn/problem.hpp"
#include "cuda/codegen/printed_buffers.hpp"
#include "cuda/codegen/source.hpp"
#include "cuda/kernels/forward_kernel.hpp"

namespace attn::cuda {

// The score expression that kernels evaluate: the problem's; where scores are multiplied by a
// number that is not positive, the score itself, since kernels without an expression take the
// largest Q K^T for the largest score; else empty.
expr::Expr score_expression(const Problem& problem);

// The constants of a configuration that say how K and V are stored.
void print_cache_types(const ForwardFeatures& features, ConfigText& to);

// ATTN_PRECISE_MATH of its kernels (src/cuda/device/expr/fast.cuh).
int precise_math(DType dtype) noexcept;

// Throws Error(unsupported) where the parameters of the kernel are too many: all others of a
// forward pass have fewer.
void check_forward_parameters(const Problem& problem, const ForwardConfig& config);

// Throws as check_forward_parameters.
Source forward_source(const Problem& problem, const ForwardConfig& config,
                      const PrintedBuffers& printed = {});
// Classifies blocks of keys before a forward kernel with config.classified.
Source classify_source(const Problem& problem, const ForwardConfig& config,
                       const PrintedBuffers& printed = {});
// Merges the partial results of splits.
Source combine_source(const ForwardConfig& config);

}  // namespace attn::cuda
