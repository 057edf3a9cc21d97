// The listed cases without GoogleTest, for machines that the tests are not built for:
//   conformance_list [EVERY [FIRST]]    every EVERY-th case from FIRST on, in one dtype each, in
//   turn
// Each runs on the reference and, forward and backward, by the CPU's own choice and by one
// algorithm in turn, on the instruction sets that the machine has. Ends with 1 where one differs.
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "attn/context.hpp"
#include "attn/plan.hpp"
#include "verify/cases.hpp"
#include "verify/conformance.hpp"

namespace attn::verify {
namespace {

constexpr std::uint64_t kSeed = 20240501;
constexpr std::int64_t kMostScores = 50'000;  // of cases that an emulated machine takes long for

int checks = 0, failures = 0;

void expect_passed(Conformance& conformance, const Subject& subject) {
  const Report report = conformance.check(subject);
  ++checks;
  if (report.status == Status::passed) return;
  ++failures;
  std::printf("%s\n", to_string(report).c_str());
  std::fflush(stdout);
}

void run(std::size_t index) {
  constexpr std::array kDTypes{DType::f32, DType::bf16, DType::f16};
  const Case c = with_dtype(parse_case(listed_cases()[index].descriptor), kDTypes[index % 3]);
  if (scores(c) > kMostScores || c.hints.far) return;
  Conformance conformance(c, kSeed + index, has_backward(c.problem));
  for (const Phase phase : {Phase::forward, Phase::backward}) {
    if (phase == Phase::backward && !has_backward(c.problem)) continue;
    const auto all = algorithms(phase);
    const Algorithm one =
        c.problem.key_list > 0 ? Algorithm::flash_attention_2 : all[index / 3 % all.size()];
    for (const InstructionSetInfo& info : instruction_sets()) {
      if (!info.available) continue;
      // Other types than bf16 run as on the set before it.
      if (info.isa == InstructionSet::neon_bf16 && c.problem.dtype != DType::bf16) continue;
      for (const Algorithm algorithm : {Algorithm::automatic, one}) {
        expect_passed(
            conformance,
            {.phase = phase, .backend = Backend::cpu, .algorithm = algorithm, .isa = info.isa});
      }
    }
  }
}

}  // namespace
}  // namespace attn::verify

int main(int argc, char** argv) {
  const std::size_t every = argc > 1 ? std::strtoul(argv[1], nullptr, 10) : 1;
  const std::size_t first = argc > 2 ? std::strtoul(argv[2], nullptr, 10) : 0;
  if (every == 0) return 2;
  for (std::size_t i = first; i < attn::verify::listed_cases().size(); i += every) {
    attn::verify::run(i);
  }
  for (const attn::InstructionSetInfo& info : attn::instruction_sets()) {
    if (info.available) std::printf("%s ", attn::name(info.isa).data());
  }
  std::printf("%d checks, %d failures\n", attn::verify::checks, attn::verify::failures);
  return attn::verify::checks > 0 && attn::verify::failures == 0 ? 0 : 1;
}
