// Shared memory of the Hopper forward kernel: places, and rings of barriers.
#pragma once

#include "device.cuh"
#include "divide_up.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/tma.cuh"
#include "ptx/warpgroup.cuh"
#include "schedule/transposed_values.cuh"

namespace attn::device {

struct ForwardMaps {
  // q: (column, head of the group, query, group, batch); k, v: (column, key, head, batch or page);
  // o: (column, query, head, batch), where kStoresBoxes.
  TensorMap q, k, v, o;
};

// Sizes in bytes and places in shared memory. Panels are 64 columns wide, of 8-bit floats 128, so
// that a row is 128 bytes, swizzled. V of 8-bit floats lies transposed, as their products read it:
// a panel is 128 keys of all its columns (kernels/transpose_values.cuh). With kTransposes it is
// transposed where it arrived (transposer.cuh), in squares of up to 128 keys and columns.
template <class C>
struct ForwardSm90Layout {
  static constexpr int kPanel = C::kFloat8 ? 128 : 64;
  static constexpr int kPanelsK = divide_up<kPanel>(C::kHeadDim);
  static constexpr int kPanelsV = divide_up<64>(C::kHeadDimV);  // of O too
  static constexpr int kQ = 64 * 128 * kPanelsK;                // of one consumer
  static constexpr int kPanelBytes = C::kBlockN * 128;
  // With kSumsByProduct the rows of ones come with V, or where a product has no more columns, stand
  // alone: 128 keys of them.
  static constexpr bool kOnesInV = C::kSumsByProduct && C::kHeadDimV + kRowsOfOnes <= 256;
  static constexpr int kOnes = C::kSumsByProduct && !kOnesInV ? kRowsOfOnes * 128 : 0;
  static constexpr int kTransposedRows = C::kHeadDimV + (kOnesInV ? kRowsOfOnes : 0);
  static constexpr int kTransposedPanel = kTransposedRows * 128;
  static constexpr int kTransposedPanels = divide_up<128>(C::kBlockN);
  // Of keys: a multiple of 128 and of kBlockN.
  static constexpr int kTransposedUnit = C::kBlockN * (C::kBlockN % 128 == 0  ? 1
                                                       : C::kBlockN % 64 == 0 ? 2
                                                                              : 4);
  // Of a square: rows are keys, then columns and those of ones.
  static constexpr int kSquare = 128 * 128, kSquares = divide_up<128>(C::kHeadDimV);
  static constexpr int kLastColumns = kTransposedRows - 128 * (kSquares - 1);
  static constexpr int kLastRows = C::kBlockN > kLastColumns ? C::kBlockN : kLastColumns;
  static constexpr int kK = kPanelBytes * kPanelsK;
  static constexpr bool kTransposes = C::kTransposers > 0;
  static constexpr int kV = kTransposes  ? kSquare * (kSquares - 1) + 128 * kLastRows
                            : C::kFloat8 ? kTransposedPanel * kTransposedPanels
                                         : kPanelBytes * kPanelsV;
  static_assert(!kTransposes || (C::kFloat8 && C::kBlockN <= 128));
  static constexpr int kQs = C::kStagesQ * C::kConsumers;
  static constexpr int kQAt = 0, kKAt = kQAt + kQs * kQ, kVAt = kKAt + C::kStagesK * kK;
  // Of 8-bit floats, the part of a warp's O that is in float32 (float8_parts.cuh). O leaves from
  // there too, which takes more room than Q has.
  static constexpr bool kHalfPart = C::kHeadDimV > 128;  // in bf16, as there is no room for more
  static constexpr int kStaged = 16 * 128 * kPanelsV;
  static constexpr int kNumbers = 16 * (kHalfPart ? 2 : 4) * C::kHeadDimV;
  static constexpr int kPart = !C::kFloat8 ? 0 : kNumbers > kStaged ? kNumbers : kStaged;
  static constexpr int kPartAt = kVAt + C::kStagesV * kV;
  static constexpr int kOnesAt = kPartAt + 4 * C::kConsumers * kPart;
  static constexpr int kFullQ = kOnesAt + kOnes, kEmptyQ = kFullQ + 8 * kQs;
  static constexpr int kFullK = kEmptyQ + 8 * kQs, kEmptyK = kFullK + 8 * C::kStagesK;
  static constexpr int kFullV = kEmptyK + 8 * C::kStagesK, kEmptyV = kFullV + 8 * C::kStagesV;
  // The tiles at hand, from the producer to the consumers, which hold two: the one that ends and
  // the one that begins.
  static constexpr int kTileStages = 4, kTileBytes = 48 + 16 * C::kConsumers;
  static constexpr int kNearEnd = kEmptyV + 8 * C::kStagesV;
  static constexpr int kFullTile = kNearEnd + 8;
  static constexpr int kEmptyTile = kFullTile + 8 * kTileStages;
  static constexpr int kTileAt = divide_up<16>(kEmptyTile + 8 * kTileStages) * 16;
  static constexpr int kStoredTile = kTileAt + kTileBytes * kTileStages;  // of a follower
  // Tiles with lost rows: how many there are, whether references are trusted now (else these tiles
  // are computed again), and 16 bytes of each.
  static constexpr int kLostTiles = 16;
  static constexpr int kLostCount = kStoredTile + 8 * kTileStages, kTrusts = kLostCount + 4;
  static constexpr int kLostAt = kLostCount + 16;
  // With kTransposes: barriers of V that has arrived, and is to be transposed.
  static constexpr int kLoadedV = kLostAt + 16 * kLostTiles;
  static constexpr int kBytes = kLoadedV + (kTransposes ? 8 * C::kStagesV : 0);
};

// A ring of kPlaces places in shared memory, each with two barriers: `full` completes when what was
// put there has arrived, `empty` when all who read it have released it. Use number n takes place
// n % kPlaces, so that a counter is all there is to keep. It may wrap where kPlaces is a power of
// two; others last for 2^32 uses. kFull, kEmpty: the first barriers, from `shared` on.
template <int kPlaces, int kFull, int kEmpty>
struct Ring {
  unsigned shared;
  int first = 0;  // of its places, where rings of several consumers lie one behind the other

