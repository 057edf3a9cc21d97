// Files of the cache of compiled kernels. The checksum of a payload would stop nearly every input,
// so an input is read as it is, and as a payload whose header is right.
#include <cstring>
#include <string>

#include "cuda/jit/cache_entry.hpp"
#include "cuda/jit/sha256.hpp"
#include "fuzz.hpp"

namespace {

constexpr attn::cuda::Sha256::Digest kKey{1, 2, 3};

// What is read is what was written, byte for byte, or nothing.
void read(std::string_view bytes) {
  const auto compiled = attn::cuda::from_cache_entry(kKey, bytes);
  if (!compiled) return;
  attn::fuzz::require(attn::cuda::to_cache_entry(kKey, *compiled) == bytes,
                      "an entry that was read is written as another one");
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view input = attn::fuzz::text(data, size);
  read(input);

  // The header of an entry with an empty kernel (src/cuda/jit/cache_entry.hpp has its offsets).
  std::string bytes = attn::cuda::to_cache_entry(kKey, {}).substr(0, 88);
  const std::uint64_t length = size;
  const auto checksum = attn::cuda::sha256(input);
  std::memcpy(bytes.data() + 48, &length, sizeof(length));
  std::memcpy(bytes.data() + 56, checksum.data(), checksum.size());
  read(bytes.append(input));
  return 0;
}
