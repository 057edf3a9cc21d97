// The run-time compiler: cubins, reports, refusals. Needs NVRTC, no GPU.
#include "cuda/jit/compile.hpp"

#include <iterator>
#include <map>

#include "attn/error.hpp"
#include "cuda/cuda.hpp"
#include "cuda/support.hpp"
#include "cuda/temporary_folder.hpp"

namespace attn::cuda {
namespace {

// Each compilation is one.
const Environment kNoCache("ATTN_CACHE_DIR", "");

TEST(Arch, TextAndBack) {
  EXPECT_EQ(to_string(Arch{80, false}), "sm_80");
  EXPECT_EQ(to_string(Arch{90, true}), "sm_90a");
  EXPECT_EQ(parse_arch("sm_120a"), (Arch{120, true}));
  EXPECT_EQ(parse_arch("sm_100"), (Arch{100, false}));
  EXPECT_EQ(arch_of_capability(90), (Arch{90, true}));
  EXPECT_EQ(arch_of_capability(86), (Arch{86, false}));
  for (const char* text :
       {"", "sm_", "sm_a", "90", "sm_9", "sm_-90", "sm_90b", "sm_90aa", "sm_1e9"}) {
    expect_contains(refusal(ErrorCode::invalid_argument, [&] { parse_arch(text); }),
                    std::string("\"") + text + "\"");
  }
}

TEST(Report, ReadsTheLog) {
  const Report report = parse_log(
      "forward.cu(2): warning #177-D: variable \"z\" was declared but never referenced\n"
      "\n"
      "Remark: The warnings can be suppressed with \"-diag-suppress <warning-number>\"\n"
      "ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are "
      "serialized due to insufficient register resources for the wgmma pipeline in function 'k'\n"
      "ptxas info    : 0 bytes gmem\n"
      "ptxas info    : Compiling entry function 'other' for 'sm_90a'\n"
      "ptxas info    : Function properties for other\n"
      "ptxas         .     8 bytes stack frame, 16 bytes spill stores, 32 bytes spill loads\n"
      "ptxas info    : Used 99 registers, used 0 barriers\n"
      "ptxas info    : Compiling entry function 'k' for 'sm_90a'\n"
      "ptxas info    : Function properties for k\n"
      "ptxas         .     4384 bytes stack frame, 5504 bytes spill stores, 5380 bytes spill "
      "loads\n"
      "ptxas info    : Used 168 registers, used 1 barriers, 4384 bytes cumulative stack size, 1024 "
      "bytes smem\n"
      "ptxas info    : Compile time = 365.297 ms\n",
      "k");
  EXPECT_EQ(report.registers, 168);
  EXPECT_EQ(report.local_bytes, 4384);
  EXPECT_EQ(report.spill_store_bytes, 5504);
  EXPECT_EQ(report.spill_load_bytes, 5380);
  EXPECT_EQ(report.shared_bytes, 1024);
  ASSERT_EQ(report.warnings.size(), 2U);
  expect_contains(report.warnings[0], "never referenced");
  expect_contains(report.warnings[1], "wgmma");
}

// Texts of the kernels that a run may compile, by the name of each.
std::multimap<std::string, std::string> forward_texts(const char* descriptor,
                                                      const PlanOptions& options = {}) {
  std::multimap<std::string, std::string> found;
  for (const Source& source :
       sources(parse_problem(descriptor), Phase::forward, Arch{90, true}, options)) {
    found.emplace(source.name, source.text);
  }
  return found;
}

// A call of prompts and decoding takes two kernels, another call of the same problem one.
TEST(Sources, HoldBothKernelsOfUnevenSequences) {
  const auto found = forward_texts("b9_sq500_sk4000_hq8_hk2_d128_packedq_paged16_causal_bf16");
  EXPECT_EQ(found.count("forward_sm80_few_rows"), 1U);
  ASSERT_EQ(found.count("forward_sm90"), 2U);
  const auto many = found.equal_range("forward_sm90");
  EXPECT_NE(many.first->second, std::next(many.first)->second);
  EXPECT_EQ(forward_texts("b9_sq500_sk4000_hq8_hk2_d128_paged16_causal_bf16").count("forward_sm90"),
            1U);
}

TEST(Sources, FollowBatchInvariant) {
  const char* const batch = "b64_sq1_sk4000_hq8_hk2_d128_paged16_bf16";
  EXPECT_EQ(forward_texts(batch, {.batch_invariant = true}).count("combine"), 1U);
  EXPECT_NE(forward_texts(batch, {.batch_invariant = true}), forward_texts(batch));
}

TEST(Compile, MakesACubinWithItsReport) {
  ATTN_NEEDS_NVRTC();
  const Compiled compiled = compile(scale_source(), {90, true}, {});
  ASSERT_GT(compiled.cubin.size(), 4U);
  EXPECT_EQ(std::string(compiled.cubin.data() + 1, 3), "ELF");
  EXPECT_GT(compiled.report.registers, 0);
  EXPECT_EQ(compiled.report.local_bytes, 0);
  EXPECT_EQ(compiled.report.spill_store_bytes, 0);
  EXPECT_EQ(compiled.report.shared_bytes, 0);
  EXPECT_TRUE(compiled.report.warnings.empty());
  EXPECT_FALSE(compiled.report.from_cache);
  EXPECT_GT(compiled.report.seconds, 0);
}

TEST(Compile, TakesEveryArchitectureThatKernelsAreFor) {
  ATTN_NEEDS_NVRTC();
  for (const Arch arch : {Arch{80, false}, Arch{90, true}, Arch{100, true}, Arch{120, true}}) {
    if (arch.number >= 100 && nvrtc().version < 12080) continue;  // newer than this compiler
    EXPECT_FALSE(compile(scale_source(), arch, {}).cubin.empty()) << to_string(arch);
  }
}

// Shared memory, and an array that is indexed by a run-time number, show in the report.
TEST(Compile, ReportsSharedAndLocalMemory) {
  ATTN_NEEDS_NVRTC();
  const Source source{.name = "memory",
                      .text = R"(
extern "C" __global__ void memory(float* x, int n) {
  __shared__ float shared[256];
  float local[64];
  for (int i = 0; i < 64; ++i) local[i] = 0;
  for (int i = 0; i < n; ++i) local[(i * n) & 63] += x[i];
  shared[threadIdx.x] = local[n & 63];
  __syncthreads();
  x[threadIdx.x] = shared[255 - threadIdx.x];
})",
                      .entry = "memory",
                      .options = {}};
  const Report report = compile(source, {90, true}, {}).report;
  EXPECT_EQ(report.shared_bytes, 1024);
  EXPECT_EQ(report.local_bytes, 256);
}

// The options reach the compiler: a kernel that lives on many registers spills when it may not have
// them.
TEST(Compile, ReportsSpills) {
  ATTN_NEEDS_NVRTC();
  Source source{.name = "spills",
                .text = R"(
extern "C" __global__ void spills(float* p, int n) {
  float x[96];
#pragma unroll
  for (int i = 0; i < 96; ++i) x[i] = p[i * n];
  for (int j = 0; j < n; ++j) {
#pragma unroll
    for (int i = 0; i < 96; ++i) x[i] = x[i] * p[j] + x[(i * 7 + 1) % 96];
  }
#pragma unroll
  for (int i = 0; i < 96; ++i) p[i * n] = x[i];
})",
                .entry = "spills",
                .options = {}};
  const Report roomy = compile(source, {90, true}, {}).report;
  EXPECT_EQ(roomy.spill_store_bytes, 0);
  EXPECT_GT(roomy.registers, 96);
  source.options = {"--maxrregcount=40"};
  const Report tight = compile(source, {90, true}, {}).report;
  EXPECT_GT(tight.spill_store_bytes, 0);
  EXPECT_GT(tight.spill_load_bytes, 0);
  EXPECT_LE(tight.registers, 40);
  ASSERT_FALSE(tight.warnings.empty());
  expect_contains(tight.warnings.front(), "spill");
}

