// What kernels are given, beside the expressions. Plain data: host and device both include this
// file, so that there is one layout.
#pragma once

namespace attn::device {

// Elements. Of a packed tensor: batch is 0, rows count from the start of the tensor. Of a paged
// one: batch is the distance between pages.
struct Strides {
  long long batch, row, head;
};

// The tensors of integers that a kernel reads, a bit each: those of long long are set in
// Config::kWide, others are of int (index.cuh).
enum WideTensor : unsigned {
  kWideCuSeqlensQ = 1,
  kWideCuSeqlensK = 2,
  kWideSequsedQ = 4,
  kWideSequsedK = 8,
  kWidePageTable = 16,
  kWideKeyLists = 32,
};

// What some rows of a tile see of 32 blocks of keys, a bit each: less than all of it, nothing.
struct alignas(8) KeyWord {
  unsigned mixed, empty;
};

// Rounds of Philox4x32 in dropout (docs/numerics.md).
inline constexpr int kPhiloxRounds = 7;

// Which elements of P are kept (core/philox.hpp): those whose 15 random bits are at least those of
// `least`, which has them in both halves, where flip is 0; the other ones where flip is ~0.
struct DropoutRule {
  unsigned least, flip;
};

// What a problem is to the kernels of every phase.
struct ProblemParams {
  const void* q;
  const void* k;
  const void* v;
  Strides q_strides, k_strides, v_strides, o_strides, lse_strides;

  // Of int or long long (WideTensor).
  const void* cu_seqlens_q;  // null unless packed, or of a part of a problem (softmax/dropout.cuh)
  const void* cu_seqlens_k;
  const void* seqused_q;  // null when absent
  const void* seqused_k;
  const float* sink;  // null when absent

  int batch, seqlen_q, seqlen_k, heads_q, heads_k, head_dim, head_dim_v;

  float scale;                 // softmax_scale
  float scale_log2;            // softmax_scale * log2(e); positive where kernels use it
  unsigned dropout_threshold;  // its probability, times 2^15
  DropoutRule dropout_rule;
  float dropout_scale;
  union {
    unsigned dropout_round_keys[kPhiloxRounds][2];
    unsigned rng_state[2];  // with kRngState: address of seed and offset, low half first
  };
  unsigned dropout_counter3;  // last word of its counter
};

struct DropoutMaskParams : ProblemParams {
  unsigned char* kept;        // [batch][heads_q][seqlen_q][seqlen_k]
  long long kept_strides[4];  // elements
};
inline constexpr int kDropoutMaskThreads = 128;

struct BlockListParams {
  const void* lists;      // int or long long [batch][heads][blocks_q][entries]
  unsigned char* blocks;  // [batch][heads][blocks_q][blocks_k]
  long long list_strides[3], block_strides[3];  // elements; of the last dimension 1
  long long heads, blocks_q, rows;              // rows: of all batch entries and heads
  int entries, blocks_k;
};
inline constexpr int kBlockListThreads = 128;

// Rows of a packed result from *end on, to be filled with a value (kernels/packed_tail.cuh).
struct PackedTail {
  void* data;
  const void* end;                          // cu_seqlens[batch], int or long long
  long long rows, row_stride, head_stride;  // rows of the tensor; elements
  int heads, columns, element_bytes;        // bytes: 2 or 4
  unsigned value;                           // the bits of an element
};
struct PackedTailParams {
  PackedTail tails[3];
  int count;  // of tails in use
};

// Rows of up to kMostRowTerms tensors of one shape, which are added (kernels/row_sums.cuh).
inline constexpr int kRowSumsThreads = 256, kMostRowTerms = 16;
struct RowTerm {
  const void* data;
  Strides strides;
};
struct RowSumsParams {
  RowTerm terms[kMostRowTerms];
  void* sums;
  Strides strides;
  long long rows, all_rows;  // of a sequence, of all
  int count;                 // of terms in use
  int heads, columns;
  int lanes;  // threads of a row: a power of two, kRowSumsThreads at most
};

// Where the blocks of threads of a launch get their tiles from (schedule/dealer.cuh).
inline constexpr int kNoCounter = -1, kGridCounter = -2, kStreamCounters = 128;

// The largest score of a row of Q so far, and the sum of exp(score - m).
struct alignas(8) RowSums {
  float m, l;
};

// LSE of a row over a part of the keys, as the sum of two numbers: `lse`, and what rounding took
// from it. Example: 300 keys with -1e30 added to each score have lse -1e30 and rest log 300, so
// that this part is worth three times one of 100 such keys.
struct alignas(8) PartialLse {
  float lse, rest;
};

struct ForwardParams : ProblemParams {
  void* o;
  float* lse;  // null when not asked for

  const void* page_table;  // null unless paged; of int or long long
  long long page_table_stride;

  // Partial results of splits: o [num_splits][batch][heads_q][seqlen_q][head_dim_v], lse
  // [num_splits][batch][heads_q][seqlen_q]; null when num_splits is 1.
  float* partial_o;
  PartialLse* partial_lse;

  int page_size;
  // Keys are cut into num_splits pieces of least_blocks blocks. Where a sequence's own length says
  // how many it has, these are the most pieces and the fewest blocks (schedule/pieces.cuh).
  int num_splits, least_blocks;
  // Where not null, the kernel that stays for all pieces chooses the fewest blocks of one from all
  // lengths, and leaves them here for the kernel that merges.
  int* piece_blocks;
  // Order of tiles: m blocks of `heads_at_once` (batch, head) pairs are gone through together, the
  // last block of queries first.
  int m_blocks, heads_at_once;
  int num_tiles;
  int counter;  // of a stream, kGridCounter, or kNoCounter: tiles are dealt in turn

