#include "attention.hpp"

#include <cmath>
#include <vector>

#include "mask_rows.hpp"

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

// What of a problem follows from the mask: the expressions, and the arrays that they read.
class Masked {
 public:
  Masked(const Attention& a, attn::Problem& problem, attn::Inputs& inputs)
      : rows_(read_mask(a.mask)),
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
  if (a.mask.given()) masked.emplace(a, problem, inputs);
  attn::forward(problem, inputs, {.o = a.o}, {}, context);
}

}  // namespace attn_ggml
