// What the kernel of append_kv is given; host and device include the same file.
#pragma once

namespace attn::device {

// By what rows of e4m3, e5m2 and i8 are divided: 1, a number that is given, or one that is chosen.
enum class AppendScale { none, given, chosen };

// Tensors of integers, a bit each for those of long long.
enum AppendWide : unsigned {
  kAppendCuSeqlens = 1,
  kAppendCacheSeqlens = 2,
  kAppendPositions = 4,
  kAppendRopePositions = 8,
  kAppendPageTable = 16,
  kAppendSeqused = 32,
};
// The most keys that a sequence may have had, so that rows can be added to them.
inline constexpr long long kMostCachedKeys = 1LL << 62;

// Of Q, K or V. Strides count elements; a block is a sequence or a page.
struct AppendPartParams {
  const void* from;
  void* to;
  const void* weight;
  float* scale;  // read where it is given
  long long from_block, from_row, from_head;
  long long to_block, to_row, to_head;
  long long scale_block, scale_row, scale_head;
  int heads;
};

struct AppendParams {
  AppendPartParams part[3];
  // Null where they are not given.
  // Of int or long long (AppendWide).
  const void* cu_seqlens;
  const void* cache_seqlens;
  const void* positions;
  const void* rope_positions;
  const void* page_table;
  const void* seqused;
  const float* inv_freq;
  const float* cos;
  const float* sin;
  long long seqused_stride, cache_seqlens_stride, positions_strides[2], rope_positions_strides[2];
  long long page_table_strides[2], cos_stride, sin_stride, table_rows;
  long long rows, seqlen;  // seqlen: of dense new rows
  long long blocks, block_rows, capacity;
  int batch;
  int together, groups;  // heads of a part that a warp takes of a row; groups of them in all parts
  float norm_eps;
  bool ring, cached, has_tables;  // has_tables: of cos and sin, which may be empty
};
inline constexpr int kAppendThreads = 256;
// Floats of shared memory that a warp has: three packets of eight in each lane, as of 576 columns.
inline constexpr int kAppendMemory = 768;

}  // namespace attn::device
