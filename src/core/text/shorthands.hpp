// The shorthands of attn/mask.hpp in the text form of problems (docs/descriptors.md): one table, by
// which they are read and printed.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "attn/mask.hpp"
#include "attn/problem.hpp"
#include "core/text/token.hpp"

namespace attn::core {

// e with the buffers called `from` called `to`.
expr::Expr rename_buffer(const expr::Expr& e, std::string_view from, const std::string& to);

// A mask or a score of a problem that may be what a shorthand gives, and what that shorthand's
// parameters may be.
class Candidate {
 public:
  // Keeps a reference to the problem.
  Candidate(const Problem& problem, expr::Expr e);

  const Problem& problem() const { return problem_; }
  // Every constant of the expression, those of integers negated too, as one may be a parameter.
  // There are no integers where there are more than a shorthand has.
  const std::vector<std::int32_t>& ints() const { return ints_; }
  const std::vector<float>& floats() const { return floats_; }
  const std::vector<std::shared_ptr<const expr::Buffer>>& buffers() const { return buffers_; }

  // Whether the expression is `pattern` with anything in the place of the score, which inner() is
  // then. A mask has no such place: it is `pattern`.
  bool is(const expr::Expr& pattern);
  const expr::Expr& inner() const { return inner_; }

 private:
  const Problem& problem_;
  expr::Expr e_, inner_;
  std::vector<std::int32_t> ints_;
  std::vector<float> floats_;
  std::vector<std::shared_ptr<const expr::Buffer>> buffers_;
};

// Printing is reading the other way: where print() gives a value, read() of a token with this value
// gives the expression again, but for the names of buffers.
struct Shorthand {
  std::string_view name;  // the letters that its token starts with
  std::string_view form;  // of the token, for refusals: the name, then the value
  bool is_score;          // else it is a mask
  Alignment alignment;
  // What the token stands for in a problem of these sizes. Throws Error(invalid_argument) naming
  // the token and what is accepted.
  expr::Expr (*read)(const Token& token, const Problem& sizes, Alignment alignment);
  // What follows the name in the token of an expression; nothing where no token gives it.
  std::optional<std::string> (*print)(Candidate& candidate, Alignment alignment);
};

// An expression is printed by the first row that gives it.
std::span<const Shorthand> shorthands();
const Shorthand* find_shorthand(std::string_view name);  // null where there is none

}  // namespace attn::core