// An accumulator that is touched while wgmma may still write it makes the assembler wait after
// each.
TEST(Compile, ReportsSerialisedWgmma) {
  ATTN_NEEDS_NVRTC();
  const Source source{.name = "serialised",
                      .text = R"(
extern "C" __global__ void serialised(float* p, unsigned long long a, unsigned long long b, int n) {
  float d[4] = {0, 0, 0, 0};
  for (int i = 0; i < n; ++i) {
    asm volatile("wgmma.fence.sync.aligned;");
    asm volatile(
        "{.reg .pred q; setp.ne.b32 q, 1, 0; wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3}, %4, %5, q, 1, 1, 0, 0;}"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "l"(a), "l"(b));
    asm volatile("wgmma.commit_group.sync.aligned;");
    d[0] += p[i];
    asm volatile("wgmma.wait_group.sync.aligned 0;");
  }
  for (int i = 0; i < 4; ++i) p[threadIdx.x * 4 + i] = d[i];
})",
                      .entry = "serialised",
                      .options = {}};
  const Report report = compile(source, {90, true}, {}).report;
  ASSERT_EQ(report.warnings.size(), 1U);
  expect_contains(report.warnings[0], "wgmma.mma_async instructions are serialized");
}

TEST(Compile, ErrorsOfTheTextAreTold) {
  ATTN_NEEDS_NVRTC();
  Source source = scale_source();
  source.text += "int broken = nothing_of_this_name;\n";
  const std::string message = refusal(ErrorCode::internal, [&] {
    compile(source, {90, true}, {});
  });
  expect_contains(message, "scale for sm_90a");
  expect_contains(message, "scale.cu(5): error");
  expect_contains(message, "nothing_of_this_name");
  EXPECT_EQ(message.find("ptxas info"), std::string::npos);
}

TEST(Compile, UnknownArchitecturesAreNamed) {
  ATTN_NEEDS_NVRTC();
  const std::string message = refusal(ErrorCode::unsupported, [] {
    compile(scale_source(), {99, false}, {});
  });
  expect_contains(message, "sm_99");
  expect_contains(message, "NVRTC 1");
}

}  // namespace
}  // namespace attn::cuda
