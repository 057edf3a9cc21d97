// Matrix products.
#include "attn/matmul.hpp"

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "attn/attn.h"
#include "c/boundary.hpp"
#include "c/convert.hpp"
#include "c/handles.hpp"
#include "matmul.hpp"

using attn::c::context_of;
using attn::c::guarded;
using attn::c::needed;
using attn::c::tensor_of;

namespace {

attn::MatmulInputs matmul_inputs_of(const attn_matmul_inputs* given) {
  const attn_matmul_inputs from = attn::c::taken("inputs", &needed("inputs", given));
  return {tensor_of("a", from.a),
          tensor_of("b", from.b),
          tensor_of("bias", from.bias),
          tensor_of("scale_a", from.scale_a),
          tensor_of("scale_b", from.scale_b),
          tensor_of("block_mask", from.block_mask)};
}

// The enumerator of that name, the first of which is that of a null pointer.
template <class Enum, std::size_t n>
Enum enumerator(std::string_view what, const char* text, const Enum (&all)[n]) {
  if (text == nullptr) return all[0];
  std::string accepted;
  for (const Enum value : all) {
    if (attn::name(value) == text) return value;
    accepted += (accepted.empty() ? "" : ", ") + std::string(attn::name(value));
  }
  attn::c::refuse(std::string(what) + " is '" + std::string(text).substr(0, 60) +
                  "'; accepted are " + accepted);
}

struct Asked {
  attn::MatmulProblem problem{};
  attn::MatmulOptions options{};
};

Asked asked(const attn::MatmulInputs& inputs, const attn::Tensor& c,
            const attn_matmul_options* given) {
  const attn_matmul_options from = attn::c::taken("options", given);
  Asked call;
  call.problem =
      attn::describe(inputs, c,
                     from.activation == nullptr ? attn::Activation::none
                                                : attn::parse_activation(from.activation));
  call.problem.accumulate = attn::c::flag("accumulate", from.accumulate);
  call.problem.float8 = enumerator("float8", from.float8,
                                   {attn::Float8::none, attn::Float8::e4m3, attn::Float8::e5m2});
  call.problem.format_b = enumerator("format_b", from.format_b,
                                     {attn::BlockFormat::none, attn::BlockFormat::q8_0,
                                      attn::BlockFormat::q4_0, attn::BlockFormat::q4_1});
  call.problem.masked =
      enumerator("masked", from.masked,
                 {attn::MaskedMatrix::none, attn::MaskedMatrix::b, attn::MaskedMatrix::c});
  call.problem.block = from.block;
  if (from.backend != nullptr) call.options.backend = attn::parse_backend(from.backend);
  if (from.rung != nullptr) call.options.rung = from.rung;
  call.options.threads = from.threads;
  call.options.device = c.device;
  return call;
}

}  // namespace

attn_status attn_matmul(const attn_matmul_inputs* inputs, const attn_tensor* c,
                        const attn_matmul_options* options, const attn_context* context) {
  return guarded([&] {
    const attn::MatmulInputs from = matmul_inputs_of(inputs);
    const attn::Tensor to = tensor_of("c", &needed("c", c));
    const Asked call = asked(from, to, options);
    attn::matmul_planned(call.problem, from, to, call.options, context_of(context));
  });
}

attn_status attn_matmul_plan_make(const attn_matmul_inputs* inputs, const attn_tensor* c,
                                  const attn_matmul_options* options, const attn_context* context,
                                  attn_matmul_plan** plan) {
  return guarded([&] {
    attn_matmul_plan*& made = attn::c::result("plan", plan);
    const Asked call = asked(matmul_inputs_of(inputs), tensor_of("c", &needed("c", c)), options);
    made = new attn_matmul_plan{attn::make_plan(call.problem, call.options, context_of(context))};
  });
}

attn_status attn_run_matmul(const attn_matmul_plan* plan, const attn_matmul_inputs* inputs,
                            const attn_tensor* c, const attn_context* context) {
  return guarded([&] {
    attn::matmul(needed("plan", plan).plan, matmul_inputs_of(inputs),
                 tensor_of("c", &needed("c", c)), context_of(context));
  });
}

attn_status attn_matmul_plan_workspace_bytes(const attn_matmul_plan* plan, int64_t* bytes) {
  return guarded(
      [&] { attn::c::result("bytes", bytes) = needed("plan", plan).plan.workspace_bytes; });
}

attn_status attn_matmul_plan_text(const attn_matmul_plan* plan, char* text, size_t capacity,
                                  size_t* length) {
  return guarded(
      [&] { attn::c::give_text(to_string(needed("plan", plan).plan), text, capacity, length); });
}

void attn_matmul_plan_free(attn_matmul_plan* plan) { delete plan; }
