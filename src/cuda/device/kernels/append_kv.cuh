// New rows of K and V go to their places in a cache, and rows of Q likewise to an output
// (attn/append_kv.hpp): norm, rotary embedding, Hadamard rotation, rounding. A warp takes some
// heads of a row, of which some lanes each have one in registers, and goes on with those a grid
// further.
//
// Grid: any number of blocks of kAppendThreads; kAppendMemory floats of shared memory a warp where
// pairs of columns are rotated.
#pragma once

#include "device.cuh"
#include "expr/trigonometry.cuh"
#include "index.cuh"
#include "kernels/append_kv_params.cuh"
#include "tile/cached_row.cuh"
#include "tile/scalar.cuh"

namespace attn::device {

struct AppendPlace {
  bool written = false;  // the row is named at all
  long long sequence = 0, in_sequence = 0;
  long long block = -1, in_block = 0;  // of the caches; -1: K and V are not written
  long long rope_position = 0;
};

template <class Positions>
ATTN_DEVICE long long position_in(const AppendParams& p, const Positions* positions,
                                  const long long (&strides)[2], const AppendPlace& at,
                                  long long row) {
  if (p.cu_seqlens != nullptr) return positions[row * strides[0]];
  return positions[at.sequence * strides[0] + at.in_sequence * strides[1]];
}

// kWide: bits of AppendWide.
template <unsigned kWide>
ATTN_DEVICE AppendPlace append_place(const AppendParams& p, long long row) {
  const auto* const cu_seqlens = indices<(kWide & kAppendCuSeqlens) != 0>(p.cu_seqlens);
  const auto* const seqused = indices<(kWide & kAppendSeqused) != 0>(p.seqused);
  const auto* const cache_seqlens = indices<(kWide & kAppendCacheSeqlens) != 0>(p.cache_seqlens);
  const auto* const positions = indices<(kWide & kAppendPositions) != 0>(p.positions);
  const auto* const rope_positions = indices<(kWide & kAppendRopePositions) != 0>(p.rope_positions);
  const auto* const page_table = indices<(kWide & kAppendPageTable) != 0>(p.page_table);
  AppendPlace at;
  long long length = p.seqlen;
  if (p.cu_seqlens != nullptr) {
    if (p.batch == 0 || row >= cu_seqlens[p.batch]) return at;
    int low = 0, high = p.batch;  // starts[low] <= row < starts[high]
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      (cu_seqlens[middle] <= row ? low : high) = middle;
    }
    at.sequence = low;
    at.in_sequence = row - cu_seqlens[low];
    length = cu_seqlens[low + 1] - cu_seqlens[low];
  } else {
    at.sequence = row / p.seqlen;
    at.in_sequence = row % p.seqlen;
  }
  if (p.seqused != nullptr) {
    const long long used = seqused[at.sequence * p.seqused_stride];
    length = used < length ? used : length;
    if (at.in_sequence >= length) return at;
  }
  long long position = 0;
  if (p.cache_seqlens != nullptr) {
    const long long keys = cache_seqlens[at.sequence * p.cache_seqlens_stride];
    if constexpr ((kWide & kAppendCacheSeqlens) != 0) {
      if (keys > kMostCachedKeys) return at;
    }
    position = keys + at.in_sequence;
  } else if (p.positions != nullptr) {
    position = position_in(p, positions, p.positions_strides, at, row);
  }
  if (position < 0) return at;
  at.rope_position = p.rope_positions == nullptr
                         ? position
                         : position_in(p, rope_positions, p.rope_positions_strides, at, row);
  if (p.has_tables && (at.rope_position < 0 || at.rope_position >= p.table_rows)) return at;
  at.written = true;
  // Of a prompt that is longer than a ring the last rows stay.
  const bool follows = p.cache_seqlens != nullptr;
  if (p.ring && follows && length - at.in_sequence > p.capacity) return at;
  if (!p.cached || p.capacity == 0) return at;
  if (p.ring) position %= p.capacity;
  if (position >= p.capacity) return at;
  at.in_block = position % p.block_rows;
  at.block = at.sequence;
  if (p.page_table != nullptr) {
    const auto page = page_table[at.sequence * p.page_table_strides[0] +
                                 position / p.block_rows * p.page_table_strides[1]];
    at.block = page >= 0 && page < p.blocks ? page : -1;
  }
  return at;
}

// One of Q, K and V. Row: how a row of one head is kept (CachedRow).
template <class Row, int kDim, bool kNorm, class Weight, bool kWeighted, int kRopeDim,
          bool kInterleaved, AppendScale kScale>
