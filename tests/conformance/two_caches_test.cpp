// A window's cache with the sink and a list of keys of a second cache, merged, on the CPU.
#include "conformance/two_caches.hpp"

#include <gtest/gtest.h>

namespace attn {
namespace {

TEST(TwoCaches, MergedAreOneSoftmax) {
  for (const char* type : {"f32", "bf16", "f16", "o(f32)_bf16", "o(f32)_f16"}) {
    for (std::uint64_t seed = 1; seed < 5; ++seed) {
      testing::TwoCaches caches(type, seed);
      forward(caches.window.problem, caches.window.inputs, caches.window.outputs);
      forward(caches.listed.problem, caches.listed.inputs, caches.listed.outputs);
      merge({caches.window.outputs, caches.listed.outputs}, caches.merged);
      for (const verify::Comparison& result : caches.judge(false)) {
        EXPECT_TRUE(result.passed()) << type << ' ' << seed << ": " << to_string(result);
      }
    }
  }
}

}  // namespace
}  // namespace attn
