// Few rows by products of bf16, which groups of five heads and more take: numbers of rows and types
// of caches beside the reference, and scales of blocks that are not finite.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "attn/mask.hpp"
#include "attn/run.hpp"
#include "conformance/support.hpp"
#include "verify/conformance.hpp"

namespace attn {
namespace {

constexpr const char* kNoSets = "no instruction set of this CPU decodes with products of bf16";

// Instruction sets of this machine that decode with products of bf16.
std::vector<InstructionSet> sets() {
  std::vector<InstructionSet> found;
  for (const InstructionSet isa : verify::available_instruction_sets()) {
    if (isa == InstructionSet::avx512_bf16 || isa == InstructionSet::amx_bf16) found.push_back(isa);
  }
  return found;
}

TEST(DecodeGroups, AgreeWithTheReference) {
  constexpr const char* kTypes[] = {"bf16", "q8_0", "q4_0", "e4m3", "i8", "f16", "f32", "e5m2"};
  constexpr const char* kKinds[] = {"",           "_mask((query+key)%3!=0)", "_sink", "_paged16",
                                    "_softcap20", "_dropout0.2_seed3"};
  if (sets().empty()) GTEST_SKIP() << kNoSets;
  std::size_t turn = 0;
  for (const InstructionSet isa : sets()) {
    for (const int heads : {5, 6, 8}) {
      for (const int dim : {32, 96, 160}) {
        const std::string text = "b2_sq1_sk" + std::to_string(35 + turn % 97) + "_hq" +
                                 std::to_string(2 * heads) + "_hk2_d" + std::to_string(dim) +
                                 "_k(" + kTypes[turn % 8] + ")_v(" + kTypes[(turn + turn / 8) % 8] +
                                 ")" + kKinds[turn % 6] + "_bf16";
        const verify::Case c = verify::parse_case(text);
        EXPECT_EQ(make_plan(c.problem, Phase::forward, {}, Context{.isa = isa}).compute,
                  DType::bf16);
        verify::Conformance conformance(c, turn, false);
        const verify::Report report = conformance.check({.backend = Backend::cpu, .isa = isa});
        EXPECT_EQ(report.status, verify::Status::passed) << verify::to_string(report);
        ++turn;
      }
    }
  }
}

// 40 keys of one K, V head of 160 columns in q8_0, of which all numbers are 1 and all scales 1/2.
class GroupBlocks : public ::testing::TestWithParam<std::uint16_t> {
 protected:
  void SetUp() override {
    if (sets().empty()) GTEST_SKIP() << kNoSets;
  }
  static constexpr std::int64_t kKeys = 40, kHeads = 8, kDim = 160, kBytes = kDim / 32 * 34;

  static std::vector<std::uint8_t> rows() {
    std::vector<std::uint8_t> x(kKeys * kBytes, 1);
    for (std::size_t block = 0; block < x.size(); block += 34) set_scale(x, block, 0x3800);
    return x;
  }
  static void set_scale(std::vector<std::uint8_t>& x, std::size_t at, std::uint16_t scale) {
    x[at] = static_cast<std::uint8_t>(scale & 0xff);
    x[at + 1] = static_cast<std::uint8_t>(scale >> 8);
  }
  static std::vector<float> run(InstructionSet isa, std::vector<std::uint8_t>& k,
                                std::vector<std::uint8_t>& v, const Problem& problem) {
    std::vector<bfloat16> q(kHeads * kDim, bfloat16(0.25f)), o(q.size(), bfloat16(-1.0f));
    const auto bytes = [&](std::vector<std::uint8_t>& x) {
      return tensor(x.data(), {1, kKeys, 1, kBytes});
    };
    forward(problem, {.q = tensor(q.data(), {1, 1, kHeads, kDim}), .k = bytes(k), .v = bytes(v)},
            {.o = tensor(o.data(), {1, 1, kHeads, kDim})}, {}, {.isa = isa});
    std::vector<float> out(o.size());
    std::transform(o.begin(), o.end(), out.begin(),
                   [](bfloat16 x) { return static_cast<float>(x); });
    return out;
  }
};

TEST_P(GroupBlocks, OfVWithoutAFiniteScaleReachTheirColumnsAlone) {
  const Problem problem{.type_k = CacheType::q8_0, .type_v = CacheType::q8_0};
  for (const InstructionSet isa : sets()) {
    for (const std::int64_t block : {0, 3, 4}) {
      for (const std::int64_t key : {0, 7, 38}) {
        std::vector<std::uint8_t> k = rows(), v = rows();
        set_scale(v, static_cast<std::size_t>(key * kBytes + block * 34), GetParam());
        const std::vector<float> o = run(isa, k, v, problem);
        for (std::int64_t i = 0; i < kHeads * kDim; ++i) {
          const float x = o[static_cast<std::size_t>(i)];
          if (i % kDim / 32 == block) {
            EXPECT_FALSE(std::isfinite(x)) << i << ": " << x;
          } else {
            EXPECT_EQ(x, 0.5f) << i;
          }
        }
      }
    }
  }
}

TEST_P(GroupBlocks, OfHiddenKeysReachNothing) {
  Problem problem{.type_k = CacheType::q8_0, .type_v = CacheType::q8_0};
  problem.mask = expr::symbols().key != 7;
  for (const InstructionSet isa : sets()) {
    std::vector<std::uint8_t> k = rows(), v = rows();
    set_scale(k, 7 * kBytes, GetParam());
    set_scale(v, 7 * kBytes + 4 * 34, GetParam());
    for (const float x : run(isa, k, v, problem)) EXPECT_EQ(x, 0.5f);
  }
}

// NaN of which rounding by addition alone would make a number, the least NaN, a negative one, and
// an infinity.
INSTANTIATE_TEST_SUITE_P(Scales, GroupBlocks, ::testing::Values(0x7fff, 0x7c01, 0xffff, 0x7c00));

}  // namespace
}  // namespace attn
