// Mask and score expressions as device code.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "attn/expr.hpp"
#include "cuda/codegen/printed_buffers.hpp"

namespace attn::cuda {

// The text of one struct, to stand in a translation unit of device code:
//
//   namespace attn::device {
//   struct alignas(8) Expressions {  // trivially copyable: a kernel parameter
//     static constexpr bool kHasMask, kHasScore;   // false: mask() is true, score() dot scaled
//     // mask() is key >= mask_first() && key <= mask_last() && mask_rest(), of which there are
//     static constexpr bool kMaskFirst, kMaskLast, kMaskRest;
//     static constexpr bool kScoreLoads;    // an element of a buffer for each score
//     static constexpr float kScoreFactor;  // > 0; the score is score() * kScoreFactor
//     bool mask(int query, int key, int batch, int head, int seqlen_q, int seqlen_k) const;
//     int mask_first(int query, int batch, int head, int seqlen_q, int seqlen_k) const;
//     int mask_last(int query, int batch, int head, int seqlen_q, int seqlen_k) const;
//     bool mask_rest(int query, int key, int batch, int head, int seqlen_q, int seqlen_k) const;
//     // dot: q.k, not scaled. The key is key_first + step; scores of a row with one key_first and
//     // constant steps share more of the work.
//     float score(float dot, int query, int key_first, int batch, int head, int seqlen_q,
//                 int seqlen_k, int step = 0) const;
//     // Where kVectorWords > 0, score_of_vectors() is score() of one of the 8 scores that a thread
//     // has of a row and 32 keys, `element`, in the order of keys. load_vectors() loads what it
//     reads
//     // of buffers, given the first of the 32 keys (expr/vector.cuh). With kTransposed,
//     // transpose_vectors() comes between them, which all threads of a warp call together.
//     static constexpr int kVectorWords;
//     struct Vectors { unsigned words[kVectorWords]; };
//     template <bool kTransposed>
//     void load_vectors(Vectors& vectors, int query, int key, int batch, int head, int seqlen_q,
//                       int seqlen_k) const;
//     void transpose_vectors(Vectors& vectors) const;
//     float score_of_vectors(const Vectors& vectors, int element, float dot, int query,
//                            int key_first, int batch, int head, int seqlen_q, int seqlen_k,
//                            int step = 0) const;
//     // Where kHasExponent: log2(e) times the score, plus addend, in fewer instructions than from
//     // score(). share_row, where kCount > 0, gives what scores of a row have in common,
//     // whatever the query unless kRowSharesQuery. Where kHasSmallTanh the result is right, or
//     // NaN, if `room`, which becomes the lesser of itself and what the argument of tanh leaves,
//     // is at least the bits of small_tanh.least (expr/fast.cuh); others leave it alone.
//     static constexpr bool kHasExponent, kRowSharesQuery, kHasSmallTanh;
//     SmallTanh small_tanh;
//     struct RowShared { static constexpr int kCount; float value[kCount]; };
//     void share_row(RowShared& shared, int query, int batch, int head, int seqlen_q,
//                    int seqlen_k) const;
//     float exponent(const RowShared& shared, float addend, int& room, float dot, int query,
//                    int key_first, int batch, int head, int seqlen_q, int seqlen_k,
//                    int step = 0) const;
//     Coverage classify(int query_min, int query_max, int key_min, int key_max, int batch,
//                       int head_min, int head_max, int seqlen_q, int seqlen_k) const;
//   };
//   }
//
// mask agrees with expr::evaluate<float> bit by bit (exp, exp2, log, tanh, erf, sin and cos within
// 2 ulp); score follows src/cuda/device/expr/fast.cuh, macro ATTN_PRECISE_MATH. With the macro
// ATTN_SHORT_SEQUENCES=1, for problems whose seqlen_q and seqlen_k are at most 2^20, sums of
// positions and their conversion to float are cheaper. classify follows expr::classify, but looks
// at no more than 256 elements a load, and at none unless scans_buffers. Every call reads buffers
// again: with scans_buffers, classify is worth doing once for all warps.
//
// mask must be boolean and without score, score float32; either may be empty. The text depends on
// their trees, on the dtype of each buffer, on whether its last dimension is contiguous and on how
// many elements may be read at once, as `printed` says, and on no value of a scalar. Throws
// Error(invalid_argument) for other types and where one buffer name means two tensors,
// Error(unsupported) for more than 32 buffers. short_sequences: seqlen_q and seqlen_k are at most
// 2^20, and more of the mask is bounds of the key.
std::string print_expressions(const expr::Expr& mask, const expr::Expr& score,
                              const PrintedBuffers& printed = {}, bool short_sequences = false,
                              bool scans_buffers = true);

// That struct with kHasMask, classify() and the buffers of the mask alone, for kernels that only
// classify tiles and are the same for all scores. Its bytes are the first of those of the whole
// struct. Throws likewise.
std::string print_classifier(const expr::Expr& mask, const PrintedBuffers& printed = {});

// Size of the whole struct, whose bytes expression_pack (expression_pack.hpp) gives; throws as
// print_expressions for buffers.
std::size_t expressions_bytes(const expr::Expr& mask, const expr::Expr& score);

}  // namespace attn::cuda
