// The verbs of products of few rows. Such a product does little more than read B, which a copy
// into panels would read, write and read again: here B is read once, where it lies. A is small and
// packed row by row, in the words of the packed product (F32Words, Bf16Pairs).
#pragma once

#include "cpu/kernels/decode.hpp"
#include "cpu/kernels/matmul.hpp"

namespace attn::cpu::ATTN_ISA {

// Rows of A that a vector of B is multiplied by while it is in a register.
inline constexpr int kMostGroup = kLanes < 8 ? kLanes : 8;
static_assert(kMostGroup == 4 || kMostGroup == 8);
// Words along k for which sums of a strip of columns stay in registers where columns are
// neighbours: short enough that the next strip finds the same pages of B.
inline constexpr int kStripWords = 32;
// Of one row of A a strip is short where elements are floats, so that B is read nearly in the order
// in which it lies: 1.14 to 1.2 times the speed on a Zen 4. With 16-bit elements it was 0.8 times.
template <int kGroup>
ATTN_INLINE int strip_words(std::ptrdiff_t bytes) {
  return kGroup == 1 && bytes == 4 ? 4 : kStripWords;
}
template <int kGroup>
ATTN_INLINE int words_ahead(std::ptrdiff_t bytes) {
  return kGroup == 1 && bytes == 4 ? 16 : kStripWords;
}
// Bytes that are asked for ahead where columns are read from end to end.
inline constexpr int kBytesAhead = 1 << 14;
// The same where columns of blocks are read one by one.
inline constexpr int kBlockBytesAhead = 1 << 12;

// packed[lane of A][ld words] <- the block, zero up to ld.
template <class Words>
static void pack_few_rows(const OperandBlock& a, const OperandBlock&, int ld, void* packed) {
  float* out = static_cast<float*>(packed);
  const int words = (a.depth + Words::kSteps - 1) / Words::kSteps;
  if (a.step_stride == 1) {
    for (int lane = 0; lane < a.lanes; ++lane) {
      const std::byte* row = a.at + lane * a.lane_stride * Words::bytes(a);
      for (int word = 0; word < ld; word += kLanes) {
        const int step = word * Words::kSteps;
        F x{};
        if (word < words) x = Words::load_steps(row, step, a.depth - step, a);
        store(out + std::ptrdiff_t{lane} * ld + word, x);
      }
    }
    return;
  }
  for (int first = 0; first < a.lanes; first += kLanes) {
    const int count = a.lanes - first < kLanes ? a.lanes - first : kLanes;
    for (int word = 0; word < ld; ++word) {
      F x{};
      if (word < words) x = Words::load_lanes(a, first, word * Words::kSteps, count);
      const U bits = bit_cast<U>(x);  // a pair may be a signalling NaN
      for (int i = 0; i < count; ++i) {
        const std::uint32_t one = bits[i];
        __builtin_memcpy(out + std::ptrdiff_t{first + i} * ld + word, &one, sizeof(one));
      }
    }
  }
}

// A's rows of a group; the missing ones repeat the last.
template <int kGroup>
struct RowGroup {
  const float* row[kGroup];
  int count;
  RowGroup(const float* a, int ld, int rows) : count(rows) {
    for (int r = 0; r < kGroup; ++r) {
      row[r] = a + (r < rows ? r : rows - 1) * std::ptrdiff_t{ld};
    }
  }
};

// Columns [lane, lane + kVectors vectors), the last one of `count` columns, words [word, end).
template <int kGroup, int kVectors, class Words>
ATTN_INLINE void multiply_strip(const RowGroup<kGroup>& a, const OperandBlock& b, int lane,
                                int count, int word, int end, bool add, float* c, int ld) {
  const std::ptrdiff_t bytes = Words::bytes(b);
  F acc[kGroup][kVectors] = {};
  for (int w = word; w < end; ++w) {
    const int step = w * Words::kSteps;
    F x[kVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      x[v] = Words::load_lanes(b, lane + v * kLanes, step, v + 1 < kVectors ? kLanes : count);
    }
    // What a later strip of words needs, once a line.
    const int ahead = step + words_ahead<kGroup>(bytes) * Words::kSteps;
    if (ahead + Words::kSteps <= b.depth) {
      const std::byte* at = b.at + (ahead * b.step_stride + lane) * bytes;
#pragma GCC unroll 2
      for (int s = 0; s < Words::kSteps; ++s, at += b.step_stride * bytes) {
#pragma GCC unroll 8
        for (int v = 0; v < kVectors; v += static_cast<int>(4 / bytes)) {
          __builtin_prefetch(at + v * kLanes * bytes, 0, 2);
        }
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < kGroup; ++r) {
      const F y = Words::broadcast(a.row[r] + w);
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) acc[r][v] = Words::multiply_add(y, x[v], acc[r][v]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kGroup; ++r) {
    if (r >= a.count) break;
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      float* at = c + std::ptrdiff_t{r} * ld + lane + v * kLanes;
      store(at, add ? load(at) + acc[r][v] : acc[r][v]);
    }
  }
}

// Columns of B are neighbours in memory.
template <int kGroup, class Words>
ATTN_INLINE void multiply_columns(const RowGroup<kGroup>& a, const OperandBlock& b, bool add,
                                  float* c, int ld) {
  // Sixteen sums of 32 registers, eight of 16.
  constexpr int kSums = kManyRegisters ? 16 : 8;
  constexpr int kVectors = kGroup == 1 ? 8 : kSums / kGroup;
  const int words = (b.depth + Words::kSteps - 1) / Words::kSteps;
  const int strip = strip_words<kGroup>(Words::bytes(b));
  for (int word = 0; word < words; word += strip, add = true) {
    const int end = words - word < strip ? words : word + strip;
    int lane = 0;
    for (; lane + kVectors * kLanes <= b.lanes; lane += kVectors * kLanes) {
      multiply_strip<kGroup, kVectors, Words>(a, b, lane, kLanes, word, end, add, c, ld);
    }
    for (; lane < b.lanes; lane += kLanes) {
      const int count = b.lanes - lane < kLanes ? b.lanes - lane : kLanes;
      multiply_strip<kGroup, 1, Words>(a, b, lane, count, word, end, add, c, ld);
    }
  }
}

// c[row][column] <- (add ? c : 0) + the sums of the lanes of acc[column][row], of so many of them.
template <int kGroup, int kCount>
ATTN_INLINE void store_sums(F (&acc)[kCount], int rows, int columns, bool add, float* c, int ld) {
  float sums[kCount];
  store_reduced(acc, sums);
  for (int r = 0; r < rows; ++r) {
    for (int j = 0; j < columns; ++j) {
      float* at = c + std::ptrdiff_t{r} * ld + j;
      *at = add ? *at + sums[j * kGroup + r] : sums[j * kGroup + r];
    }
  }
}

// Steps of a column of B are neighbours in memory: kLanes sums of a few columns (kSumKeys of
// decode.hpp says why more on NEON), each of which is a vector of partial sums, are reduced
// together.
template <int kGroup, class Words>
ATTN_INLINE void multiply_steps(const RowGroup<kGroup>& a, const OperandBlock& b, bool add,
                                float* c, int ld) {
  constexpr int kColumns = kSumKeys<kGroup>;
  const std::ptrdiff_t bytes = Words::bytes(b), stride = b.lane_stride * bytes;
  const auto wanted = static_cast<int>(kBytesAhead / kColumns / bytes);
  const int steps_ahead = wanted < b.depth ? wanted : b.depth;
  const int words = (b.depth + Words::kSteps - 1) / Words::kSteps;
  for (int lane = 0; lane < b.lanes; lane += kColumns) {
    const int columns = b.lanes - lane < kColumns ? b.lanes - lane : kColumns;
    const std::byte* column[kColumns];
    for (int j = 0; j < kColumns; ++j) {
      column[j] = b.at + (lane + (j < columns ? j : columns - 1)) * stride;
    }
    // Asked for ahead: further down these columns, and then from the top of the next ones.
    const bool next = lane + 2 * kColumns <= b.lanes;
    F acc[kColumns * kGroup] = {};  // [column][row]
    for (int word = 0; word < words; word += kLanes) {
      const int step = word * Words::kSteps;
      std::ptrdiff_t ahead = step + steps_ahead;
      if (ahead >= b.depth) ahead = next ? ahead - b.depth + kColumns * b.lane_stride : step;
      F x[kGroup];
#pragma GCC unroll 8
      for (int r = 0; r < kGroup; ++r) x[r] = load(a.row[r] + word);
#pragma GCC unroll 16
      for (int j = 0; j < kColumns; ++j) {
        const F y = Words::load_steps(column[j], step, b.depth - step, b);
        __builtin_prefetch(column[j] + ahead * bytes, 0, 3);
#pragma GCC unroll 8
        for (int r = 0; r < kGroup; ++r) {
          F& sum = acc[j * kGroup + r];
          sum = Words::multiply_add(x[r], y, sum);
        }
      }
    }
    store_sums<kGroup>(acc, a.count, columns, add, c + lane, ld);
  }
}

// Columns of B are blocks, read one by one, so that memory is read in order: of four or more at a
// time weights came at half of the rate. A block is widened to vectors that all rows are multiplied
// by. A row has several sums, where registers are left, as each FMA waits for the last.
template <int kGroup, BlockFormat kFormat>
static void multiply_blocks(const RowGroup<kGroup>& a, const OperandBlock& b, bool add, float* c,
                            int ld) {
  constexpr int kColumns = kLanes / kGroup;
  constexpr int kSums = kGroup * kBlockVectors <= 8 ? kBlockVectors : kGroup <= 4 ? 2 : 1;
  constexpr auto kBlock = static_cast<int>(core::kBlockElements);
  constexpr std::ptrdiff_t kBytes = core::block_bytes(kFormat);
  for (int lane = 0; lane < b.lanes; lane += kColumns) {
    const int columns = b.lanes - lane < kColumns ? b.lanes - lane : kColumns;
    F acc[kLanes] = {};  // [column][row]
    for (int j = 0; j < columns; ++j) {
      const std::byte* block = b.at + (lane + j) * b.lane_stride;
      F sum[kGroup][kSums] = {};
      for (int step = 0; step < b.depth; step += kBlock, block += kBytes) {
        F y[kBlockVectors];
        widen_block<kFormat>(block, y);
        __builtin_prefetch(block + kBlockBytesAhead, 0, 3);
#pragma GCC unroll 8
        for (int r = 0; r < kGroup; ++r) {
#pragma GCC unroll 8
          for (int v = 0; v < kBlockVectors; ++v) {
            F& to = sum[r][v % kSums];
            to = fma(load(a.row[r] + step + v * kLanes), y[v], to);
          }
        }
      }
#pragma GCC unroll 8
      for (int r = 0; r < kGroup; ++r) {
        F& to = acc[j * kGroup + r];
#pragma GCC unroll 8
        for (int i = 0; i < kSums; ++i) to += sum[r][i];
      }
    }
    store_sums<kGroup>(acc, a.count, columns, add, c + lane, ld);
  }
}

template <int kGroup, class Words, DType kSource>
static void multiply_group(const RowGroup<kGroup>& a, const OperandBlock& b, bool add, float* c,
                           int ld) {
  OperandBlock known = b;  // its type is a constant here
  known.dtype = kSource;
  known.format = BlockFormat::none;
  if (b.lane_stride == 1) return multiply_columns<kGroup, Words>(a, known, add, c, ld);
  multiply_steps<kGroup, Words>(a, known, add, c, ld);
}

// multiply<rows of a group>(rows of A, rows of c) of each group.
template <class Multiply>
ATTN_INLINE void for_groups(const float* a, int a_ld, int rows, float* c, int ld,
                            const Multiply& multiply) {
  for (int first = 0; first < rows; first += kMostGroup) {
    const int count = rows - first < kMostGroup ? rows - first : kMostGroup;
    const float* of_a = a + std::ptrdiff_t{first} * a_ld;
    float* of_c = c + std::ptrdiff_t{first} * ld;
    if (count == 1) {
      multiply(RowGroup<1>(of_a, a_ld, count), of_c);
    } else if (count == 2) {
      multiply(RowGroup<2>(of_a, a_ld, count), of_c);
    } else if (count <= 4) {
      multiply(RowGroup<4>(of_a, a_ld, count), of_c);
    } else if constexpr (kMostGroup == 8) {
      multiply(RowGroup<8>(of_a, a_ld, count), of_c);
    }
  }
}

template <class Words, DType kSource>
ATTN_INLINE void multiply_few_rows_of(const float* a, int a_ld, int rows, const OperandBlock& b,
                                      bool add, float* c, int ld) {
  for_groups(a, a_ld, rows, c, ld, [&]<int kGroup>(const RowGroup<kGroup>& group, float* of_c) {
    multiply_group<kGroup, Words, kSource>(group, b, add, of_c, ld);
  });
}

template <class Words>
static void multiply_few_rows(const void* packed, int a_ld, int rows, const OperandBlock& b,
                              bool add, float* c, int ld) {
  const float* a = static_cast<const float*>(packed);
  if constexpr (Words::kSteps == 2) {
    return multiply_few_rows_of<Words, DType::bf16>(a, a_ld, rows, b, add, c, ld);
  } else if (b.format != BlockFormat::none) {
    with_block_format(b.format, [&]<BlockFormat kFormat>() {
      for_groups(a, a_ld, rows, c, ld, [&]<int kGroup>(const RowGroup<kGroup>& group, float* of_c) {
        multiply_blocks<kGroup, kFormat>(group, b, add, of_c, ld);
      });
    });
  } else {
    with_dtype(b.dtype, [&]<DType kSource>() {
      multiply_few_rows_of<Words, kSource>(a, a_ld, rows, b, add, c, ld);
    });
  }
}

template <class Words>
static constexpr FewRowsVerbs few_rows_of() {
  return {.rows = 8,
          .row_multiple = 1,
          .depth_multiple = kLanes * Words::kSteps,
          .element_bytes = 4 / Words::kSteps,
          .packed_bytes = 1 << 15,  // two thirds of an L1 of 48 KB
          .pack_a = pack_few_rows<Words>,
          .multiply = multiply_few_rows<Words>};
}

}  // namespace attn::cpu::ATTN_ISA
