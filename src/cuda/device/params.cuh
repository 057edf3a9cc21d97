// What a forward kernel is given, beside the expressions. Plain data: host and device both include
// this file, so that there is one layout.
#pragma once

namespace attn::device {

// Elements. Of a packed tensor: batch is 0, rows count from the start of the tensor. Of a paged
// one: batch is the distance between pages.
struct Strides {
  long long batch, row, head;
};

// What some rows of a tile see of 32 blocks of keys, a bit each: less than all of it, nothing.
struct alignas(8) KeyWord {
  unsigned mixed, empty;
};

struct ForwardParams {
  const void* q;
  const void* k;
  const void* v;
  void* o;
  float* lse;  // null when not asked for
  Strides q_strides, k_strides, v_strides, o_strides, lse_strides;

  const int* cu_seqlens_q;  // null unless packed
  const int* cu_seqlens_k;
  const int* seqused_q;  // null when absent
  const int* seqused_k;
  const int* page_table;  // null unless paged
  long long page_table_stride;
  const float* sink;  // null when absent

  // Partial results of splits: o [num_splits][batch][heads_q][seqlen_q][head_dim_v], lse
  // [num_splits][batch][heads_q][seqlen_q]; null when num_splits is 1.
  float* partial_o;
  float* partial_lse;

  int batch, seqlen_q, seqlen_k, heads_q, heads_k, head_dim, head_dim_v;
  int page_size;
  int num_splits, blocks_per_split;
  // Order of tiles: m blocks of `heads_at_once` (batch, head) pairs are gone through together, the
  // last block of queries first.
  int m_blocks, heads_at_once;
  int num_tiles;
  // {next tile, blocks of threads that are done}: both 0 at the start, and again at the end. Null:
  // tiles are dealt in turn.
  unsigned* counter;

  float scale;                 // softmax_scale
  float scale_log2;            // softmax_scale * log2(e); positive where kernels use it
  unsigned dropout_threshold;  // an element is kept when its 16 random bits are at least this
  float dropout_scale;
  unsigned dropout_round_keys[10][2];  // of Philox4x32-10
  unsigned dropout_counter3;           // last word of its counter

  // Of a mask that is classified ahead (schedule/key_words.cuh), else null.
  KeyWord* key_words;
  int key_windows;  // of 32 blocks of keys
};

}  // namespace attn::device
