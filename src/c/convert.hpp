// Structures of attn/attn.h as the library's own. Each function throws Error(invalid_argument) that
// names the member, its value and what is accepted; shapes are checked by the calls themselves.
#pragma once

#include <cstddef>
#include <string_view>

#include "attn/attn.h"
#include "attn/context.hpp"
#include "attn/expr.hpp"
#include "attn/plan.hpp"
#include "attn/problem.hpp"
#include "attn/run.hpp"
#include "attn/tensor.hpp"

namespace attn::c {

// Not given, of a null pointer.
Tensor tensor_of(std::string_view name, const attn_tensor* from);
attn_device device_of(Device device);

expr::Bindings bindings_of(std::string_view name, const attn_named_tensor* from, std::size_t count);
Problem problem_of(const attn_problem* given_problem);
PlanOptions options_of(const attn_options* given_options);
Context context_of(const attn_context* given_context);
Inputs inputs_of(const attn_inputs* given_inputs);
Outputs outputs_of(std::string_view name, const attn_outputs* given_outputs);
OutputGradients output_gradients_of(const attn_output_gradients* given_gradients);
Gradients gradients_of(const attn_gradients* given_gradients);

}  // namespace attn::c
