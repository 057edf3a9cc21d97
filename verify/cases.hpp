// The lists of cases that every backend must pass, and random ones.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "verify/case.hpp"

namespace attn::verify {

struct ListedCase {
  std::string_view descriptor;  // without a dtype: run in every dtype
  std::string_view reason;      // what goes wrong here in implementations that do not think of it
};

std::span<const ListedCase> listed_cases();

// The same case in another dtype.
Case with_dtype(Case c, DType dtype);

// Any combination of features, small enough for about 10 ms in the reference, or 30 where one side
// has up to 8,192 keys or queries. The same seed gives the same case.
Case random_case(std::uint64_t seed);

}  // namespace attn::verify
