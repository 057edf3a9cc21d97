// What the kernel of merge is given; host and device include the same file.
#pragma once

namespace attn::device {

enum class MergeType { f32, bf16, f16 };

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
};
inline constexpr int kMergeThreads = 128;

}  // namespace attn::device
