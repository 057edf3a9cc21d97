// SHA-256 (FIPS 180-4). Names cache entries: two sources with one key would run the wrong kernel,
// so the key must not collide even where the sources come from someone else's expressions. The same
// function then guards an entry's bytes on the disk.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace attn::cuda {

class Sha256 {
 public:
  using Digest = std::array<std::uint8_t, 32>;

  void update(std::string_view bytes);
  // A field of its own: its length, then its bytes, so that no two lists of fields look alike.
  void field(std::string_view bytes);
  // Ends the message.
  Digest finish();

 private:
  void block(const std::uint8_t* bytes);

  std::array<std::uint32_t, 8> state_{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                      0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<std::uint8_t, 64> pending_{};
  std::size_t pending_size_ = 0;
  std::uint64_t size_ = 0;  // of the message so far, in bytes
};

Sha256::Digest sha256(std::string_view bytes);
std::string to_hex(const Sha256::Digest& digest);

}  // namespace attn::cuda
