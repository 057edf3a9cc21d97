// What the tests of matrix products on a GPU share.
#pragma once

#include <cstdint>
#include <string>

#include "attn/attn.hpp"
#include "cuda/matmul/choose_matmul.hpp"
#include "verify/device_matmul.hpp"

namespace attn::cuda {

inline constexpr Device kGpu{DeviceType::cuda, 0};

// What is wrong with C; empty where nothing is, or where the rung does not take the problem. The
// gap between rows keeps them at multiples of 16 bytes, or not.
inline std::string failure(const MatmulProblem& problem, const std::string& rung, std::int64_t gap,
                           std::uint64_t seed) {
  MatmulOptions options;
  options.rung = rung;
  options.device = kGpu;
  const std::string what = to_string(problem) + " " + rung;
  MatmulPlan plan;
  try {
    plan = make_plan(problem, options);
  } catch (const Error& error) {
    return error.code() == ErrorCode::unsupported ? "" : error.what();
  }
  verify::MatmulData data(problem, seed, gap);
  data.poison();
  verify::matmul_on_device(data, plan, {});
  const verify::MatmulCheck check = check_matmul(data);
  if (!check.passed()) return what + ": " + check.where;
  return data.damage().empty() ? "" : what + ": " + data.damage();
}

}  // namespace attn::cuda
