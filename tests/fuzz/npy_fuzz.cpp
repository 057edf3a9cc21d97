// .npy files.
#include "io/npy.hpp"
#include "memory_file.hpp"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const attn::fuzz::MemoryFile file(data, size);
  attn::fuzz::accept_or_refuse({attn::ErrorCode::io}, [&] {
    attn::fuzz::require(attn::io::read_npy(file.path()).bytes() <= size,
                        "an array is larger than its file");
  });
  return 0;
}
