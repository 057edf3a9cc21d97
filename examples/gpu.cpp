// Causal attention of 16 heads over 4096 positions on a GPU, without a CUDA header: device memory
// and stream come from the caller of attend(). main() has neither; it says how the problem would
// run here, or why it cannot.
#include <attn/attn.hpp>
#include <cstdio>

constexpr attn::Device kGpu{attn::DeviceType::cuda, 0};

// o <- attention of q, k, v: bf16 [1, 4096, 16, 128] in device memory, 16-byte aligned. stream: a
// CUstream or cudaStream_t, null for the default one; the work is put there and the call returns.
// Throws attn::Error. The algorithm is named because this one needs no workspace for such a mask.
void attend(void* q, void* k, void* v, void* o, void* stream) {
  const auto view = [](void* data) {
    return attn::tensor(data, attn::DType::bf16, {1, 4096, 16, 128}, kGpu);
  };
  attn::Context context;
  context.stream = stream;
  const attn::Problem problem{.mask = attn::causal()};
  attn::forward(problem, {.q = view(q), .k = view(k), .v = view(v)}, {.o = view(o)},
                {.algorithm = attn::Algorithm::flash_attention_2}, context);
}

int main() {
  try {
    const attn::Plan plan =
        attn::make_plan(attn::parse_problem("b1_n4096_h16_d128_causal_bf16"), attn::Phase::forward,
                        {.algorithm = attn::Algorithm::flash_attention_2, .device = kGpu});
    std::printf("%s\n", attn::to_string(plan).c_str());
  } catch (const attn::Error& error) {
    std::printf("%s\n", error.what());
    return error.code() == attn::ErrorCode::unavailable ? 0 : 1;  // no GPU is no failure
  }
}
