// The part of the kernels' parameters that every phase shares.
#pragma once

#include "attn/run.hpp"
#include "cuda/device/params.cuh"

namespace attn::cuda {

// Strides of a tensor laid out as Q or K; packed: [rows, heads, columns].
device::Strides strides_of(const Tensor& tensor, Layout layout);
// Strides of a tensor laid out as LSE: [batch, heads, rows], packed [heads, rows].
device::Strides lse_strides_of(const Tensor& tensor, Layout layout);
// Strides of lists of keys: batch, row and head of Strides, of which head is 0 where one list
// serves all heads.
device::Strides key_list_strides_of(const Tensor& tensor, Layout layout_q);

// The members about dropout. rng_state: where the problem says that it is a tensor.
void fill_dropout(device::ProblemParams& to, const Dropout& dropout, const Tensor& rng_state);

// What of ProblemParams follows from the problem, but for dropout: sizes and scale.
void fill_problem_parameters(device::ProblemParams& to, const Problem& problem);
// Bits of device::WideTensor, of the tensors of int64.
unsigned wide_tensors(const Inputs& inputs);
// The rest: the tensors of a call, with the strides of O and LSE as far as they are given, and
// dropout.
void fill_tensors(device::ProblemParams& to, const Problem& problem, const Inputs& inputs,
                  const Outputs& outputs);

}  // namespace attn::cuda
