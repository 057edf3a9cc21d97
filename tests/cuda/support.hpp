// What the tests of the CUDA backend share.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <string_view>

#include "attn/error.hpp"
#include "cuda/codegen/source.hpp"
#include "cuda/driver/api.hpp"
#include "cuda/driver/device.hpp"
#include "cuda/driver/nvrtc.hpp"

// One clear line where a test cannot run.
#define ATTN_NEEDS_NVRTC()                                                     \
  if (const std::optional<std::string> missing = ::attn::cuda::why_no_nvrtc()) \
  GTEST_SKIP() << "skipped: " << *missing
#define ATTN_NEEDS_GPU()                                                          \
  if (const std::optional<std::string> missing = ::attn::cuda::why_unavailable()) \
  GTEST_SKIP() << "skipped: " << *missing

namespace attn::cuda {

// Whether GPU 0 is the one of tests/cuda/emulator, to which a loop of a GPU is long.
inline bool emulated() { return device_info(0).name.starts_with("emulated"); }

inline void expect_contains(std::string_view text, std::string_view part) {
  EXPECT_NE(text.find(part), std::string_view::npos) << "\"" << part << "\" is not in: " << text;
}

// What the Error says that the call throws.
template <class Call>
std::string refusal(ErrorCode code, Call&& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(static_cast<int>(error.code()), static_cast<int>(code)) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "nothing was refused";
  return {};
}

// y[i] = factor * x[i] + i, for i below n.
inline Source scale_source(const std::string& factor = "2") {
  return {.name = "scale",
          .text =
              "extern \"C\" __global__ void scale(const float* x, float* y, int n) {\n"
              "  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);\n"
              "  if (i < n) y[i] = " +
              factor + ".0f * x[i] + static_cast<float>(i);\n}\n",
          .entry = "scale",
          .options = {}};
}

}  // namespace attn::cuda
