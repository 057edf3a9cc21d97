// What every fuzz target needs. A target reads one input and either accepts it, or throws
// attn::Error with the code of a refusal; anything else is a defect and stops the fuzzer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <initializer_list>
#include <string_view>

#include "attn/error.hpp"

// The name that libFuzzer calls.
// NOLINTNEXTLINE(readability-identifier-naming)
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace attn::fuzz {

inline void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "fuzz: %s\n", what);
  std::abort();
}

inline std::string_view text(const std::uint8_t* data, std::size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

// Runs read() and lets refusals with one of the codes pass.
template <class Read>
void accept_or_refuse(std::initializer_list<ErrorCode> codes, const Read& read) {
  try {
    read();
  } catch (const Error& error) {
    for (const ErrorCode code : codes) {
      if (error.code() == code) return;
    }
    require(false, error.what());
  }
}

}  // namespace attn::fuzz
