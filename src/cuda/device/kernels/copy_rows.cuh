// Copies of rows of K and V, several by one launch, also from another GPU's memory: what a rank
// gathers before its first kernel.
//
// Reads of C: kPacket, the bytes of a load.
// Grid: as many blocks of kCopyRowsThreads for each copy. `lanes` threads work on a row; they go on
// with those as far behind as all blocks of the copy reach.
#pragma once

#include "device.cuh"
#include "kernels/copy_rows_params.cuh"

namespace attn::device {

template <int kBytes>
struct PacketWord {
  using Type = unsigned;
};
template <>
struct PacketWord<2> {
  using Type = unsigned short;
};

template <class C>
struct CopyRows {
  // Rows whose loads are under way at once: another GPU's memory answers after microseconds.
  static constexpr int kRowsAtOnce = 4;
  using Word = typename PacketWord<C::kPacket>::Type;
  struct alignas(C::kPacket) Packet {
    Word words[C::kPacket / sizeof(Word)];
  };

  static ATTN_DEVICE long long place(const ByteStrides& s, long long i, long long rows, int head) {
    return i / rows * s.batch + i % rows * s.row + head * s.head;
  }

  static ATTN_DEVICE void run(const CopyRowsParams& p) {
    const RowCopy& c = p.copies[blockIdx.x % p.count];
    const int blocks = gridDim.x / p.count, block = blockIdx.x / p.count;
    const int lane = static_cast<int>(threadIdx.x) % c.lanes;
    const int rows_of_block = kCopyRowsThreads / c.lanes;
    const long long step = static_cast<long long>(blocks) * rows_of_block;
    const long long first =
        block * static_cast<long long>(rows_of_block) + static_cast<int>(threadIdx.x) / c.lanes;
    for (long long i = first; i < c.all_rows; i += kRowsAtOnce * step) {
      for (int j = lane; j < c.heads * c.packets; j += c.lanes) {
        const int head = j / c.packets;
        const long long column = j % c.packets * static_cast<long long>(sizeof(Packet));
        Packet packets[kRowsAtOnce];
#pragma unroll
        for (int r = 0; r < kRowsAtOnce; ++r) {
          // Past the last row it is loaded again, so that no load waits for a branch.
          const long long row = min(i + r * step, c.all_rows - 1);
          packets[r] = *reinterpret_cast<const Packet*>(
              static_cast<const char*>(c.from) + place(c.from_strides, row, c.rows, head) + column);
        }
#pragma unroll
        for (int r = 0; r < kRowsAtOnce; ++r) {
          const long long row = i + r * step;
          if (row < c.all_rows) {
            *reinterpret_cast<Packet*>(static_cast<char*>(c.to) +
                                       place(c.to_strides, row, c.rows, head) + column) =
                packets[r];
          }
        }
      }
    }
  }
};

}  // namespace attn::device
