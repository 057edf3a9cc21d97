// Rows of a warp's accumulator on their way to memory through shared memory, so that a store writes
// whole rows of a panel and no thread exchanges registers with another.
#pragma once

#include "device.cuh"
#include "divide_up.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/mma.cuh"
#include "ptx/tma.cuh"
#include "tile/accumulator.cuh"
#include "tile/swizzle.cuh"

namespace attn::device {

// Rounds the warp's 16 rows, row r multiplied by factor[r / 8], into rows row0 on of panels.
template <class Element, int kColumns>
ATTN_DEVICE void stage_rows(const float (&o)[kColumns / 2], const float (&factor)[2],
                            unsigned panels, int panel_bytes, int row0) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const auto word = [&](int j, int i) {  // of 8 columns j, rows 8 i on
    const int at = 4 * j + 2 * i;
    return Element::pack(o[at] * factor[i], o[at + 1] * factor[i]);
  };
#pragma unroll
  for (int j = 0; j + 1 < kColumns / 8; j += 2) {
    const unsigned words[4] = {word(j, 0), word(j, 1), word(j + 1, 0), word(j + 1, 1)};
    store_matrices(swizzled(panels + static_cast<unsigned>(j / 8 * panel_bytes), row0 + lane % 16,
                            j % 8 + lane / 16),
                   words);
  }
  if constexpr (kColumns % 16 != 0) {
    constexpr int j = kColumns / 8 - 1;
    const unsigned words[2] = {word(j, 0), word(j, 1)};
    store_matrices(
        swizzled(panels + static_cast<unsigned>(j / 8 * panel_bytes), row0 + lane % 16, j % 8),
        words);
  }
}

// The address that a row is stored to.
struct RowPlace {
  char* at;  // 16-byte aligned
  bool exists;
};

// Copies them, row r of the 16 to row_at(r). All threads of the warp must call. What the copy
// engine writes to the panels afterwards comes after what was staged.
template <int kColumns, class RowAt>
ATTN_DEVICE void copy_staged_rows(unsigned panels, int panel_bytes, int row0, RowAt row_at) {
  constexpr int kPanels = divide_up<64>(kColumns);
  const int first = static_cast<int>(threadIdx.x % 32 / 8);
  const int chunk = static_cast<int>(threadIdx.x % 8);
  __syncwarp();
  Int4 words[4][kPanels];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int panel = 0; panel < kPanels; ++panel) {
      words[i][panel] = load_shared(swizzled(panels + static_cast<unsigned>(panel * panel_bytes),
                                             row0 + first + 4 * i, chunk));
    }
  }
  fence_proxy_async();  // before the stores to memory, which it would wait for
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const RowPlace row = row_at(first + 4 * i);
#pragma unroll
    for (int panel = 0; panel < kPanels; ++panel) {
      if (row.exists && 8 * panel + chunk < kColumns / 8) {
        *reinterpret_cast<Int4*>(row.at + 128 * panel + 16 * chunk) = words[i][panel];
      }
    }
  }
}

}  // namespace attn::device
