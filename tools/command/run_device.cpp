#include "command/run_device.hpp"

#include <utility>

namespace attn::command {

OnDevice::OnDevice(const RunProblem& read, const Outputs& outputs, const Plan& plan,
                   Context& context)
    : host_(outputs),
      plan_(plan),
      stream_(plan.device.index),
      workspace_(plan),
      inputs_(read.inputs) {
  context.stream = stream_.handle();
  context.workspace = workspace_.tensor();
  for (Tensor* tensor :
       {&inputs_.q, &inputs_.k, &inputs_.v, &inputs_.cu_seqlens_q, &inputs_.cu_seqlens_k,
        &inputs_.seqused_q, &inputs_.seqused_k, &inputs_.page_table, &inputs_.sink}) {
    if (tensor->given()) *tensor = harness::upload(*tensor, plan.device, memory_);
  }
  for (auto& [name, tensor] : inputs_.buffers) {
    tensor = harness::upload(tensor, plan.device, memory_);
  }
  for (const expr::Expr* e : {&read.problem.mask, &read.problem.score}) {
    for (const auto& buffer : expr::buffers(*e)) bind(*buffer);
  }
  outputs_.o = harness::upload(outputs.o, plan.device, memory_);
  outputs_.lse = harness::upload(outputs.lse, plan.device, memory_);
}

// A tensor that the expression itself holds.
void OnDevice::bind(const expr::Buffer& buffer) {
  for (const auto& [name, tensor] : inputs_.buffers) {
    if (name == buffer.name()) return;
  }
  inputs_.buffers.emplace_back(buffer.name(),
                               harness::upload(buffer.tensor(), plan_.device, memory_));
}

void OnDevice::run(const Context& context) const {
  forward(plan_, inputs_, outputs_, context);
  stream_.synchronize();
}

void OnDevice::download() const {
  for (const auto& [from, to] :
       {std::pair{outputs_.o, host_.o}, std::pair{outputs_.lse, host_.lse}}) {
    for (const cuda::DeviceBuffer& memory : memory_) {
      if (memory.data() == from.data) memory.download(to.data, memory.bytes());
    }
  }
}

}  // namespace attn::command
