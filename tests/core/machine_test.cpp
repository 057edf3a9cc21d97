#include "attn/machine.hpp"

#include <gtest/gtest.h>

#include <limits>

#include "attn/context.hpp"
#include "attn/error.hpp"

namespace attn {
namespace {

TEST(Machine, IsDescribed) {
  const Machine machine = describe_machine();
  EXPECT_FALSE(machine.cpu.empty());
  EXPECT_GE(machine.cpus, 1);
  EXPECT_GE(machine.l1d_bytes, 0);
  EXPECT_GE(machine.l2_bytes, machine.l1d_bytes);
  EXPECT_GT(machine.memory_bytes, 0);
}

TEST(Machine, InstructionSetsGiveReasons) {
  const std::vector<InstructionSetInfo> sets = instruction_sets();
  ASSERT_EQ(sets.size(), 7u);
  EXPECT_EQ(sets.front().isa, InstructionSet::portable);
  EXPECT_EQ(sets.back().isa, InstructionSet::neon_bf16);
#if defined(__aarch64__)
  EXPECT_FALSE(sets.front().available);
  EXPECT_TRUE(sets[5].available);  // neon
#else
  EXPECT_TRUE(sets.front().available);
  for (std::size_t i = 5; i < sets.size(); ++i) {
    EXPECT_EQ(sets[i].reason, "it is a set of AArch64") << name(sets[i].isa);
  }
#endif
  for (const InstructionSetInfo& set : sets) EXPECT_EQ(set.available, set.reason.empty());
}

#if defined(__x86_64__)
// The compiler's own detection, where it knows the feature.
TEST(Machine, InstructionSetsAgreeWithTheCompiler) {
  for (const InstructionSetInfo& set : instruction_sets()) {
    if (set.isa == InstructionSet::avx2) {
      EXPECT_EQ(set.available, __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"));
    }
    if (set.isa == InstructionSet::avx512) {
      EXPECT_EQ(set.available,
                __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                    __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"));
    }
  }
}
#endif

TEST(Machine, ReadBandwidthIsMeasured) {
  Context context;
  context.executor = make_thread_pool(2);
  const double gbps = measure_read_gbps(context, 0.01);
  EXPECT_GT(gbps, 0.1);  // slower than any memory of this century, even under a sanitizer
  EXPECT_LT(gbps, 1e5);
}

TEST(Machine, WhatCannotBeMeasuredIsRefused) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  for (const double seconds : {0.0, -1.0, kNan, std::numeric_limits<double>::infinity()}) {
    EXPECT_THROW(measure_peak_gflops(DType::f32, {}, seconds), Error) << seconds;
    EXPECT_THROW(measure_read_gbps({}, seconds), Error) << seconds;
  }
  for (const DType dtype : {DType::i32, DType::u8, static_cast<DType>(99)}) {
    EXPECT_THROW(measure_peak_gflops(dtype), Error) << static_cast<int>(dtype);
  }
  Context context;
  context.isa = static_cast<InstructionSet>(99);
  EXPECT_THROW(measure_peak_gflops(DType::f32, context), Error);
}

}  // namespace
}  // namespace attn