struct AppendPart {
  static constexpr int kWide = Row::kWide, kPackets = Row::kPackets;
  static constexpr int kSideBySide = 32 / Row::kLanes;  // heads
  // Heads that are loaded before the first of them is used.
  static constexpr int kAhead = kPackets >= 4 ? 1 : 4 / kPackets;
  static constexpr int kPairs = kRopeDim / 2;

  const AppendParams& p;
  const AppendPartParams& part;
  float* memory;  // of the warp
  const int lane;

  // Cosine and sine for each of the row's numbers in this lane.
  struct Angles {
    float cos[kPackets][kWide], sin[kPackets][kWide];
  };
  // The pair that a column belongs to, and the other column of it.
  static ATTN_DEVICE int pair_of(int column) {
    return kInterleaved ? column / 2 : column < kPairs ? column : column - kPairs;
  }
  static ATTN_DEVICE bool is_first(int column) {
    return kInterleaved ? column % 2 == 0 : column < kPairs;
  }
  static ATTN_DEVICE int other_of(int column) {
    return is_first(column) ? column + (kInterleaved ? 1 : kPairs)
                            : column - (kInterleaved ? 1 : kPairs);
  }

  ATTN_DEVICE void find(Angles& angles, const Row& row, long long position) const {
    row.for_each([&](int i, int k) {
      const int column = row.column(i) + k;
      if (column >= kRopeDim) return;
      const int pair = pair_of(column);
      float &c = angles.cos[i][k], &s = angles.sin[i][k];
      if (p.inv_freq == nullptr) {
        c = p.cos[position * p.cos_stride + pair];
        s = p.sin[position * p.sin_stride + pair];
        return;
      }
      // The angle less whole turns, in double.
      const double angle = static_cast<double>(position) * static_cast<double>(p.inv_freq[pair]);
      constexpr double kMagic = 0x1.8p52, kTurn = 0x1.921fb54442d18p+2;
      const double turns = (angle * (1 / kTurn) + kMagic) - kMagic;
      const auto rest = static_cast<float>(angle - turns * kTurn);
      c = cosine(rest);
      s = sine(rest);
    });
  }
  ATTN_DEVICE void rotate(Row& row, const Angles& angles) const {
    float other[kPackets][kWide];
    if constexpr (kInterleaved && kWide % 2 == 0) {
      row.for_each([&](int i, int k) { other[i][k] = row.x[i][k ^ 1]; });
    } else {
      exchange(row, other);
    }
    row.for_each([&](int i, int k) {
      const int column = row.column(i) + k;
      if (column >= kRopeDim) return;
      const float c = angles.cos[i][k], s = angles.sin[i][k];
      float& x = row.x[i][k];
      x = is_first(column) ? x * c - other[i][k] * s : other[i][k] * s + x * c;
    });
  }
  // The other number of each pair. A number of packet i lies kWide i + k rows of 32 floats from the
  // beginning, at its lane, so that no two lanes meet in a bank.
  ATTN_DEVICE void exchange(const Row& row, float (&other)[kPackets][kWide]) const {
    const int lane_of_warp = static_cast<int>(threadIdx.x % 32), before = lane_of_warp - lane;
    row.for_each([&](int i, int k) { memory[(kWide * i + k) * 32 + lane_of_warp] = row.x[i][k]; });
    __syncwarp();
    row.for_each([&](int i, int k) {
      const int column = row.column(i) + k;
      if (column >= kRopeDim) return;
      // Packets whose pairs are packets are found by their first number.
      constexpr bool kWhole = !kInterleaved && kPairs % kWide == 0;
      const int from = kWhole ? other_of(column - k) : other_of(column);
      const int number = kWhole ? k : from % kWide;
      const int packet = from / Row::kAcross, its_lane = from % Row::kAcross / kWide;
      other[i][k] = memory[(kWide * packet + number) * 32 + before + its_lane];
    });
    __syncwarp();  // the next row takes the same memory
  }

  ATTN_DEVICE void norm(Row& row) const {
    float squares = 0;
    row.for_each([&](int i, int k) { squares += row.x[i][k] * row.x[i][k]; });
#pragma unroll
    for (int step = 1; step < Row::kLanes; step *= 2) {
      squares += __shfl_xor_sync(~0u, squares, step);
    }
    const float mean = squares / static_cast<float>(kDim);
    const float root = __fsqrt_rn(mean + p.norm_eps);
    row.for_each([&](int i, int k) {
      row.x[i][k] = __fdiv_rn(row.x[i][k], root);
      if constexpr (kWeighted) {
        row.x[i][k] *= Scalar<Weight>::from(element<Weight>(part.weight, row.column(i) + k)[0]);
      }
    });
  }

