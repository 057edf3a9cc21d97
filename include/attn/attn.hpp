// attn.cpp: exact attention. Include this.
//
// A call is described (Problem, problem.hpp), planned (Plan, plan.hpp) and run (run.hpp); forward()
// and backward() do all three. What holds for every declaration of these headers:
//
// - Memory is the caller's. A Tensor is a view with strides in elements (tensor.hpp). A call writes
//   its outputs and Context::workspace, nothing else; one that throws Error(invalid_argument |
//   unsupported | unavailable | out_of_memory) has written no output.
// - Failures are attn::Error (error.hpp). std::bad_alloc comes through where the machine has no
//   memory left for the library's own small objects.
// - Functions may be called from several threads at the same time. An object may be read by several
//   threads, or changed by one.
// - Moving what describes a call (Problem, Expr, BlockMask, Inputs, dist::Plan, ...) copies it, so
//   what was moved from is unchanged. A Plan that was moved from is refused.
#pragma once

#include "attn/append_kv.hpp"
#include "attn/block_list.hpp"
#include "attn/cache_type.hpp"
#include "attn/context.hpp"
#include "attn/dropout_mask.hpp"
#include "attn/error.hpp"
#include "attn/expr.hpp"
#include "attn/machine.hpp"
#include "attn/mask.hpp"
#include "attn/matmul.hpp"
#include "attn/plan.hpp"
#include "attn/problem.hpp"
#include "attn/run.hpp"
#include "attn/scalar.hpp"
#include "attn/softmax.hpp"
#include "attn/tensor.hpp"
#include "attn/version.hpp"