  // The words of a mask that is classified ahead (schedule/key_words.cuh), else null.
  KeyWord* key_words;
  int key_windows;  // of 32 blocks of keys

  int num_pages;  // of K and V

  // What forward_flash_attention has between two blocks of keys: O [batch][heads_q][seqlen_q]
  // [head_dim_v], normalised, and sums [batch][heads_q][seqlen_q]. Else null.
  // Other kernels: the largest score of each head (softmax/max_logit.cuh), where it is asked for.
  union {
    float* row_o;
    float* max_logit;
  };
  union {
    RowSums* row_sums;
    long long max_logit_stride;
  };
  // What forward_standard has: S, then P, [batch][heads_q][seqlen_q][seqlen_k], and which of its
  // three passes a launch is, 0 to 2. Else null and 0.
  float* scores;
  int pass;

  // Lists of keys (Problem::key_list), of list_length entries each; null without lists. One for all
  // heads has a stride of 0.
  const void* key_lists;  // of int or long long
  Strides key_list_strides;
  int list_length;
};

// Of Q, K and V in types of their own: a factor for each row and head, one a head or one for all
// where strides are 0. Null: 1.
struct CachedForwardParams : ForwardParams {
  const float* scale_q;
  const float* scale_k;
  const float* scale_v;
  Strides scale_q_strides, scale_k_strides, scale_v_strides;
};

// What lays V out for products of 8-bit floats (kernels/transpose_values.cuh).
struct TransposeValuesParams : ProblemParams {
  const void* page_table;  // of int or long long
  long long page_table_stride;
  int page_size, num_pages;
  unsigned char* to;  // [batch, or 1 of a packed K][heads_k][head_dim_v + kRowsOfOnes][columns]
  long long columns;  // of a row, a multiple of 16
};
inline constexpr int kTransposeThreads = 256;

// What converts Q, K and V (kernels/copy_operands.cuh); rows: of K, rows_q: of Q, of all sequences.
struct CopyOperandsParams : CachedForwardParams {
  void* to_q;
  void* to_k;
  void* to_v;
  long long rows_q, rows;
};

// Partial results over keys that another pass had, those of a shared prefix: o [splits][rows]
// [head_dim_v], lse [splits][rows].
struct OtherPart {
  const float* o;
  const PartialLse* lse;
  long long rows;  // of one split
  int splits;
  // Rows are [batch][heads_q][seqlen_q]; as_one: [heads_q][seqlen_q] with the queries of all
  // sequences one after the other.
  int seqlen_q, as_one;
};
inline constexpr int kMostOtherParts = 2;
struct OtherParts {
  OtherPart part[kMostOtherParts];
};

// What the backward pass needs of a row of Q: P = exp(score - lse), dT = P (Z dP - d). lse is +inf
// where P is 0: of rows that see no key and of rows past a length.
struct alignas(8) RowTerms {
  float lse, d;
};

// What P of a row of Q is made of where its LSE is far from 0: 2^(c (score - m) - log2_l), m being
// the largest score and log2_l the logarithm of the sum of exponentials.
struct alignas(8) FarRow {
  float m, log2_l;
};

// What a kernel of the backward pass computes; ds: P and dS.
enum class Gradient { dq, dk, dv, dk_dv, all, buffers, ds };

// What 32 blocks of queries see of a tile of keys, a bit each: less than all of it, nothing.
struct alignas(8) QueryWord {
  unsigned mixed, empty;
};

struct BackwardParams : ProblemParams {
  const void* o;
  const float* lse;
  const void* d_o;
  const float* d_lse;  // null when not given
  void* dq;            // each null when not asked for
  void* dk;
  void* dv;
  float* dsink;
  Strides d_o_strides, d_lse_strides, dq_strides, dk_strides, dv_strides;
  long long dsink_stride;
  // [batch][heads_q][seqlen_q]; where the score may be large, as many FarRow come behind them.
  RowTerms* row_terms;

  // What follows is null in other kernels than those named. Of backward_sm90, by place: a block of
  // kQueries queries of a batch entry and head, (batch * heads_q + head) * query_blocks + block. Of
  // backward_standard, [batch][heads_q][seqlen_q][seqlen_k].
  union {
    float* lse2;           // sm90: [place][kQueries], in base 2; +inf where P is 0
    float* probabilities;  // standard: P
  };
  union {
    float* d;   // sm90: [place][kQueries]; 0 past a length
    float* ds;  // standard: dP, then dS
  };
  // [place][kQueries * head_dim], in the order of accumulators; of backward_flash_attention
  // [batch][heads_q][seqlen_q][head_dim].
  float* dq_sum;
  QueryWord* query_words;  // schedule/query_words.cuh
  int query_blocks, query_windows, key_blocks;
  int group;  // heads_q / heads_k
  // Order of tiles: those of `heads_at_once` (batch, K, V head) pairs are gone through together.
  int heads_at_once, num_tiles;
  int counter;  // as ForwardParams::counter

  // As ForwardParams has them, and the sums of dK and dV over them (schedule/list_sums.cuh).
  int list_length;
  const void* key_lists;
  Strides key_list_strides;
  float* dk_sum;
  float* dv_sum;
};

// The gradient of a buffer that the score reads, as float32 in the strides asked for: its sums, or
// the sum of its splits; 0 where there are neither. Sum: as of GradientSums.
template <class Sum>
struct BufferGradientParams {
  const Sum* sums;        // row-major, or null
  const float* elements;  // [splits][size]
  int splits;
  float* to;
  long long size;  // elements
  long long shape[4], strides[4];
};

}  // namespace attn::device