  ATTN_DEVICE float scale_of(const Row& row, const AppendPlace& at, int head, bool is_row) const {
    if constexpr (kScale == AppendScale::given) {
      return is_row ? part.scale[head * part.scale_head] : 1.f;
    }
    if constexpr (kScale == AppendScale::chosen) {
      float scale = row.own_scale();
      if (scale == no_scale()) scale = 1;
      if (is_row && lane == 0) {
        part.scale[at.block * part.scale_block + at.in_block * part.scale_row +
                   head * part.scale_head] = scale;
      }
      return scale;
    }
    return 1;
  }

  // Heads first, first + 1, .. of a row of the call, p.together of them.
  ATTN_DEVICE void run(const AppendPlace& at, long long row_of_call, int first,
                       bool in_cache) const {
    if (in_cache && at.block < 0) return;
    const bool packed = p.cu_seqlens != nullptr;
    const long long from = packed ? row_of_call * part.from_row
                                  : at.sequence * part.from_block + at.in_sequence * part.from_row;
    const long long block = in_cache ? at.block : at.sequence;
    const long long in_block = in_cache ? at.in_block : at.in_sequence;
    const long long to = !in_cache && packed ? row_of_call * part.to_row
                                             : block * part.to_block + in_block * part.to_row;
    Row row(lane);
    Angles angles;
    if constexpr (kRopeDim > 0) find(angles, row, at.rope_position);
    const int end = min(first + p.together, part.heads);
    const int mine = static_cast<int>(threadIdx.x % 32) / Row::kLanes;
    for (; first < end; first += kAhead * kSideBySide) {
      typename Row::Loaded loaded[kAhead];
#pragma unroll
      for (int j = 0; j < kAhead; ++j) {
        // Behind the last head it is loaded again: a branch here would wait for each load.
        const int head = min(first + j * kSideBySide + mine, end - 1);
        loaded[j] = row.load(element<typename Row::From>(part.from, from + head * part.from_head));
      }
#pragma unroll
      for (int j = 0; j < kAhead; ++j) {
        if (first + j * kSideBySide >= end) break;
        const int head = first + j * kSideBySide + mine;
        row.take(loaded[j]);
        if constexpr (kNorm) norm(row);
        if constexpr (kRopeDim > 0) rotate(row, angles);
        if constexpr (Row::kRotates) row.rotate();
        const float scale = scale_of(row, at, head, head < end);
        row.store(part.to, to + head * part.to_head, scale, head < end);
      }
    }
  }
};

// Heads of the part that the group belongs to, Parts being those of p.part.
template <class Part, class... Parts>
ATTN_DEVICE void append_heads(const AppendParams& p, int index, const AppendPlace& at,
                              long long row, int group, int cached_from, float* memory) {
  const AppendPartParams& part = p.part[index];
  const int groups = divide_up(part.heads, p.together);
  if (group < groups) {
    const int lanes = 32 / Part::kSideBySide, lane = static_cast<int>(threadIdx.x % 32);
    Part{p, part, memory, lane % lanes}.run(at, row, group * p.together, index >= cached_from);
  } else if constexpr (sizeof...(Parts) > 0) {
    append_heads<Parts...>(p, index + 1, at, row, group - groups, cached_from, memory);
  }
}

// kCachedFrom: the first part that is K or V. kWide: bits of AppendWide.
template <int kCachedFrom, unsigned kWide, class... Parts>
ATTN_DEVICE void append_kv(const AppendParams& p) {
  extern __shared__ __align__(16) char memory[];
  constexpr int kWarps = kAppendThreads / 32;
  const int warp = static_cast<int>(threadIdx.x / 32);
  float* const of_warp = reinterpret_cast<float*>(memory) + warp * kAppendMemory;
  for (long long i = blockIdx.x * static_cast<long long>(kWarps) + warp; i < p.rows * p.groups;
       i += static_cast<long long>(gridDim.x) * kWarps) {
    const long long row = i / p.groups;
    const AppendPlace at = append_place<kWide>(p, row);
    if (!at.written) continue;
    append_heads<Parts...>(p, 0, at, row, static_cast<int>(i % p.groups), kCachedFrom, of_warp);
  }
}

}  // namespace attn::device
