// The order of dQ's float32 sums in memory and on their way there: as threads hold them, so that
// adding needs no exchange. A block of queries has its columns in pieces, which are staged and
// added one by one; a piece has 4 warps; a warp has words of 16 bytes, those of its 32 threads
// together. One product gives a part of up to 128 columns, some pieces.
#pragma once

#include "device.cuh"
#include "divide_up.cuh"

namespace attn::device {

struct alignas(16) Float4 {
  float x, y, z, w;
};

template <int kQueries, int kHeadDim, int kPieceColumns>
struct DqOrder {
  static constexpr int kMostColumns = 128;  // of a part
  static_assert(kMostColumns % kPieceColumns == 0);
  static constexpr int kParts = divide_up<kMostColumns>(kHeadDim);
  static constexpr ATTN_DEVICE int columns(int part) {
    return part + 1 < kParts ? kMostColumns : kHeadDim - kMostColumns * (kParts - 1);
  }
  static constexpr int kPieces = divide_up<kPieceColumns>(kHeadDim);
  static constexpr int kPartPieces = kMostColumns / kPieceColumns;
  static constexpr int kPieceWords = kPieceColumns / 8;  // of a thread
  static constexpr ATTN_DEVICE int piece_columns(int piece) {
    return piece + 1 < kPieces ? kPieceColumns : kHeadDim - kPieceColumns * (kPieces - 1);
  }
  // These count floats.
  static constexpr int kWord = 32 * 4;  // from a word of a thread to its next
  static constexpr int kPiece = kQueries * kPieceColumns;
  // The offset of a thread's first word of a piece (its number is of the warpgroup) from the start
  // of the piece.
  static ATTN_DEVICE int thread_at(unsigned thread, int piece) {
    return static_cast<int>(thread / 32) * (piece_columns(piece) / 8 * kWord) +
           static_cast<int>(thread % 32) * 4;
  }
};

}  // namespace attn::device
