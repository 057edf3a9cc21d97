// Which instruction sets this CPU and its operating system have.
#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <vector>

#include "attn/context.hpp"
#include "core/first_made.hpp"
#include "core/platform/platform.hpp"

#if defined(ATTN_X86_KERNELS)
#include <cpuid.h>
#endif

namespace attn {
namespace {

#if defined(ATTN_X86_KERNELS)

struct Registers {
  std::uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
};

Registers cpuid(std::uint32_t leaf, std::uint32_t subleaf) {
  Registers r;  // zeros where the leaf does not exist
  __get_cpuid_count(leaf, subleaf, &r.eax, &r.ebx, &r.ecx, &r.edx);
  return r;
}

// Register state that the operating system saves: bit 1 xmm, 2 ymm, 5 to 7 opmask and zmm, 17 and
// 18 AMX tiles.
std::uint64_t saved_state() {
  constexpr std::uint32_t kOsxsave = 1u << 27;
  if ((cpuid(1, 0).ecx & kOsxsave) == 0) return 0;
  std::uint32_t low = 0, high = 0;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return std::uint64_t{high} << 32 | low;
}

bool tiles_permitted() {
  static constinit core::FirstMade<const bool> permitted;
  return permitted.get([] { return core::permit_amx_tiles(); });
}

struct Feature {
  const char* name;
  std::uint32_t leaf, subleaf;
  std::uint32_t Registers::*word;
  int bit;
  InstructionSet since;  // the first set whose kernels are compiled with it; later ones keep it
};
constexpr Feature kFeatures[] = {
    {"avx2", 7, 0, &Registers::ebx, 5, InstructionSet::avx2},
    {"fma", 1, 0, &Registers::ecx, 12, InstructionSet::avx2},
    {"f16c", 1, 0, &Registers::ecx, 29, InstructionSet::avx2},
    {"avx512f", 7, 0, &Registers::ebx, 16, InstructionSet::avx512},
    {"avx512dq", 7, 0, &Registers::ebx, 17, InstructionSet::avx512},
    {"avx512bw", 7, 0, &Registers::ebx, 30, InstructionSet::avx512},
    {"avx512vl", 7, 0, &Registers::ebx, 31, InstructionSet::avx512},
    {"avx512_bf16", 7, 1, &Registers::eax, 5, InstructionSet::avx512_bf16},
    {"amx_tile", 7, 0, &Registers::edx, 24, InstructionSet::amx_bf16},
    {"amx_bf16", 7, 0, &Registers::edx, 22, InstructionSet::amx_bf16},
};

constexpr bool is_built(InstructionSet isa) {
#if !defined(ATTN_PORTABLE_KERNELS)
  if (isa == InstructionSet::portable) return false;
#endif
#if !defined(ATTN_AVX2_KERNELS)
  if (isa == InstructionSet::avx2) return false;
#endif
#if !defined(ATTN_AVX512_KERNELS)
  if (isa >= InstructionSet::avx512 && isa <= InstructionSet::amx_bf16) return false;
#endif
  (void)isa;
  return true;
}

// Empty when the set is available.
std::string missing(InstructionSet isa) {
  if (!is_built(isa)) return "the library was built without it";
  if (isa == InstructionSet::portable) return {};
  if (isa >= InstructionSet::neon) return "it is a set of AArch64";
  std::string features;
  for (const Feature& feature : kFeatures) {
    if (feature.since > isa) continue;
    const Registers registers = cpuid(feature.leaf, feature.subleaf);
    if ((registers.*feature.word >> feature.bit & 1u) == 0) {
      features += fmt::format("{}{}", features.empty() ? "" : ", ", feature.name);
    }
  }
  if (!features.empty()) return fmt::format("the CPU lacks {}", features);
  const bool tiles = isa == InstructionSet::amx_bf16;
  const std::uint64_t needed = isa == InstructionSet::avx2 ? 0x6 : tiles ? 0x600e6 : 0xe6;
  if ((saved_state() & needed) != needed) {
    return fmt::format("the operating system does not save its {} registers",
                       isa == InstructionSet::avx2 ? "ymm"
                       : tiles                     ? "tile"
                                                   : "zmm");
  }
  if (tiles && !tiles_permitted()) return "the operating system does not permit AMX tiles";
  return {};
}

#elif defined(ATTN_NEON_KERNELS)

std::string missing(InstructionSet isa) {
  if (isa == InstructionSet::portable) return "neon takes its place on AArch64";
  if (isa == InstructionSet::neon) return {};
  if (isa == InstructionSet::neon_bf16) return core::has_arm_bf16() ? "" : "the CPU lacks bf16";
  return "it is a set of x86-64";
}

#else

std::string missing(InstructionSet isa) {
  return isa == InstructionSet::portable ? "" : "the library was built without it";
}

#endif

std::vector<InstructionSetInfo> find_instruction_sets() {
  std::vector<InstructionSetInfo> sets;
  for (const InstructionSet isa :
       {InstructionSet::portable, InstructionSet::avx2, InstructionSet::avx512,
        InstructionSet::avx512_bf16, InstructionSet::amx_bf16, InstructionSet::neon,
        InstructionSet::neon_bf16}) {
    const std::string reason = missing(isa);
    sets.push_back({isa, reason.empty(), reason});
  }
  return sets;
}

}  // namespace

std::vector<InstructionSetInfo> instruction_sets() {
  // Asked once: the monitor of a virtual machine answers each CPUID, and the 80 of them took 0.3 to
  // 0.4 ms of every call that plans.
  static constinit core::FirstMade<const std::vector<InstructionSetInfo>> sets;
  return sets.get(find_instruction_sets);
}

}  // namespace attn
