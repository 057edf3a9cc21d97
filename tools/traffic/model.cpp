#include "traffic/model.hpp"

#include <string>

#include "attn/error.hpp"

namespace attn::traffic {
namespace {

// Adds elements, counts bytes.
class Counter {
 public:
  explicit Counter(const Problem& problem) : problem_(problem) {}

  Counter& read(Operand operand, double elements) {
    traffic_[operand].read += bytes(operand, elements);
    return *this;
  }
  Counter& write(Operand operand, double elements) {
    traffic_[operand].written += bytes(operand, elements);
    return *this;
  }
  const Traffic& traffic() const { return traffic_; }

 private:
  double bytes(Operand operand, double elements) const {
    return elements * static_cast<double>(element_bytes(problem_, operand));
  }
  const Problem& problem_;
  Traffic traffic_;
};

// Elements of all heads.
struct Sizes {
  explicit Sizes(const Problem& p) {
    const double heads = static_cast<double>(p.batch) * static_cast<double>(p.heads_q);
    rows = heads * static_cast<double>(p.seqlen_q);
    q = rows * static_cast<double>(p.head_dim);
    o = rows * static_cast<double>(p.head_dim_v);
    k = heads * static_cast<double>(p.seqlen_k) * static_cast<double>(p.head_dim);
    v = heads * static_cast<double>(p.seqlen_k) * static_cast<double>(p.head_dim_v);
    s = rows * static_cast<double>(p.seqlen_k);
  }
  double rows, q, o, k, v, s;
};

// Algorithm 0: S = Q K^T; P = softmax(S); O = P V.
void standard_forward(const Sizes& n, Counter& c) {
  c.read(Operand::q, n.q).read(Operand::k, n.k).write(Operand::s, n.s);
  c.read(Operand::s, n.s).write(Operand::p, n.s);
  c.read(Operand::p, n.s).read(Operand::v, n.v).write(Operand::o, n.o);
}

// Algorithm 3: dV = P^T dO; dP = dO V^T; dS from P and dP; dQ = dS K; dK = dS^T Q.
void standard_backward(const Sizes& n, Counter& c) {
  c.read(Operand::p, n.s).read(Operand::d_o, n.o).write(Operand::dv, n.v);
  c.read(Operand::d_o, n.o).read(Operand::v, n.v).write(Operand::dp, n.s);
  c.read(Operand::p, n.s).read(Operand::dp, n.s).write(Operand::ds, n.s);
  c.read(Operand::ds, n.s).read(Operand::k, n.k).write(Operand::dq, n.q);
  c.read(Operand::ds, n.s).read(Operand::q, n.q).write(Operand::dk, n.k);
}

// Algorithms 1 and 5. rows: of all tiles visited.
void flash_forward(const Problem& p, const Sizes& n, double rows, Counter& c) {
  const auto d = static_cast<double>(p.head_dim);
  const auto d_v = static_cast<double>(p.head_dim_v);
  c.write(Operand::o, n.o).write(Operand::lse, 2 * n.rows);  // line 2: O = 0, l = 0, m = -inf
  c.read(Operand::k, n.k).read(Operand::v, n.v);             // line 6
  c.read(Operand::q, rows * d).read(Operand::o, rows * d_v).read(Operand::lse, rows * 2);  // 8
  c.write(Operand::o, rows * d_v).write(Operand::lse, rows * 2);                           // 12, 13
}

// Algorithm 4 and its block-sparse form.
void flash_backward(const Problem& p, const Sizes& n, double rows, Counter& c) {
  const auto d = static_cast<double>(p.head_dim);
  const auto d_v = static_cast<double>(p.head_dim_v);
  c.write(Operand::dq, n.q).write(Operand::dk, n.k).write(Operand::dv, n.v);  // line 5: zeros
  c.read(Operand::k, n.k).read(Operand::v, n.v);                              // line 7
  c.read(Operand::q, rows * d).read(Operand::o, rows * d_v).read(Operand::d_o, rows * d_v);  // 10
  c.read(Operand::dq, rows * d).read(Operand::lse, rows * 2);                                // 10
  c.write(Operand::dq, rows * d);                                                            // 21
  c.write(Operand::dk, n.k).write(Operand::dv, n.v);                                         // 24
}

// FlashAttention-2, algorithm 1. keys: of all tiles visited.
void flash_2_forward(const Problem& p, const Sizes& n, double keys, Counter& c) {
  c.read(Operand::q, n.q);                                       // line 4
  c.read(Operand::k, keys * static_cast<double>(p.head_dim));    // line 7
  c.read(Operand::v, keys * static_cast<double>(p.head_dim_v));  // line 7
  c.write(Operand::o, n.o).write(Operand::lse, n.rows);          // lines 14, 15
}

// FlashAttention-2, algorithm 2. With D there is no need of O in the loop.
void flash_2_backward(const Problem& p, const Sizes& n, double rows, Counter& c) {
  const auto d = static_cast<double>(p.head_dim);
  const auto d_v = static_cast<double>(p.head_dim_v);
  c.write(Operand::dq, n.q);                                                  // zeros
  c.read(Operand::d_o, n.o).read(Operand::o, n.o).write(Operand::d, n.rows);  // D
  c.read(Operand::k, n.k).read(Operand::v, n.v);
  c.read(Operand::q, rows * d).read(Operand::d_o, rows * d_v).read(Operand::dq, rows * d);
  c.read(Operand::lse, rows).read(Operand::d, rows).write(Operand::dq, rows * d);
  c.write(Operand::dk, n.k).write(Operand::dv, n.v);
}

[[noreturn]] void refuse(Algorithm algorithm) {
  throw Error(ErrorCode::unsupported,
              "algorithm " + std::string(name(algorithm)) +
                  " has no model of bytes; accepted are standard, flash_attention, "
                  "flash_attention_2 and block_sparse");
}

}  // namespace

bool is_modelled(Algorithm algorithm) {
  switch (algorithm) {
    case Algorithm::standard:
    case Algorithm::flash_attention:
    case Algorithm::flash_attention_2:
    case Algorithm::block_sparse:
      return true;
    case Algorithm::automatic:
    case Algorithm::flash_decoding:
    case Algorithm::memory_efficient:
      break;
  }
  return false;
}

void refuse_key_lists(const Problem& problem) {
  if (problem.key_list == 0) return;
  throw Error(ErrorCode::unsupported, "key_list is " + std::to_string(problem.key_list) +
                                          "; accepted where bytes are counted is 0, no lists");
}

Traffic model(const Problem& p, Phase phase, Algorithm algorithm, const Blocks& blocks) {
  refuse_key_lists(p);
  if (!is_modelled(algorithm)) refuse(algorithm);
  const bool forward = phase == Phase::forward;
  const Sizes n(p);
  Counter c(p);
  if (algorithm == Algorithm::standard) {
    forward ? standard_forward(n, c) : standard_backward(n, c);
    return c.traffic();
  }
  const TileSums sums = tile_sums(p, algorithm, blocks);
  if (algorithm == Algorithm::flash_attention_2) {
    forward ? flash_2_forward(p, n, sums.keys, c) : flash_2_backward(p, n, sums.rows, c);
  } else {
    forward ? flash_forward(p, n, sums.rows, c) : flash_backward(p, n, sums.rows, c);
  }
  return c.traffic();
}

Traffic compulsory(const Problem& p, Phase phase) {
  const Sizes n(p);
  const double share = static_cast<double>(p.heads_k) / static_cast<double>(p.heads_q);
  Counter c(p);
  c.read(Operand::q, n.q).read(Operand::k, n.k * share).read(Operand::v, n.v * share);
  if (phase == Phase::forward) {
    c.write(Operand::o, n.o).write(Operand::lse, n.rows);
  } else {
    c.read(Operand::o, n.o).read(Operand::d_o, n.o).read(Operand::lse, n.rows);
    c.write(Operand::dq, n.q).write(Operand::dk, n.k * share).write(Operand::dv, n.v * share);
  }
  return c.traffic();
}

double model_flops(const Problem& p, Phase phase, Algorithm algorithm, const Blocks& blocks) {
  if (!is_modelled(algorithm)) refuse(algorithm);
  const auto d = static_cast<double>(p.head_dim);
  const auto d_v = static_cast<double>(p.head_dim_v);
  const double elements = tile_sums(p, algorithm, blocks).elements;
  if (phase == Phase::forward) return elements * 2 * (d + d_v);
  return elements * 2 * ((algorithm == Algorithm::standard ? 2 : 3) * d + 2 * d_v);
}

}  // namespace attn::traffic
