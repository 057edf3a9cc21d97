// A test case: a problem and how its tensors are to be made. Text form: the problem's, then '/' and
// hints joined by '_', as in "b2_n64_h4_d64_causal_bf16/strided_q5_k3".
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "attn/problem.hpp"

namespace attn::verify {

struct Hints {
  bool strided = false;  // outer axes in random order, gaps between rows, bases off by an element;
                         // and loose
  bool loose = false;    // LSE and gradients of LSE, sinks and buffers at any strides at all
  bool headmajor = false;     // every tensor stored [batch, heads, seqlen, head_dim]
  bool dotransposed = false;  // only dO stored so
  bool broadcast_q = false;   // stride 0 over batch and heads
  bool broadcast_k = false;
  bool broadcast_v = false;
  bool broadcast_do = false;
  bool v_in_k = false;      // V is the first columns of K, as of multi-head latent attention
  bool padded = false;      // random seqused_q and seqused_k (paged: seqused_k is always there)
  bool far = false;         // strides so large that offsets pass 2^31 elements; few pages touched
  bool negative = false;    // every score far below zero
  bool nolse = false;       // LSE not asked for; backward needs it and ignores this
  bool dlse = false;        // a gradient of LSE is given
  bool maxlogit = false;    // the largest score of each head is asked for, forward
  bool i64 = false;         // lengths, page tables and lists of keys are of int64
  bool headscales = false;  // scales of Q, K and V are one, or one a head
  bool nodq = false, nodk = false, nodv = false;  // gradient not asked for
  // Q = 0, so that all visible keys weigh the same; row j of V and dO is the unit vector of
  // element j % head_dim_v in K, V head j / head_dim_v, 0 in other heads: O is P, dV its transpose.
  bool identity = false;
  // Row j of K is a code of +-c, and each query the code of a visible key, which takes all the
  // weight; V and dO are small whole numbers: results are exact in every type.
  bool select = false;
  double q_factor = 1;  // Q and K are normal random numbers times this
  double k_factor = 1;
  std::vector<std::int32_t> cu_q, cu_k;      // cu_seqlens; random when not given
  std::vector<std::int32_t> used_q, used_k;  // seqused; random or absent when not given
};

struct Case {
  Problem problem;  // batch, heads_q and heads_k default to 1
  Hints hints;
};

// Throws Error(invalid_argument) that names the token and what is accepted.
Case parse_case(std::string_view text);
std::string to_string(const Case& c);
// The case with every length that is random otherwise at its largest: what a benchmark counts flops
// and bytes of.
Case at_full_length(Case c);

// Whether the problem has a backward pass: with paged K, V, a shared prefix, types of its own or
// lists of keys in f64 it has none; with lists it has one on CPUs alone.
bool has_backward(const Problem& problem);

// Scores that the case computes: those of a shared prefix too.
std::int64_t scores(const Case& c);

}  // namespace attn::verify
