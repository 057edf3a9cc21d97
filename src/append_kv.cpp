// attn::append_kv: checks its arguments and has a backend do the work.
#include "attn/append_kv.hpp"

#include <fmt/format.h>

#include "attn/error.hpp"
#include "core/append/append.hpp"
#include "core/validate/enumerator.hpp"
#include "cpu/append/append_kv.hpp"
#include "cuda/append_kv.hpp"
#include "cuda/driver/device.hpp"
#include "cuda/driver/pointer.hpp"
#include "reference/append_kv.hpp"

namespace attn {
namespace {

void append_on_gpu(const core::AppendCall& call, const AppendInputs& inputs,
                   const AppendOutputs& outputs, const Context& context) {
  const Device device = call.parts()[0].from.device;
  const core::ArgumentCheck check(nullptr, device);
  const cuda::ContextGuard guard(device.index);
  cuda::check_memory(check, core::named(inputs), device.index);
  cuda::check_memory(check, core::named(outputs), device.index);
  cuda::append_kv(call, context);
}

}  // namespace

void append_kv(const AppendProblem& problem, const AppendInputs& inputs,
               const AppendOutputs& outputs, const Context& context) {
  const core::AppendCall call = core::check_append(problem, inputs, outputs);
  const Device device = call.parts()[0].from.device;
  const bool gpu = device.type == DeviceType::cuda;
  if (problem.backend != Backend::automatic && gpu != (problem.backend == Backend::cuda)) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("backend is {}, the device of the tensors is {}; accepted on a GPU is "
                            "cuda, elsewhere are cpu and reference",
                            name(problem.backend), to_string(device)));
  }
  if (gpu) return append_on_gpu(call, inputs, outputs, context);
  if (problem.backend == Backend::reference) return reference::append_kv(call);
  core::check_enumerator(core::ArgumentCheck(), "isa of the context", context.isa,
                         "InstructionSet");
  cpu::append_kv(call, context);
}

}  // namespace attn
