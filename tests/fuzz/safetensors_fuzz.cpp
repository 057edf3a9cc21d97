// safetensors files.
#include "io/safetensors.hpp"
#include "memory_file.hpp"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const attn::fuzz::MemoryFile memory(data, size);
  attn::fuzz::accept_or_refuse({attn::ErrorCode::io}, [&] {
    const attn::io::SafetensorsFile file(memory.path());
    for (const attn::io::SafetensorsEntry& entry : file.entries()) {
      attn::fuzz::accept_or_refuse({attn::ErrorCode::io}, [&] {
        attn::fuzz::require(file.read(entry.name).bytes() <= size,
                            "a tensor is larger than its file");
      });
    }
  });
  return 0;
}
