// The forward pass for Python benchmarks: plans by descriptor, runs on device pointers. Tensors are
// contiguous, [batch, seqlen, heads, head_dim].
#include <cstdio>
#include <memory>
#include <vector>

#include "attn/attn.hpp"

namespace {

struct Handle {
  attn::Problem problem;
  attn::Plan plan;
  // What mask and score read, in the order of their first use, mask first.
  std::vector<std::shared_ptr<const attn::expr::Buffer>> buffers;
};

}  // namespace

extern "C" {

// Null on an error, whose text goes to stderr. kernel: a kernel's name or "".
void* attn_plan(const char* descriptor, const char* kernel, long long* workspace_bytes) {
  try {
    const attn::Problem problem = attn::parse_problem(descriptor);
    attn::PlanOptions options;
    options.device = {attn::DeviceType::cuda, 0};
    options.kernel = kernel;
    auto* handle = new Handle{problem, attn::make_plan(problem, attn::Phase::forward, options), {}};
    for (const attn::expr::Expr& e : {problem.mask, problem.score}) {
      if (e.empty()) continue;
      const auto found = attn::expr::buffers(e);
      handle->buffers.insert(handle->buffers.end(), found.begin(), found.end());
    }
    *workspace_bytes = handle->plan.workspace_bytes;
    return handle;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: %s\n", descriptor, error.what());
    return nullptr;
  }
}

// 0 when the work is in the stream. buffers: device pointers, in the order of Handle::buffers, each
// contiguous and of the shape that its declaration gives.
int attn_forward(void* plan, void* q, void* k, void* v, void* o, void* lse, void** buffers,
                 void* workspace, long long workspace_bytes, void* stream) {
  try {
    const auto& [problem, made, declared] = *static_cast<Handle*>(plan);
    const attn::Device device{attn::DeviceType::cuda, 0};
    const attn::Problem& p = problem;
    attn::Inputs inputs;
    inputs.q = attn::tensor(q, p.dtype, {p.batch, p.seqlen_q, p.heads_q, p.head_dim}, device);
    inputs.k = attn::tensor(k, p.dtype, {p.batch, p.seqlen_k, p.heads_k, p.head_dim}, device);
    inputs.v = attn::tensor(v, p.dtype, {p.batch, p.seqlen_k, p.heads_k, p.head_dim_v}, device);
    for (std::size_t i = 0; i < declared.size(); ++i) {
      attn::Tensor tensor = declared[i]->tensor();
      tensor.data = buffers[i];
      tensor.device = device;
      inputs.buffers.emplace_back(declared[i]->name(), tensor);
    }
    attn::Outputs outputs;
    outputs.o = attn::tensor(o, p.dtype, {p.batch, p.seqlen_q, p.heads_q, p.head_dim_v}, device);
    outputs.lse = attn::tensor(lse, attn::DType::f32, {p.batch, p.heads_q, p.seqlen_q}, device);
    attn::Context context;
    context.stream = stream;
    if (workspace_bytes > 0) {
      context.workspace = attn::tensor(workspace, attn::DType::u8, {workspace_bytes}, device);
    }
    attn::forward(made, inputs, outputs, context);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
}
