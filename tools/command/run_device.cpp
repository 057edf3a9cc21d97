#include "command/run_device.hpp"

namespace attn::command {

OnDevice::OnDevice(const RunProblem& read, const Outputs& outputs, const OutputGradients& d_outputs,
                   const Gradients& gradients, const Plan& plan, Context& context)
    : plan_(plan), stream_(plan.device.index), workspace_(plan), inputs_(read.inputs) {
  context.stream = stream_.handle();
  context.workspace = workspace_.tensor();
  for (Tensor* tensor :
       {&inputs_.q, &inputs_.k, &inputs_.v, &inputs_.cu_seqlens_q, &inputs_.cu_seqlens_k,
        &inputs_.seqused_q, &inputs_.seqused_k, &inputs_.page_table, &inputs_.key_list,
        &inputs_.scale_q, &inputs_.scale_k, &inputs_.scale_v, &inputs_.prefix_k, &inputs_.prefix_v,
        &inputs_.prefix_page_table, &inputs_.sink, &inputs_.rng_state}) {
    *tensor = here(*tensor);
  }
  for (auto& [name, tensor] : inputs_.buffers) {
    if (tensor.given()) tensor = here(tensor);  // scalars stay
  }
  for (const expr::Expr* e : {&read.problem.mask, &read.problem.score}) {
    for (const auto& buffer : expr::buffers(*e)) bind(*buffer);
  }
  if (plan.phase == Phase::forward) {
    outputs_ = {.o = written(outputs.o),
                .lse = written(outputs.lse),
                .max_logit = written(outputs.max_logit)};
    return;
  }
  outputs_ = {.o = here(outputs.o), .lse = here(outputs.lse)};
  d_outputs_ = {here(d_outputs.o), here(d_outputs.lse)};
  gradients_ = {.dq = written(gradients.dq),
                .dk = written(gradients.dk),
                .dv = written(gradients.dv),
                .dsink = written(gradients.dsink),
                .buffers = {}};
  for (const auto& [name, tensor] : gradients.buffers) {
    gradients_.buffers.emplace_back(name, written(tensor));
  }
}

Tensor OnDevice::here(const Tensor& host) {
  return host.given() ? verify::upload(host, plan_.device, memory_) : Tensor{};
}

Tensor OnDevice::written(const Tensor& host) {
  const Tensor tensor = here(host);
  if (tensor.data != nullptr) written_.emplace_back(&memory_.back(), host);
  return tensor;
}

// A tensor that the expression itself holds.
void OnDevice::bind(const expr::Buffer& buffer) {
  if (!buffer.tensor().given()) return;  // a scalar stays where it is
  for (const auto& [name, tensor] : inputs_.buffers) {
    if (name == buffer.name()) return;
  }
  inputs_.buffers.emplace_back(buffer.name(), here(buffer.tensor()));
}

void OnDevice::run(const Context& context) const {
  if (plan_.phase == Phase::forward) {
    forward(plan_, inputs_, outputs_, context);
  } else {
    backward(plan_, inputs_, outputs_, d_outputs_, gradients_, context);
  }
  stream_.synchronize();
}

void OnDevice::download() const {
  for (const auto& [memory, host] : written_) memory->download(host.data, memory->bytes());
}

}  // namespace attn::command
