#include "core/expr/build.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>

#include "attn/error.hpp"
#include "core/expr/scalar.hpp"

namespace attn::core::expr {
namespace {

constexpr std::array<std::string_view, 33> kSpelling = {
    "",     "score", "query",    "key", "batch", "head", "seqlen_q", "seqlen_k", "",    "-",  "!",
    "abs",  "exp",   "log",      "tanh", "sqrt", "to_float", "+",    "-",        "*",   "/",  "%",
    "min",  "max",   "<",        "<=",  "==",    "!=",   "&&",       "||",       "select"};

}  // namespace
}  // namespace attn::core::expr
