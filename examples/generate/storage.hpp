// How the tensors of a model file store their elements.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "attn/matmul.hpp"

namespace generate {

// As f32, f16 or bf16; or as blocks of 32 elements of ggml, whose f16 scale (q4_1: and least
// element) come first.
enum class Storage : std::uint8_t { f32, f16, q4_0, q4_1, q8_0, bf16 };

struct StorageInfo {
  Storage storage;
  std::uint32_t number;  // in a GGUF file
  const char* name;
  std::int64_t elements, bytes;  // of a block
  attn::BlockFormat format;      // of elements in blocks
};
std::span<const StorageInfo> storages();
const StorageInfo& info(Storage storage);

struct StoredTensor {
  std::string name{};
  Storage storage{};
  std::vector<std::int64_t> shape{};  // the last dimension lies next to each other in memory
  const std::byte* data = nullptr;
};
std::int64_t row_bytes(const StoredTensor& tensor);

// Row `index` of all dimensions but the last, as f32.
void read_row(const StoredTensor& tensor, std::int64_t index, std::span<float> row);

}  // namespace generate
