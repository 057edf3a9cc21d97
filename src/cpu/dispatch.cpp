// Which table of tile verbs serves an instruction set, and what its multiply-adds can do at most.
#include <algorithm>
#include <limits>
#include <mutex>
#include <string>

#include "attn/error.hpp"
#include "attn/machine.hpp"
#include "core/first_made.hpp"
#include "core/validate/enumerator.hpp"
#include "cpu/plan_check.hpp"
#include "cpu/tile_ops.hpp"

namespace attn::cpu {

#if defined(ATTN_NEON_KERNELS)
extern const TileOps kNeonOps;
extern const OperandVerbs kNeonBf16Ops;
#endif
#if defined(ATTN_PORTABLE_KERNELS)
extern const TileOps kPortableOps;
#endif
#if defined(ATTN_AVX2_KERNELS)
extern const TileOps kAvx2Ops;
#endif
#if defined(ATTN_AVX512_KERNELS)
extern const TileOps kAvx512Ops[2];
extern const OperandVerbs kAvx512Bf16Ops;
extern const OperandVerbs kAmxBf16Ops;
#endif

namespace {

// A table of bf16 operands. Compiling the verbs of f32 for it again took as long as all of its own
// four times over.
[[maybe_unused]] TileOps with_verbs_of(const TileOps& f32, const OperandVerbs& own) {
  TileOps ops = f32;
  static_cast<OperandVerbs&>(ops) = own;
  return ops;
}

}  // namespace

const TileOps& tile_ops([[maybe_unused]] InstructionSet isa, [[maybe_unused]] DType operand) {
#if defined(ATTN_AVX512_KERNELS)
  const TileOps& avx512 = kAvx512Ops[__builtin_cpu_is("intel") != 0 ? 1 : 0];
  static constinit core::FirstMade<const TileOps> amx_bf16, avx512_bf16;
  switch (isa) {
    case InstructionSet::amx_bf16:
      if (operand != DType::bf16) return avx512;
      return amx_bf16.get([] { return with_verbs_of(kAvx512Ops[0], kAmxBf16Ops); });
    case InstructionSet::avx512_bf16:
      if (operand != DType::bf16) return avx512;
      return avx512_bf16.get([] { return with_verbs_of(kAvx512Ops[0], kAvx512Bf16Ops); });
    case InstructionSet::avx512:
      return avx512;
    case InstructionSet::avx2:
    case InstructionSet::portable:
    case InstructionSet::neon:
    case InstructionSet::neon_bf16:
    case InstructionSet::automatic:  // best_instruction_set has chosen
      break;
  }
#endif
#if defined(ATTN_AVX2_KERNELS)
  if (isa == InstructionSet::avx2) return kAvx2Ops;
#endif
#if defined(ATTN_NEON_KERNELS)
  static constinit core::FirstMade<const TileOps> neon_bf16;
  if (isa != InstructionSet::neon_bf16 || operand != DType::bf16) return kNeonOps;
  return neon_bf16.get([] { return with_verbs_of(kNeonOps, kNeonBf16Ops); });
#elif defined(ATTN_PORTABLE_KERNELS)
  return kPortableOps;
#else  // a build with one set alone (ATTN_DEMO), which has become unavailable
  throw Error(ErrorCode::unavailable, "instruction set " + std::string(name(isa)) +
                                          " is not available: the library was built without it");
#endif
}

bool has_bf16_products(InstructionSet isa, bool only_fast) {
  if (isa == InstructionSet::neon_bf16) return true;
#if defined(ATTN_X86_KERNELS)
  if (isa == InstructionSet::amx_bf16) return true;
  return isa == InstructionSet::avx512_bf16 && (!only_fast || __builtin_cpu_is("amd") != 0);
#else
  (void)only_fast;
  return false;
#endif
}

InstructionSet best_instruction_set(InstructionSet wanted) {
  InstructionSet best = InstructionSet::portable;  // every machine has this or another
  for (const InstructionSetInfo& info : instruction_sets()) {
    if (info.isa == wanted && !info.available) {
      throw Error(ErrorCode::unavailable, "instruction set " + std::string(name(wanted)) +
                                              " is not available: " + info.reason);
    }
    if (info.available) best = info.isa;
  }
  return wanted == InstructionSet::automatic ? best : wanted;
}

}  // namespace attn::cpu

namespace attn {

double measure_peak_gflops(DType dtype, const Context& context, double seconds) {
  if (!is_floating(dtype)) {
    throw Error(ErrorCode::invalid_argument,
                "dtype is " + std::string(name(dtype)) + "; accepted are f32, bf16, f16 and f64");
  }
  if (!(seconds > 0 && seconds <= std::numeric_limits<double>::max())) {
    throw Error(ErrorCode::invalid_argument,
                "seconds is " + std::to_string(seconds) + "; accepted are finite numbers above 0");
  }
  core::check_enumerator(core::ArgumentCheck(), "isa of the context", context.isa,
                         "InstructionSet");
  const InstructionSet isa = cpu::best_instruction_set(context.isa);
  const bool bf16 =
      dtype == DType::bf16 && cpu::has_bf16_products(isa, context.isa == InstructionSet::automatic);
  const cpu::TileOps& ops = cpu::tile_ops(isa, bf16 ? DType::bf16 : DType::f32);
  const std::shared_ptr<Executor> executor = cpu::executor_of(context);
  std::mutex mutex;
  double flops = 0;
  executor->parallel_for(executor->concurrency(), [&](std::int64_t, int) {
    const double done = ops.peak_flops(seconds);
    const std::lock_guard<std::mutex> lock(mutex);
    flops += done;
  });
  return flops / seconds * 1e-9;
}

}  // namespace attn
