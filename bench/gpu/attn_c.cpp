// The forward pass for Python benchmarks: plans by descriptor, runs on device pointers. Tensors are
// contiguous, [batch, seqlen, heads, head_dim].
#include <cstdio>

#include "attn/attn.hpp"

namespace {

struct Handle {
  attn::Problem problem;
  attn::Plan plan;
  attn::Tensor slopes;  // of alibi, when the problem has it
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
    *workspace_bytes = handle->plan.workspace_bytes;
    return handle;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: %s\n", descriptor, error.what());
    return nullptr;
  }
}

// 0 when the work is in the stream. slopes: f32 [heads_q] of alibi, or null.
int attn_forward(void* plan, void* q, void* k, void* v, void* o, void* lse, void* slopes,
                 void* workspace, long long workspace_bytes, void* stream) {
  try {
    const auto& [problem, made, unused] = *static_cast<Handle*>(plan);
    const attn::Device device{attn::DeviceType::cuda, 0};
    const attn::Problem& p = problem;
    attn::Inputs inputs;
    inputs.q = attn::tensor(q, p.dtype, {p.batch, p.seqlen_q, p.heads_q, p.head_dim}, device);
    inputs.k = attn::tensor(k, p.dtype, {p.batch, p.seqlen_k, p.heads_k, p.head_dim}, device);
    inputs.v = attn::tensor(v, p.dtype, {p.batch, p.seqlen_k, p.heads_k, p.head_dim_v}, device);
    if (slopes != nullptr) {
      inputs.buffers = {{"slopes", attn::tensor(slopes, attn::DType::f32, {p.heads_q}, device)}};
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
