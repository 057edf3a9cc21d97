// A tile shape, as far as who launches the kernel needs it.
#pragma once

#include <cstdint>
#include <string_view>

namespace attn::cuda {

struct Tiling {
  int rows = 0;           // of Q of a thread block's tile
  int keys = 0;           // of a tile of K and V
  int block_keys = 0;     // that are loaded at once, where that is more than a tile; else 0
  int threads = 0;        // of a thread block
  int gathered_keys = 0;  // of a block, where a tile of keys is made of blocks that the mask leaves
  int parts = 1;          // of a tile's rows, that go through blocks of keys by themselves
  int group = 1;          // query heads of one K, V head that share a tile; 1: each has its own
  int blocks_at_once = 1;         // thread blocks that a multiprocessor has room for
  int stages = 1;                 // tiles of K and V in shared memory; of V where both differ
  std::int64_t shared_bytes = 0;  // dynamic: what the kernel's layout comes to, kBytes
  // Where heads have few tiles, those of so many tiles come together; 0: not measured.
  int tiles_together = 0;
  std::string_view reason{};
  int spill_bytes = 0;  // accepted: Source::allowed_spill_bytes

  int keys_at_once() const noexcept { return block_keys > 0 ? block_keys : keys; }
};

}  // namespace attn::cuda
