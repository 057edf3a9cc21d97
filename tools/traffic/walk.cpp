#include "traffic/walk.hpp"

#include <algorithm>
#include <string>

#include "attn/error.hpp"
#include "traffic/model.hpp"

namespace attn::traffic {
namespace {

struct Range {
  std::int64_t first = 0, count = 0;
};

class Walk {
 public:
  Walk(const Problem& p, Algorithm algorithm, const Blocks& blocks, std::int64_t batch,
       std::int64_t head, Visitor& visitor)
      : p_(p),
        algorithm_(algorithm),
        blocks_(blocks),
        batch_(batch),
        head_(head),
        visitor_(visitor) {}

  void standard_forward() {
    for_each_k([&](Range j) {  // S = Q K^T
      for_each_q([&](Range i) {
        load(Operand::k, j);
        load(Operand::q, i);
        store(Operand::s, i, j);
      });
    });
    visitor_.end_step();
    for_each_q([&](Range i) {  // P = softmax(S), whole rows
      load(Operand::s, i, keys());
      store(Operand::p, i, keys());
    });
    visitor_.end_step();
    for_each_q([&](Range i) {  // O = P V
      for_each_k([&](Range j) {
        load(Operand::p, i, j);
        load(Operand::v, j);
        scratch(i.count * p_.head_dim_v);
      });
      store(Operand::o, i);
    });
    visitor_.end_step();
  }

  void standard_backward() {
    for_each_k([&](Range j) {  // dV = P^T dO
      for_each_q([&](Range i) {
        load(Operand::p, i, j);
        load(Operand::d_o, i);
        scratch(j.count * p_.head_dim_v);
      });
      store(Operand::dv, j);
    });
    visitor_.end_step();
    for_each_k([&](Range j) {  // dP = dO V^T
      for_each_q([&](Range i) {
        load(Operand::v, j);
        load(Operand::d_o, i);
        store(Operand::dp, i, j);
      });
    });
    visitor_.end_step();
    for_each_q([&](Range i) {  // dS = P (dP - rowsum(P dP)), whole rows
      load(Operand::p, i, keys());
      load(Operand::dp, i, keys());
      store(Operand::ds, i, keys());
    });
    visitor_.end_step();
    for_each_q([&](Range i) {  // dQ = dS K
      for_each_k([&](Range j) {
        load(Operand::ds, i, j);
        load(Operand::k, j);
        scratch(i.count * p_.head_dim);
      });
      store(Operand::dq, i);
    });
    visitor_.end_step();
    for_each_k([&](Range j) {  // dK = dS^T Q
      for_each_q([&](Range i) {
        load(Operand::ds, i, j);
        load(Operand::q, i);
        scratch(j.count * p_.head_dim);
      });
      store(Operand::dk, j);
    });
    visitor_.end_step();
  }

  // FlashAttention, algorithm 1; block-sparse: algorithm 5.
  void flash_forward() {
    store(Operand::o, queries());
    store(Operand::lse, queries());
    for_each_k([&](Range j) {
      load(Operand::k, j);
      load(Operand::v, j);
      for_each_q([&](Range i) {
        if (!visits(i, j)) return;
        load(Operand::q, i);
        load(Operand::o, i);
        load(Operand::lse, i);
        again(Operand::k, j);
        again(Operand::v, j);
        scratch(i.count * j.count);
        store(Operand::o, i);
        store(Operand::lse, i);
      });
    });
    visitor_.end_step();
  }

  // Algorithm 4.
  void flash_backward() {
    store(Operand::dq, queries());
    store(Operand::dk, keys());
    store(Operand::dv, keys());
    for_each_k([&](Range j) {
      load(Operand::k, j);
      load(Operand::v, j);
      for_each_q([&](Range i) {
        if (!visits(i, j)) return;
        for (const Operand operand :
             {Operand::q, Operand::o, Operand::d_o, Operand::dq, Operand::lse}) {
          load(operand, i);
        }
        again(Operand::k, j);
        again(Operand::v, j);
        gradient_scratch(i, j);
        store(Operand::dq, i);
      });
      store(Operand::dk, j);
      store(Operand::dv, j);
    });
    visitor_.end_step();
  }

  // FlashAttention-2, algorithm 1.
  void flash_2_forward() {
    for_each_q([&](Range i) {
      load(Operand::q, i);
      for_each_k([&](Range j) {
        if (!visits(i, j)) return;
        load(Operand::k, j);
        load(Operand::v, j);
        again(Operand::q, i);
        scratch(i.count * (j.count + p_.head_dim_v + 2));
      });
      store(Operand::o, i);
      store(Operand::lse, i, {0, 1});
    });
    visitor_.end_step();
  }

