// What the kernel of merge is given; host and device include the same file.
#pragma once

namespace attn::device {

// Of O. mixed: of all parts together, where they differ; no part has it.
enum class MergeType { f32, bf16, f16, mixed };

// O and LSE of a part or of the result. Strides count elements: of the batch, queries and heads,
// then of the columns of O.
struct MergePart {
  void* o;
  float* lse;  // of the result null where it is not given
  long long o_strides[4], lse_strides[3];
  MergeType type;  // of O
};
inline constexpr int kMergeParts = 32;  // a lane of a warp each
struct MergeParams {
  MergePart part[kMergeParts], result;
  long long rows, seqlen_q, heads, columns;  // rows: of all batch entries, queries and heads
  int parts;
  int column_lanes_log2;  // of the lanes that have a row's columns, 32 at most
};
inline constexpr int kMergeThreads = 128;
inline constexpr int kMergeBlocks = 5;  // of a multiprocessor: up to 100 registers a thread

}  // namespace attn::device
