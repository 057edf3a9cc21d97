// What the kernel of copy_rows is given; host and device include the same file.
#pragma once

namespace attn::device {

// kMostRowCopies fill the 4 KB that a kernel's parameters may have.
inline constexpr int kCopyRowsThreads = 256, kMostRowCopies = 40;

struct ByteStrides {
  long long batch, row, head;
};
// Rows x heads x packets from one place to another.
struct RowCopy {
  const void* from;
  void* to;
  ByteStrides from_strides, to_strides;
  long long rows, all_rows;  // of a sequence, of all
  int heads, packets;        // packets: of a row of a head
  int lanes;                 // threads of a row: a power of two, kCopyRowsThreads at most
};
struct CopyRowsParams {
  RowCopy copies[kMostRowCopies];
  int count;  // of copies in use
};

}  // namespace attn::device
