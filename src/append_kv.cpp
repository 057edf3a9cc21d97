// attn::append_kv: checks its arguments and has a backend do the work.
#include "attn/append_kv.hpp"

#include <fmt/format.h>

#include "attn/error.hpp"
#include "core/append/append.hpp"
#include "core/validate/enumerator.hpp"
#include "cpu/append/append_kv.hpp"
#include "reference/append_kv.hpp"

namespace attn {

void append_kv(const AppendProblem& problem, const AppendInputs& inputs,
               const AppendOutputs& outputs, const Context& context) {
  const core::AppendCall call = core::check_append(problem, inputs, outputs);
  const Device device = call.parts()[0].from.device;
  const bool gpu = device.type == DeviceType::cuda;
  if (gpu) {
    throw Error(ErrorCode::unsupported,
                fmt::format("q, k and v are on {}; accepted is the CPU", to_string(device)));
  }
  switch (problem.backend) {
    case Backend::reference:
      return reference::append_kv(call);
    case Backend::automatic:
    case Backend::cpu:
      core::check_enumerator(core::ArgumentCheck(), "isa of the context", context.isa,
                             "InstructionSet");
      return cpu::append_kv(call, context);
    case Backend::cuda:
      break;
  }
  throw Error(ErrorCode::invalid_argument,
              fmt::format("backend is {}, the device of the tensors is {}; accepted on a GPU is "
                          "cuda, elsewhere are cpu and reference",
                          name(problem.backend), to_string(device)));
}

}  // namespace attn
