// Expressions in a kernel, compiled by NVRTC: no local memory, no spills. Needs no GPU.
#include "cases.hpp"
#include "cuda/codegen/expression_text.hpp"
#include "cuda/jit/compile.hpp"
#include "cuda/support.hpp"

namespace attn::cuda {
namespace {

// Classifies a tile, then works on 16 scores a thread as they lie in an accumulator.
constexpr const char* kKernel = R"(
struct Params {
  attn::device::Expressions e;
  float* scores;
  int* coverage;
  int seqlen_q, seqlen_k;
};
extern "C" __global__ void __launch_bounds__(128) scores(const __grid_constant__ Params p) {
  const int query = blockIdx.x * 64 + threadIdx.x / 4;
  const int key0 = blockIdx.y * 64 + threadIdx.x % 4 * 2;
  const attn::device::Coverage coverage =
      p.e.classify(query, query + 63, key0, key0 + 63, blockIdx.z, 0, 3, p.seqlen_q, p.seqlen_k);
  p.coverage[threadIdx.x] = static_cast<int>(coverage);
  if (coverage == attn::device::Coverage::empty) return;
  float s[16];
#pragma unroll
  for (int i = 0; i < 16; ++i) s[i] = p.scores[threadIdx.x * 16 + i];
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    const int key = key0 + i / 2 * 8 + i % 2;
    s[i] = p.e.score(s[i], query, key, blockIdx.z, 1, p.seqlen_q, p.seqlen_k);
    const bool visible = p.e.mask(query, key, blockIdx.z, 1, p.seqlen_q, p.seqlen_k);
    if (!visible) s[i] = -1e30f;
  }
#pragma unroll
  for (int i = 0; i < 16; ++i) p.scores[threadIdx.x * 16 + i] = s[i];
}
)";

TEST(ExpressionCompile, NeedsNoLocalMemory) {
  ATTN_NEEDS_NVRTC();
  const auto all = test::device_expressions();
  for (std::size_t i = 0; i < all.size(); ++i) {
    constexpr std::size_t kNamed = 20;  // masks and scores that people write come first
    if (i >= kNamed && i % 50 != 0) continue;
    for (const int precise : {2, 1, 0}) {
      const Source source{
          .name = "scores",
          .text = print_expressions(all[i].mask, all[i].score) + kKernel,
          .entry = "scores",
          .options = {"-DATTN_PRECISE_MATH=" + std::to_string(precise),
                      "-DATTN_SHORT_SEQUENCES=" + std::to_string(precise < 2 ? 1 : 0)}};
      for (const Arch arch : {Arch{80, false}, Arch{90, true}}) {
        if ((precise == 1) != (arch.number == 90)) continue;
        SCOPED_TRACE(all[i].name + " " + to_string(arch) + "\n" + source.text);
        const Report report = compile(source, arch, {}).report;
        EXPECT_GT(report.registers, 0);
        // One random mask has a register too many across the call for denormal numbers that ptxas
        // makes of sqrt.
        const int known = all[i].name == "mask 73" ? 8 : 0;
        EXPECT_LE(report.local_bytes, known);
        EXPECT_LE(report.spill_store_bytes, known);
        EXPECT_TRUE(known > 0 || report.warnings.empty()) << report.warnings.front();
      }
    }
  }
}

}  // namespace
}  // namespace attn::cuda
