#include "storage.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <iterator>

#include "attn/tensor.hpp"

namespace generate {
namespace {

constexpr StorageInfo kStorages[] = {
    {Storage::f32, 0, "f32", 1, 4, attn::BlockFormat::none},
    {Storage::f16, 1, "f16", 1, 2, attn::BlockFormat::none},
    {Storage::q4_0, 2, "q4_0", 32, 18, attn::BlockFormat::q4_0},
    {Storage::q4_1, 3, "q4_1", 32, 20, attn::BlockFormat::q4_1},
    {Storage::q8_0, 8, "q8_0", 32, 34, attn::BlockFormat::q8_0},
    {Storage::bf16, 30, "bf16", 1, 2, attn::BlockFormat::none},
};

template <class T>
T load(const std::byte* at) {
  T x;
  std::memcpy(&x, at, sizeof x);
  return x;
}

float load_half(const std::byte* at) {
  attn::float16 x;
  x.bits = load<std::uint16_t>(at);
  return static_cast<float>(x);
}

}  // namespace

std::span<const StorageInfo> storages() { return kStorages; }
const StorageInfo& info(Storage storage) {
  return *std::find_if(std::begin(kStorages), std::end(kStorages),
                       [&](const StorageInfo& s) { return s.storage == storage; });
}

std::int64_t row_bytes(const StoredTensor& t) {
  return t.shape.back() / info(t.storage).elements * info(t.storage).bytes;
}

void read_row(const StoredTensor& t, std::int64_t index, std::span<float> row) {
  const std::byte* from = t.data + index * row_bytes(t);
  const StorageInfo& stored = info(t.storage);
  const auto blocks = static_cast<std::size_t>(t.shape.back() / stored.elements);
  for (std::size_t b = 0; b < blocks; ++b, from += stored.bytes) {
    float* to = row.data() + b * static_cast<std::size_t>(stored.elements);
    switch (t.storage) {
      case Storage::f32:
        *to = load<float>(from);
        break;
      case Storage::f16:
        *to = load_half(from);
        break;
      case Storage::bf16:
        *to = std::bit_cast<float>(std::uint32_t{load<std::uint16_t>(from)} << 16);
        break;
      case Storage::q8_0:
        for (int i = 0; i < 32; ++i) {
          to[i] = load_half(from) * static_cast<float>(load<std::int8_t>(from + 2 + i));
        }
        break;
      case Storage::q4_0:
      case Storage::q4_1: {
        const bool has_least = t.storage == Storage::q4_1;
        const float scale = load_half(from);
        const float least = has_least ? load_half(from + 2) : -8 * scale;
        for (int i = 0; i < 16; ++i) {
          const auto two = load<std::uint8_t>(from + (has_least ? 4 : 2) + i);
          to[i] = scale * static_cast<float>(two & 15) + least;
          to[16 + i] = scale * static_cast<float>(two >> 4) + least;
        }
        break;
      }
    }
  }
}

}  // namespace generate
