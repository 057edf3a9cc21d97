// What the kernels of matrix products are given; host and device include the same file. C is
// row-major here: where it is not, A and B change places, as C^T = B^T A^T.
#pragma once

namespace attn::device {

// Strides in elements. "step" is along k.
struct MatmulParams {
  const void *a, *b;
  void* c;
  const float* bias;
  const float *scale_a, *scale_b;  // of float8, where kScaled
  const unsigned char* mask;       // of blocks of C::kBlock, where C::kMasked
  float* partial;                  // of stream_k, see there
  unsigned* flags;
  long long a_batch, a_row, a_step;
  long long b_batch, b_step, b_column;
  long long c_batch, c_row;
  long long bias_stride, mask_row, mask_column;
  int m, n, k, batch;
  int m_tiles, n_tiles;  // of a product
  int group;             // rows of tiles that are worked on together
  int steps_per_split;   // of split_k
  int whole_tiles;       // of stream_k: those that one block multiplies
  int streams_b;         // B is read once, and L2 does not hold it
};

}  // namespace attn::device
