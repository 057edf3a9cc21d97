// What a problem and the tensors of a call ask of a backward kernel, whatever its tile shape.
#pragma once

#include "attn/problem.hpp"
#include "attn/tensor.hpp"

namespace attn::cuda {

// What the tensors of a call add to the problem.
struct BackwardTensors {
  bool seqused_q = false, seqused_k = false;
  unsigned wide = 0;  // bits of device::WideTensor
  // Addresses and strides of Q, K, V, dO, dQ, dK and dV are multiples of 16 bytes; those of O are,
  // which only the kernel of D reads.
  bool aligned = true, aligned_o = true;
  bool mapped = true;       // the driver makes tensor maps of Q, K, V and dO
  bool float_sums = false;  // dK and dV are float32, whatever the dtype of the problem
  bool operator==(const BackwardTensors&) const = default;
};

// The gradients that are asked for, but for those of buffers.
struct AskedGradients {
  bool dq = true, dk = true, dv = true;
  bool operator==(const AskedGradients&) const = default;
};

struct BackwardFeatures {
  DType dtype = DType::f32;
  int head_dim = 0, head_dim_v = 0;
  bool packed_q = false, packed_k = false, used_q = false, used_k = false;
  bool key_list = false;  // keys by list
  unsigned wide = 0;      // bits of device::WideTensor
  bool dropout = false;
  bool rng_state = false;    // seed and offset of dropout are read by the kernel
  bool score_hides = false;  // a score may be -inf
  bool float_sums = false;   // dK and dV are stored in float32
  bool far_rows = false;     // LSE of a row may be far from 0 (device/softmax/far_rows.cuh)
  bool masked = false;       // tiles are of different lengths
  // What blocks of queries see differs between heads, and between batch entries.
  bool mask_heads = false, mask_batches = false;

  bool lengths_differ() const noexcept { return packed_q || packed_k || used_q || used_k; }
};

BackwardFeatures backward_features(const Problem& problem, const BackwardTensors& tensors);

// What is known of the buffers whose gradients a kernel gives (codegen/buffer_gradients.hpp).
struct BufferFeatures {
  // Whether some are of OwnElements, and what these read.
  bool own_elements = false, reads_batch = false, reads_head = false, by_position = false;
  bool single_own = false;    // there is one, of OwnElements
  bool same_vectors = false;  // the score loads no elements but those of one buffer
  bool exact_sums = false;    // others are summed in memory exactly, in any order: Superaccumulator
};

}  // namespace attn::cuda
