#include "attention.hpp"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>
#include <vector>

#include "mask_rows.hpp"
#include "mask_sequences.hpp"

namespace attn_ggml {
namespace {

using attn::Tensor;
using attn::expr::Buffer;
using attn::expr::Expr;

// The symbol's place in a dimension of the mask, of which the tensor has `size` and the problem
// `all`. A dimension of size 1 accepts any index.
Expr place(const Expr& symbol, std::int64_t size, std::int64_t all) {
  return size == 1 || size == all ? symbol : symbol % Expr(size);
}

std::vector<float> slopes(float max_bias, std::int64_t heads) {
  std::int64_t n = 1;
  while (2 * n <= heads) n *= 2;
  std::vector<float> result;
  for (std::int64_t h = 0; h < heads; ++h) {
    const auto part = h < n ? static_cast<float>(h + 1) / static_cast<float>(n)
                            : static_cast<float>(2 * (h - n) + 1) / static_cast<float>(2 * n);
    result.push_back(std::exp2(-max_bias * part));
  }
  return result;
}

// Rows that see keys which lie apart: packed sequences over a cache whose pages are its keys.
bool run_sequences(const Attention& a, attn::Problem problem, const attn::Context& context) {
  if (a.q.shape[0] != 1 || a.mask.shape[0] != 1 || a.mask.shape[1] != 1) return false;
  const auto sequences = read_sequences(a.mask);
  if (!sequences) return false;
  const auto packed = [](Tensor t) {  // [1, rows, heads, dim] as [rows, heads, dim]
    t.rank = 3;
    std::copy(t.shape.begin() + 1, t.shape.end(), t.shape.begin());
    std::copy(t.strides.begin() + 1, t.strides.end(), t.strides.begin());
    return t;
  };
  const auto paged = [](Tensor t) {  // [1, keys, heads, dim] as [keys, 1, heads, dim]
    std::swap(t.shape[0], t.shape[1]);
    t.strides[0] = t.strides[1];
    return t;
  };
  const auto count = static_cast<std::int64_t>(sequences->lengths.size());
  problem.seqlen_q = a.q.shape[1];
  problem.layout_q = attn::Layout::packed;
  problem.layout_k = attn::Layout::paged;
  problem.mask = attn::causal();
  attn::Inputs inputs{.q = packed(a.q), .k = paged(a.k), .v = paged(a.v), .sink = a.sink};
  inputs.cu_seqlens_q = attn::tensor(sequences->starts.data(), {count + 1});
  inputs.seqused_k = attn::tensor(sequences->lengths.data(), {count});
  inputs.page_table = attn::tensor(sequences->keys.data(), {count, sequences->width});
  attn::forward(problem, inputs, {.o = packed(a.o)}, {}, context);
  return true;
}

// What of a problem follows from the mask: the expressions, and the arrays that they read.
class Masked {
 public:
  Masked(const Attention& a, MaskRows rows, attn::Problem& problem, attn::Inputs& inputs)
      : rows_(std::move(rows)),
        batch_(place(attn::expr::symbols().batch, a.mask.shape[0], a.q.shape[0])),
        head_(place(attn::expr::symbols().head, a.mask.shape[1], a.q.shape[2])) {
    const auto& s = attn::expr::symbols();
    bound(a, problem);
    // The lengths of attn are those of its batch, of which the mask may have fewer.
    for (std::int64_t b = 0; b < a.q.shape[0]; ++b) {
      lengths_.push_back(rows_.length[static_cast<std::size_t>(b % a.mask.shape[0])]);
    }
    inputs.seqused_k = attn::tensor(lengths_.data(), {a.q.shape[0]});
    if (rows_.bounds_alone) return;
    Expr bias = Buffer("mask", a.mask)({batch_, head_, s.query, s.key});
    if (a.max_bias > 0) {
      slopes_ = slopes(a.max_bias, a.q.shape[2]);
      bias = Buffer("slopes", attn::tensor(slopes_.data(), {a.q.shape[2]}))[s.head] * bias;
    }
    problem.score = attn::compose(s.score + bias, problem.score);
  }

 private:
  void bound(const Attention& a, attn::Problem& problem) {
    const auto& s = attn::expr::symbols();
    if (rows_.from_first_key && rows_.to_length) return;
    if (rows_.causal) {
      problem.mask = attn::causal();
      return;
    }
    const auto bounds = [&](const char* name, const std::vector<std::int32_t>& of) {
      const auto& shape = a.mask.shape;
      const Buffer buffer(name, attn::tensor(of.data(), {shape[0], shape[1], shape[2]}));
      return buffer({batch_, head_, s.query});
    };
    problem.mask = s.key < bounds("end", rows_.end);
    if (!rows_.from_first_key) {
      problem.mask = s.key >= bounds("first", rows_.first) && problem.mask;
    }
  }

  MaskRows rows_;
  Expr batch_, head_;
  std::vector<std::int32_t> lengths_;
  std::vector<float> slopes_;
};

}  // namespace

void run(const Attention& a, const attn::Context& context) {
  attn::Problem problem{
      .type_k = a.type_k, .type_v = a.type_v, .softmax_scale = a.scale, .sink = a.sink.given()};
  attn::Inputs inputs{.q = a.q, .k = a.k, .v = a.v, .sink = a.sink};
  if (a.softcap > 0) problem.score = attn::softcap(a.softcap);
  std::optional<Masked> masked;
  if (a.mask.given()) {
    MaskRows rows = read_mask(a.mask);
    if (!rows.bounds_alone && run_sequences(a, problem, context)) return;
    masked.emplace(a, std::move(rows), problem, inputs);
  }
  attn::forward(problem, inputs, {.o = a.o}, {}, context);
}

}  // namespace attn_ggml
