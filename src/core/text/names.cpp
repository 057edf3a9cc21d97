// Names of the enumerators that users give and read, and their inverses.
#include "attn/context.hpp"
#include "attn/plan.hpp"
#include "core/text/enum_names.hpp"

namespace attn {
namespace {

constexpr core::EnumName<Phase> kPhases[] = {
    {Phase::forward, "forward"},
    {Phase::backward, "backward"},
};
constexpr core::EnumName<Backend> kBackends[] = {
    {Backend::automatic, "automatic"},
    {Backend::reference, "reference"},
    {Backend::cpu, "cpu"},
    {Backend::cuda, "cuda"},
};
constexpr core::EnumName<Algorithm> kAlgorithms[] = {
    {Algorithm::automatic, "automatic"},
    {Algorithm::standard, "standard"},
    {Algorithm::flash_attention, "flash_attention"},
    {Algorithm::flash_attention_2, "flash_attention_2"},
    {Algorithm::flash_decoding, "flash_decoding"},
    {Algorithm::memory_efficient, "memory_efficient"},
    {Algorithm::block_sparse, "block_sparse"},
};
constexpr core::EnumName<InstructionSet> kInstructionSets[] = {
    {InstructionSet::automatic, "automatic"},
    {InstructionSet::portable, "portable"},
    {InstructionSet::avx2, "avx2"},
    {InstructionSet::avx512, "avx512"},
    {InstructionSet::avx512_bf16, "avx512_bf16"},
    {InstructionSet::amx_bf16, "amx_bf16"},
    {InstructionSet::neon, "neon"},
    {InstructionSet::neon_bf16, "neon_bf16"},
};

}  // namespace

std::string_view name(Phase phase) noexcept { return core::name_of(kPhases, phase); }
std::string_view name(Backend backend) noexcept { return core::name_of(kBackends, backend); }
std::string_view name(Algorithm algorithm) noexcept {
  return core::name_of(kAlgorithms, algorithm);
}
std::string_view name(InstructionSet isa) noexcept { return core::name_of(kInstructionSets, isa); }

Backend parse_backend(std::string_view text) {
  return core::parse_name(kBackends, "backend", text);
}
Algorithm parse_algorithm(std::string_view text) {
  return core::parse_name(kAlgorithms, "algorithm", text);
}
InstructionSet parse_instruction_set(std::string_view text) {
  return core::parse_name(kInstructionSets, "instruction set", text);
}

}  // namespace attn
