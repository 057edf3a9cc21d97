// to_string(Problem): the text form, with the shorthands recognised in the expression trees.
#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <iterator>

#include "core/expr/build.hpp"
#include "core/text/shorthands.hpp"
#include "core/text/token.hpp"

namespace attn {
namespace core {
namespace {

using expr::Expr;
using expr::Op;
using Buffers = std::vector<std::shared_ptr<const expr::Buffer>>;

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

// The token of the shorthand that gives exactly this tree, of a score the outermost one, which is
// applied to `inner`; empty when none does.
std::string shorthand_token(const Problem& problem, const Expr& e, bool is_score, Expr& inner) {
  Candidate candidate(problem, e);
  for (const Shorthand& row : shorthands()) {
    if (row.is_score != is_score) continue;
    if (const auto value = row.print(candidate, row.alignment)) {
      inner = candidate.inner();
      return fmt::format("{}{}", row.name, *value);
    }
  }
  return {};
}
std::string mask_shorthand(const Problem& problem, const Expr& e) {
  Expr none;
  return shorthand_token(problem, e, false, none);
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
    std::string token = shorthand_token(problem, rest, true, inner);
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
  if (problem.seqlen_prefix != 0) put("sp", problem.seqlen_prefix);
  put_pair("h", "hq", problem.heads_q, "hk", problem.heads_k);
  put_pair("d", "d", problem.head_dim, "dv", problem.head_dim_v);

  std::ranges::move(core::expression_tokens(problem, tokens), std::back_inserter(tokens));

  const bool packed_q = problem.layout_q == Layout::packed;
  const bool packed_k = problem.layout_k == Layout::packed;
  if (packed_q || packed_k) put(packed_q && packed_k ? "packed" : packed_q ? "packedq" : "packedk");
  if (problem.layout_k == Layout::paged) put("paged", problem.page_size);
  if (problem.paged_prefix) put("pagedprefix");
  const auto put_type = [&](std::string_view token, CacheType type) {
    if (type != CacheType::as_q) tokens.push_back(fmt::format("{}({})", token, name(type)));
  };
  if (problem.type_o.given()) tokens.push_back(fmt::format("o({})", name(problem.type_o)));
  put_type("q", problem.type_q);
  if (problem.type_k == problem.type_v) {
    put_type("kv", problem.type_k);
  } else {
    put_type("k", problem.type_k);
    put_type("v", problem.type_v);
  }
  if (problem.key_list != 0) put("list", problem.key_list);
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