  static ATTN_DEVICE int stage(unsigned n) { return static_cast<int>(n % kPlaces); }
  static ATTN_DEVICE unsigned parity(unsigned n) { return n / kPlaces & 1; }
  ATTN_DEVICE int place(unsigned n) const { return first + stage(n); }
  ATTN_DEVICE unsigned full(unsigned n) const {
    return shared + static_cast<unsigned>(kFull + 8 * place(n));
  }
  ATTN_DEVICE unsigned empty(unsigned n) const {
    return shared + static_cast<unsigned>(kEmpty + 8 * place(n));
  }
  // Prepares the barriers; for one thread, before any use. It says how many arrive to fill a place,
  // and to release it.
  ATTN_DEVICE void init(unsigned filled_by, unsigned read_by) const {
    for (unsigned i = 0; i < kPlaces; ++i) {
      mbarrier_init(full(i), filled_by);
      mbarrier_init(empty(i), read_by);
    }
  }
  // Waits until use n has arrived.
  ATTN_DEVICE void wait(unsigned n) const { mbarrier_wait(full(n), parity(n)); }
  // Waits likewise, unless `over` says that the use is known to have arrived.
  ATTN_DEVICE void wait_unless(bool over, unsigned n) const {
    mbarrier_wait_unless(over, full(n), parity(n));
  }
  // Waits until the place of use n may be overwritten.
  ATTN_DEVICE void wait_empty(unsigned n) const { mbarrier_wait(empty(n), parity(n) ^ 1); }
  // Releases the place of use n, for a warp that is done with it.
  ATTN_DEVICE void release(unsigned n) const {
    if (elect_one()) mbarrier_arrive(empty(n));
  }
};

}  // namespace attn::device
