// A backward pass with the tensors of a call.
#include <algorithm>
#include <array>
#include <cstddef>
#include <memory_resource>
#include <optional>
#include <string>
#include <vector>

#include "core/validate/validate.hpp"
#include "cuda/backward/backward.hpp"
#include "cuda/backward/prepare.hpp"
#include "cuda/backward/workspace.hpp"
#include "cuda/driver/device.hpp"
#include "cuda/driver/pointer.hpp"
#include "cuda/plan_state.hpp"
#include "cuda/problem_parameters.hpp"

namespace attn::cuda {
namespace {

Asked asked_of(const Inputs& inputs, const Outputs& outputs, const OutputGradients& d_outputs,
               const Gradients& gradients) {
  Asked asked;
  asked.tensors.seqused_q = inputs.seqused_q.given();
  asked.tensors.seqused_k = inputs.seqused_k.given();
  asked.tensors.wide = wide_tensors(inputs);
  asked.tensors.aligned_o = alignment_of(outputs.o) % 16 == 0;
  for (const Tensor* t : {&inputs.q, &inputs.k, &inputs.v, &d_outputs.o, &gradients.dq,
                          &gradients.dk, &gradients.dv}) {
    if (t->given() && alignment_of(*t) % 16 != 0) asked.tensors.aligned = false;
  }
  asked.gradients = {gradients.dq.given(), gradients.dk.given(), gradients.dv.given()};
  for (const Tensor* t : {&gradients.dk, &gradients.dv}) {
    if (t->given() && t->dtype == DType::f32) asked.tensors.float_sums = true;
  }
  asked.sink = gradients.dsink.given();
  return asked;
}

void fill_backward_tensors(device::BackwardParams& to, const Problem& p, const Inputs& inputs,
                           const Outputs& outputs, const OutputGradients& d_outputs,
                           const Gradients& gradients, const Tensor& workspace) {
  fill_tensors(to, p, inputs, outputs);
  to.o = outputs.o.data;
  to.lse = static_cast<const float*>(outputs.lse.data);
  to.d_o = d_outputs.o.data;
  to.d_o_strides = strides_of(d_outputs.o, p.layout_q);
  if (d_outputs.lse.given()) {
    to.d_lse = static_cast<const float*>(d_outputs.lse.data);
    to.d_lse_strides = lse_strides_of(d_outputs.lse, p.layout_q);
  }
  const auto set = [](const Tensor& t, Layout layout, void*& data, device::Strides& strides) {
    if (!t.given()) return;
    data = t.data;
    strides = strides_of(t, layout);
  };
  set(gradients.dq, p.layout_q, to.dq, to.dq_strides);
  set(gradients.dk, p.layout_k, to.dk, to.dk_strides);
  set(gradients.dv, p.layout_k, to.dv, to.dv_strides);
  if (gradients.dsink.given()) {
    to.dsink = static_cast<float*>(gradients.dsink.data);
    to.dsink_stride = gradients.dsink.strides[0];
  }
  if (inputs.key_list.given()) {
    to.key_lists = inputs.key_list.data;
    to.key_list_strides = key_list_strides_of(inputs.key_list, p.layout_q);
    to.list_length = static_cast<int>(p.key_list);
  }
  to.row_terms = static_cast<device::RowTerms*>(workspace.data);
}

// expressions: the bytes of this struct, for kernels that are given it.
void launch_rows(const RowsLaunch& rows, device::BackwardParams& parameters, const Context& context,
                 std::byte* expressions = nullptr) {
  std::array<void*, 2> arguments{&parameters, expressions};
  if (rows.kernel != nullptr && rows.launch.grid[0] > 0) {
    rows.kernel->launch(rows.launch, context.stream, arguments.data());
  }
}

// expressions, slope: the bytes of these structs.
void launch_gradients(const BackwardRun& run, const DeviceInfo& device,
                      device::BackwardParams& parameters, std::byte* expressions, std::byte* slope,
                      BackwardMaps* maps, const Context& context) {
  if (run.one_pass.main != nullptr) {
    return launch_one_pass(run.one_pass, run.gradients.front().config, device, parameters, maps,
                           expressions, slope, context);
  }
  std::array<void*, 3> arguments{&parameters, expressions, slope};
  for (const GradientLaunch& gradient : run.gradients) {
    if (gradient.launch.grid[0] == 0) continue;
    gradient.kernel->launch(gradient.launch, context.stream, arguments.data());
  }
}

}  // namespace

void launch_backward(const Plan& plan, const Inputs& inputs, const Outputs& outputs,
                     const OutputGradients& d_outputs, const Gradients& gradients,
                     const Context& context) {
  const Problem& p = plan.problem;
  check_buffer_gradients(p, gradients);
  const ContextGuard guard(plan.device.index);
  Asked asked = asked_of(inputs, outputs, d_outputs, gradients);
  std::optional<BackwardRun> own;
  const auto suits = [&](const BackwardRun& run) {
    return run.signature.asked == asked &&
           std::ranges::equal(
               run.signature.names, gradients.buffers, {}, {},
               [](const auto& buffer) -> const std::string& { return buffer.first; }) &&
           run.all_buffers.prints(run.signature.printed, inputs.buffers);
  };
  const auto find = [&] {
    return &run_of(plan, own, suits, [&] {
      BackwardSignature signature{.asked = asked,
                                  .printed = buffers_pack(p.mask, p.score).printed(inputs.buffers)};
      for (const auto& [name, tensor] : gradients.buffers) signature.names.push_back(name);
      return prepare_backward(plan, signature, context);
    });
  };
  const BackwardRun* run = find();
  std::optional<BackwardMaps> maps, buffer_maps;
  // Whether the driver makes the maps that a launch needs.
  const auto make_maps = [&](std::optional<BackwardMaps>& made, const BackwardConfig* config) {
    if (config == nullptr || config->kernel->maps == nullptr) return true;
    made = config->kernel->maps(*config, p, inputs, d_outputs.o);
    return made.has_value();
  };
  if (!make_maps(maps, run->main_config()) || !make_maps(buffer_maps, run->buffers_config())) {
    asked.tensors.mapped = false;
    run = find();
  }
  device::BackwardParams parameters = run->parameters;
  fill_backward_tensors(parameters, p, inputs, outputs, d_outputs, gradients, context.workspace);
  if (run->places) run->places->give(parameters);
  if (const BackwardConfig* config = run->main_config();
      config != nullptr && config->kernel->place) {
    config->kernel->place(parameters, p, *config,
                          static_cast<std::byte*>(context.workspace.data) + run->kernel_offset);
  }
  if (const BackwardConfig* config = run->main_config();
      config != nullptr && config->kernel->takes_key_lists &&
      (parameters.dk != nullptr || parameters.dv != nullptr)) {
    const std::int64_t bytes = config->kernel->workspace(p, *config).value();
    if (bytes > 0) {  // none of no keys
      check(api().cuMemsetD32Async(reinterpret_cast<CUdeviceptr>(context.workspace.data) +
                                       static_cast<CUdeviceptr>(run->kernel_offset),
                                   0, static_cast<std::size_t>(bytes) / sizeof(float),
                                   static_cast<CUstream>(context.stream)),
            "cuMemsetD32Async of sums of dK and dV");
    }
  }
  core::CallMemory memory;
  std::pmr::vector<std::byte> expressions(run->expressions.size(), &memory.resource());
  std::pmr::vector<std::byte> slope(run->slope.size(), &memory.resource());
  run->expressions.pack(inputs.buffers, expressions.data());
  run->slope.pack(inputs.buffers, slope.data());
  if (run->far_rows.kernel != nullptr) {
    const auto any = reinterpret_cast<CUdeviceptr>(context.workspace.data) +
                     static_cast<CUdeviceptr>(run->any_far_row);
    check(api().cuMemsetD32Async(any, 0, 1, static_cast<CUstream>(context.stream)),
          "cuMemsetD32Async of far rows");
    launch_rows(run->far_rows, parameters, context, expressions.data());
  }
  launch_rows(run->rows, parameters, context);
  launch_gradients(*run, device_info(plan.device.index), parameters, expressions.data(),
                   slope.data(), maps ? &*maps : nullptr, context);
  launch_rows(run->sink, parameters, context);
  if (run->buffers) {
    run->buffers->launch(parameters, buffer_maps ? &*buffer_maps : nullptr, inputs, gradients,
                         context);
  }
}

}  // namespace attn::cuda
