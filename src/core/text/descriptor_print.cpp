// to_string(Problem): the text form, with the shorthands recognised in the expression trees.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <iterator>

#include "core/expr/build.hpp"
#include "core/text/descriptor.hpp"

namespace attn {
namespace core {
namespace {

// Places at which a query may stand.
std::int64_t rows(const Problem& problem, Alignment alignment) {
  return alignment == Alignment::top_left ? problem.seqlen_q : problem.seqlen_k;
}

}  // namespace

Tensor shape_only(DType dtype, const std::vector<std::int64_t>& shape) {
  Tensor out;
  out.dtype = dtype;
  out.rank = static_cast<std::int32_t>(shape.size());
  std::int64_t stride = 1;
  for (std::size_t axis = shape.size(); axis-- > 0;) {
    out.shape[axis] = shape[axis];
    out.strides[axis] = stride;
    stride *= shape[axis];
  }
  return out;
}

std::vector<std::int64_t> shape_of(const Tensor& tensor) {
  return {tensor.shape.begin(), tensor.shape.begin() + tensor.rank};
}

std::string shape_text(const std::vector<std::int64_t>& shape) {
  return fmt::format("{}", fmt::join(shape, "x"));
}

std::vector<std::int64_t> default_slopes_shape(const Problem& problem) { return {problem.heads_q}; }
std::vector<std::int64_t> default_bias_shape(const Problem& problem, Alignment alignment) {
  return {1, problem.heads_q, rows(problem, alignment), problem.seqlen_k};
}
std::vector<std::int64_t> default_ids_shape(const Problem& problem, Alignment alignment) {
  return {problem.batch, std::max(rows(problem, alignment), problem.seqlen_k)};
}
BlockMask default_butterfly(const Problem& problem, std::int32_t block, Alignment alignment) {
  return BlockMask::butterfly(rows(problem, alignment), problem.seqlen_k, block);
}

std::string numbered(std::string_view name, int n) {
  return fmt::format("{}{}", name, n > 1 ? fmt::format("{}", n) : "");
}

expr::Expr rename_buffer(const expr::Expr& e, std::string_view from, const std::string& to) {
  const expr::Node& node = e.node();
  if (node.args.empty() || from == to) return e;
  std::vector<expr::Expr> args;
  for (const expr::Expr& arg : node.args) args.push_back(rename_buffer(arg, from, to));
  if (node.op != expr::Op::load || node.buffer->name() != from) return expr::rebuild(e, args);
  // The buffer before keeps the memory.
  return expr::load(std::make_shared<const expr::Buffer>(to, node.buffer->tensor(), node.buffer),
                    args);
}

namespace {

using expr::Expr;
using expr::Node;
using expr::Op;
using Buffers = std::vector<std::shared_ptr<const expr::Buffer>>;

// Every constant of the tree is a candidate for a parameter of a shorthand, negated too.
void constants(const Expr& e, std::vector<std::int32_t>& ints, std::vector<float>& floats) {
  const Node& node = e.node();
  if (node.op == Op::constant && node.type == expr::Type::int32) {
    const auto negated = static_cast<std::int32_t>(0u - static_cast<std::uint32_t>(node.int_value));
    ints.insert(ints.end(), {node.int_value, negated});
  }
  if (node.op == Op::constant && node.type == expr::Type::float32) {
    floats.push_back(node.float_value);
  }
  for (const Expr& argument : node.args) constants(argument, ints, floats);
}

bool same_shape(const Tensor& tensor, DType dtype, const std::vector<std::int64_t>& shape) {
  return tensor.dtype == dtype && shape_of(tensor) == shape;
}

std::string without_spaces(std::string text) {
  std::erase(text, ' ');
  return text;
}

std::string generic_token(std::string_view name, const Expr& e, Buffers& buffers) {
  for (const auto& buffer : expr::buffers(e)) {
    const auto known = [&](const auto& other) { return other->name() == buffer->name(); };
    if (std::none_of(buffers.begin(), buffers.end(), known)) buffers.push_back(buffer);
  }
  return fmt::format("{}({})", name, without_spaces(expr::to_string(e)));
}

constexpr Alignment kAlignments[] = {Alignment::bottom_right, Alignment::top_left};

// A shorthand's name says its alignment where it is not the usual one.
std::string aligned(std::string_view name, Alignment alignment) {
  return fmt::format("{}{}", name, alignment == Alignment::top_left ? "tl" : "");
}

std::string documents_token(const Problem& problem, const Expr& e) {
  const Buffers ids = expr::buffers(e);
  if (ids.empty() || ids.size() > 2) return {};
  std::string shapes;
  for (const auto& buffer : ids) {
    const Tensor& tensor = buffer->tensor();
    if (tensor.dtype != DType::i32 || tensor.rank < 1 || tensor.rank > 2) return {};
    shapes += (&buffer == &ids[0] ? "" : ",") + shape_text(shape_of(tensor));
  }
  const Tensor& first = ids[0]->tensor();
  if (ids.size() == 2) {
    Expr candidate = documents(first, ids[1]->tensor());
    candidate = rename_buffer(candidate, "ids_q", ids[0]->name());
    candidate = rename_buffer(candidate, "ids_k", ids[1]->name());
    return expr::same(e, candidate) ? "documents" + shapes : "";
  }
  for (const Alignment alignment : kAlignments) {
    if (!expr::same(e, rename_buffer(documents(first, alignment), "ids", ids[0]->name()))) continue;
    const bool is_default = shape_of(first) == default_ids_shape(problem, alignment);
    return aligned("documents", alignment) + (is_default ? "" : shapes);
  }
  return {};
}

std::string butterfly_token(const Problem& problem, const Expr& e,
                            const std::vector<std::int32_t>& blocks) {
  const Buffers bytes = expr::buffers(e);
  if (bytes.size() != 1 || problem.seqlen_q == 0 || problem.seqlen_k == 0) return {};
  const Tensor& tensor = bytes[0]->tensor();
  if (tensor.dtype != DType::u8 || tensor.rank != 2 || tensor.data == nullptr ||
      !tensor.contiguous()) {
    return {};
  }
  for (const std::int32_t block : blocks) {
    if (block < 1) continue;
    for (const Alignment alignment : kAlignments) {
      const auto blocks = [&](std::int64_t size) { return size / block + (size % block != 0); };
      if (tensor.shape[0] != blocks(rows(problem, alignment)) ||
          tensor.shape[1] != blocks(problem.seqlen_k)) {
        continue;  // told before the candidate's bytes are made
      }
      const Expr candidate = default_butterfly(problem, block, alignment).mask(alignment);
      if (!expr::same(e, rename_buffer(candidate, "block_mask", bytes[0]->name()))) continue;
      const auto* got = static_cast<const std::uint8_t*>(tensor.data);
      const auto* expected =
          static_cast<const std::uint8_t*>(expr::buffers(candidate)[0]->tensor().data);
      if (std::equal(got, got + tensor.size(), expected)) {
        return fmt::format("{}{}", aligned("butterfly", alignment), block);
      }
    }
  }
  return {};
}

// The token of the shorthand that gives exactly this tree; empty when none does.
std::string mask_shorthand(const Problem& problem, const Expr& e) {
  std::vector<std::int32_t> ints{-1, 0, 1};  // what a tree may have folded away, too
  std::vector<float> floats;
  constants(e, ints, floats);
  if (ints.size() > 16) return {};  // no shorthand has that many
  for (const Alignment alignment : kAlignments) {
    if (expr::same(e, causal(alignment))) return aligned("causal", alignment);
    for (const std::int32_t left : ints) {
      if (left >= 0 && expr::same(e, prefix(left, alignment))) {
        return fmt::format("{}{}", aligned("prefix", alignment), left);
      }
      for (const std::int32_t right : ints) {
        if (left < -1 || right < -1 || (left < 0 && right < 0)) continue;
        if (expr::same(e, window(left, right, alignment))) {
          return fmt::format("{}{}x{}", aligned("window", alignment), left, right);
        }
      }
    }
  }
  const std::string token = documents_token(problem, e);
  return token.empty() ? butterfly_token(problem, e, ints) : token;
}

// Conjunctions as parse_problem() builds them: a && b && c is (a && b) && c.
void collect_mask(const Problem& problem, const Expr& e, Buffers& buffers,
                  std::vector<std::string>& tokens, bool& shorthand_found) {
  const std::string token = mask_shorthand(problem, e);
  if (!token.empty()) {
    shorthand_found = true;
    tokens.push_back(token);
  } else if (e.node().op == Op::logical_and) {
    collect_mask(problem, e.node().args[0], buffers, tokens, shorthand_found);
    const Expr& right = e.node().args[1];
    const std::string last = mask_shorthand(problem, right);
    shorthand_found = shorthand_found || !last.empty();
    tokens.push_back(last.empty() ? generic_token("mask", right, buffers) : last);
  } else {
    tokens.push_back(generic_token("mask", e, buffers));
  }
}

// Whether `e` is `pattern` with something in the place of score, which goes to `inner`.
bool matches(const Expr& pattern, const Expr& e, Expr& inner) {
  const Node& a = pattern.node();
  const Node& b = e.node();
  if (a.op == Op::score) {
    inner = e;
    return true;
  }
  if (a.args.empty() || a.op == Op::load) return expr::same(pattern, e);
  if (a.op != b.op || a.args.size() != b.args.size()) return false;
  for (std::size_t i = 0; i < a.args.size(); ++i) {
    if (!matches(a.args[i], b.args[i], inner)) return false;
  }
  return true;
}

// The token of the outermost shorthand of a score; `inner` is what it is applied to.
std::string score_shorthand(const Problem& problem, const Expr& e, Expr& inner) {
  std::vector<std::int32_t> ints;
  std::vector<float> floats;
  constants(e, ints, floats);
  for (const float cap : floats) {
    if (cap > 0 && std::isfinite(cap) && matches(softcap(cap), e, inner))
      return fmt::format("softcap{}", cap);
  }
  for (const auto& buffer : expr::buffers(e)) {
    const Tensor& tensor = buffer->tensor();
    const bool is_slopes =
        same_shape(tensor, DType::f32, default_slopes_shape(problem)) && problem.heads_q != 0;
    const bool floating =
        tensor.dtype == DType::f32 || tensor.dtype == DType::bf16 || tensor.dtype == DType::f16;
    const bool is_bias = floating && (tensor.rank == 2 || tensor.rank == 4);
    for (const Alignment alignment : kAlignments) {
      if (is_slopes &&
          matches(rename_buffer(alibi(tensor, alignment), "slopes", buffer->name()), e, inner)) {
        return aligned("alibi", alignment);
      }
      if (is_bias &&
          matches(rename_buffer(bias(tensor, alignment), "bias", buffer->name()), e, inner)) {
        const bool is_default = shape_of(tensor) == default_bias_shape(problem, alignment);
        return fmt::format("{}{}{}", alignment == Alignment::top_left ? "bias" : "biasbr",
                           is_default ? "" : shape_text(shape_of(tensor)),
                           tensor.dtype == DType::f32 ? "" : name(tensor.dtype));
      }
    }
  }
  return {};
}

std::vector<std::string> mask_tokens(const Problem& problem, Buffers& buffers) {
  std::vector<std::string> tokens;
  if (problem.mask.empty()) return tokens;
  Buffers generic_buffers = buffers;
  bool shorthand_found = false;
  collect_mask(problem, problem.mask, generic_buffers, tokens, shorthand_found);
  if (!shorthand_found) return {generic_token("mask", problem.mask, buffers)};
  buffers = generic_buffers;
  return tokens;
}

std::vector<std::string> score_tokens(const Problem& problem, Buffers& buffers) {
  std::vector<std::string> tokens;
  Expr rest = problem.score;
  while (!rest.empty() && (rest.node().op != Op::score || tokens.empty())) {
    Expr inner;
    std::string token = score_shorthand(problem, rest, inner);
    if (token.empty()) {
      token = generic_token("score", rest, buffers);
      inner = Expr();
    }
    tokens.push_back(std::move(token));
    rest = inner;
  }
  std::reverse(tokens.begin(), tokens.end());  // written in the order of application
  return tokens;
}

std::string scalar_token(const expr::Buffer& scalar) {
  const Tensor& number = scalar.tensor();
  if (number.data == nullptr)
    return fmt::format("scalar({}:{})", scalar.name(), name(number.dtype));
  const Expr value = number.dtype == DType::i32
                         ? expr::int32(*static_cast<const std::int32_t*>(number.data))
                         : expr::float32(*static_cast<const float*>(number.data));
  return fmt::format("scalar({}={})", scalar.name(), to_string(value));
}

void add_declarations(const Buffers& buffers, std::vector<std::string>& tokens) {
  for (const auto& buffer : buffers) {
    if (expr::is_scalar(*buffer)) {
      tokens.push_back(scalar_token(*buffer));
      continue;
    }
    tokens.push_back(fmt::format("buffer({}:{}:{})", buffer->name(), name(buffer->tensor().dtype),
                                 shape_text(shape_of(buffer->tensor()))));
  }
}

bool alike(const Expr& a, const Expr& b) {
  return a.empty() || b.empty() ? a.empty() == b.empty() : expr::same(a, b);
}

// Whether parse_problem() makes the same mask and score of the tokens. A shorthand may not: one of
// its buffers may be shared, or have a name of its own.
bool reads_back(const Problem& problem, const std::vector<std::string>& sizes,
                const std::vector<std::string>& tokens) {
  try {
    std::vector<std::string> all{"f32"};
    all.insert(all.end(), sizes.begin(), sizes.end());
    all.insert(all.end(), tokens.begin(), tokens.end());
    const Problem read = parse_problem(fmt::format("{}", fmt::join(all, "_")));
    return alike(read.mask, problem.mask) && alike(read.score, problem.score);
  } catch (const std::exception&) {  // sizes that no problem has, or a shorthand out of its bounds
    return false;
  }
}

// The tokens of mask and score: shorthands where these read back as the same tree, else plain
// expressions.
std::vector<std::string> expression_tokens(const Problem& problem,
                                           const std::vector<std::string>& sizes) {
  if (problem.mask.empty() && problem.score.empty()) return {};
  Buffers buffers;
  std::vector<std::string> tokens = mask_tokens(problem, buffers);
  std::ranges::move(score_tokens(problem, buffers), std::back_inserter(tokens));
  add_declarations(buffers, tokens);
  if (reads_back(problem, sizes, tokens)) return tokens;
  buffers.clear();
  tokens.clear();
  if (!problem.mask.empty()) tokens.push_back(generic_token("mask", problem.mask, buffers));
  if (!problem.score.empty()) tokens.push_back(generic_token("score", problem.score, buffers));
  add_declarations(buffers, tokens);
  return tokens;
}

}  // namespace
}  // namespace core

std::string to_string(const Problem& problem) {
  std::vector<std::string> tokens;
  const auto put = [&tokens](std::string_view token, const auto&... value) {
    tokens.emplace_back(token);
    (tokens.back().append(fmt::format("{}", value)), ...);
  };
  const auto put_pair = [&](std::string_view both, std::string_view first, std::int64_t a,
                            std::string_view second, std::int64_t b) {
    if (a == b && a != 0) put(both, a);
    if (a != b) {
      put(first, a);
      put(second, b);
    }
  };
  if (problem.batch != 0) put("b", problem.batch);
  put_pair("n", "sq", problem.seqlen_q, "sk", problem.seqlen_k);
  put_pair("h", "hq", problem.heads_q, "hk", problem.heads_k);
  put_pair("d", "d", problem.head_dim, "dv", problem.head_dim_v);

  std::ranges::move(core::expression_tokens(problem, tokens), std::back_inserter(tokens));

  const bool packed_q = problem.layout_q == Layout::packed;
  const bool packed_k = problem.layout_k == Layout::packed;
  if (packed_q || packed_k) put(packed_q && packed_k ? "packed" : packed_q ? "packedq" : "packedk");
  if (problem.layout_k == Layout::paged) put("paged", problem.page_size);
  if (problem.sink) put("sink");
  if (problem.dropout.probability != 0) put("dropout", problem.dropout.probability);
  if (problem.dropout.seed != 0) put("seed", problem.dropout.seed);
  if (problem.dropout.offset != 0) put("offset", problem.dropout.offset);
  if (problem.dropout.rng_state) put("rngstate");
  if (problem.softmax_scale) put("scale", *problem.softmax_scale);
  put(name(problem.dtype));
  return fmt::format("{}", fmt::join(tokens, "_"));
}

}  // namespace attn
