// The bytes of a file of the disk cache:
//
//   offset  bytes  content
//        0      8  "ATTNKERN"
//        8      4  format version
//       12      4  0
//       16     32  key: SHA-256 of everything the kernel depends on (compile.cpp)
//       48      8  length of the payload
//       56     32  SHA-256 of the payload
//       88      -  payload: report, cubin
//
// Numbers are little-endian, as on every machine that has these GPUs.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "cuda/jit/compile.hpp"
#include "cuda/jit/sha256.hpp"

namespace attn::cuda {

std::string to_cache_entry(const Sha256::Digest& key, const Compiled& compiled);

// Reads an entry; nothing unless every byte is as it was written, for this key and this version of
// the format.
std::optional<Compiled> from_cache_entry(const Sha256::Digest& key, std::string_view bytes);

}  // namespace attn::cuda