  // FlashAttention-2, algorithm 2.
  void flash_2_backward() {
    store(Operand::dq, queries());
    for_each_q([&](Range i) {
      load(Operand::d_o, i);
      load(Operand::o, i);
      store(Operand::d, i);
    });
    visitor_.end_step();
    for_each_k([&](Range j) {
      load(Operand::k, j);
      load(Operand::v, j);
      for_each_q([&](Range i) {
        if (!visits(i, j)) return;
        for (const Operand operand : {Operand::q, Operand::d_o, Operand::dq}) load(operand, i);
        load(Operand::lse, i, {0, 1});
        load(Operand::d, i);
        again(Operand::k, j);
        again(Operand::v, j);
        gradient_scratch(i, j);
        store(Operand::dq, i);
      });
      store(Operand::dk, j);
      store(Operand::dv, j);
    });
    visitor_.end_step();
  }

 private:
  Range queries() const { return {0, p_.seqlen_q}; }
  Range keys() const { return {0, p_.seqlen_k}; }
  bool visits(Range i, Range j) const {
    return !skips_empty_tiles(algorithm_) ||
           visible(p_, batch_, head_, i.first, i.count, j.first, j.count);
  }

  template <class Visit>
  void for_each_q(const Visit& visit) const {
    for (std::int64_t i = 0; i < p_.seqlen_q; i += blocks_.q) {
      visit(Range{i, std::min(blocks_.q, p_.seqlen_q - i)});
    }
  }
  template <class Visit>
  void for_each_k(const Visit& visit) const {
    for (std::int64_t j = 0; j < p_.seqlen_k; j += blocks_.k) {
      visit(Range{j, std::min(blocks_.k, p_.seqlen_k - j)});
    }
  }

  Range all_columns(Operand operand) const { return {0, extent(p_, operand, blocks_).columns}; }
  void load(Operand operand, Range rows) { load(operand, rows, all_columns(operand)); }
  void store(Operand operand, Range rows) { store(operand, rows, all_columns(operand)); }
  void load(Operand operand, Range rows, Range columns) {
    visitor_.access({operand, rows.first, rows.count, columns.first, columns.count, Use::load});
  }
  void store(Operand operand, Range rows, Range columns) {
    visitor_.access({operand, rows.first, rows.count, columns.first, columns.count, Use::store});
  }
  void again(Operand operand, Range rows) {
    const Range columns = all_columns(operand);
    visitor_.access({operand, rows.first, rows.count, columns.first, columns.count, Use::again});
  }
  // The first `elements` of the scratch, written.
  void scratch(std::int64_t elements) { store(Operand::scratch, {0, 1}, {0, elements}); }
  // P and dS, and the sums of dK and dV.
  void gradient_scratch(Range i, Range j) {
    scratch(j.count * (2 * i.count + p_.head_dim + p_.head_dim_v));
  }

  const Problem& p_;
  Algorithm algorithm_;
  Blocks blocks_;
  std::int64_t batch_, head_;
  Visitor& visitor_;
};

}  // namespace

Extent extent(const Problem& p, Operand operand, const Blocks& blocks) {
  switch (operand) {
    case Operand::q:
    case Operand::dq:
      return {p.seqlen_q, p.head_dim};
    case Operand::o:
    case Operand::d_o:
      return {p.seqlen_q, p.head_dim_v};
    case Operand::k:
    case Operand::dk:
      return {p.seqlen_k, p.head_dim};
    case Operand::v:
    case Operand::dv:
      return {p.seqlen_k, p.head_dim_v};
    case Operand::lse:
      return {p.seqlen_q, 2};  // l and m; LSE is the first column
    case Operand::d:
      return {p.seqlen_q, 1};
    case Operand::s:
    case Operand::p:
    case Operand::dp:
    case Operand::ds:
      return {p.seqlen_q, p.seqlen_k};
    case Operand::packed:
    case Operand::partial:
      return {0, 0};  // of plans only
    case Operand::scratch:
      break;
  }
  return {1, std::max(blocks.k * (2 * blocks.q + p.head_dim + p.head_dim_v),
                      blocks.q * (blocks.k + p.head_dim + p.head_dim_v + 2))};
}

void walk(const Problem& problem, Phase phase, Algorithm algorithm, const Blocks& blocks,
          std::int64_t batch, std::int64_t head, Visitor& visitor) {
  Walk walk(problem, algorithm, blocks, batch, head, visitor);
  const bool forward = phase == Phase::forward;
  switch (algorithm) {
    case Algorithm::standard:
      return forward ? walk.standard_forward() : walk.standard_backward();
    case Algorithm::flash_attention:
    case Algorithm::block_sparse:
      return forward ? walk.flash_forward() : walk.flash_backward();
    case Algorithm::flash_attention_2:
      return forward ? walk.flash_2_forward() : walk.flash_2_backward();
    case Algorithm::automatic:
    case Algorithm::flash_decoding:
    case Algorithm::memory_efficient:
      break;
  }
  throw Error(ErrorCode::unsupported, "algorithm " + std::string(name(algorithm)) +
                                          " has no sequence of loads and stores here; accepted "
                                          "are standard, flash_attention, flash_attention_2 and "
                                          "block_sparse");
}

}  // namespace attn::traffic
