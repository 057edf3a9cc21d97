#include "verify/case.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "attn/error.hpp"
#include "core/cache_type.hpp"
#include "core/text/echo.hpp"

namespace attn::verify {
namespace {

struct Flag {
  std::string_view name;
  bool Hints::*field;
};
constexpr Flag kFlags[] = {
    {"strided", &Hints::strided},
    {"loose", &Hints::loose},
    {"headmajor", &Hints::headmajor},
    {"dotransposed", &Hints::dotransposed},
    {"bcastq", &Hints::broadcast_q},
    {"bcastk", &Hints::broadcast_k},
    {"bcastv", &Hints::broadcast_v},
    {"bcastdo", &Hints::broadcast_do},
    {"vink", &Hints::v_in_k},
    {"padded", &Hints::padded},
    {"far", &Hints::far},
    {"negative", &Hints::negative},
    {"identity", &Hints::identity},
    {"select", &Hints::select},
    {"nolse", &Hints::nolse},
    {"dlse", &Hints::dlse},
    {"maxlogit", &Hints::maxlogit},
    {"headscales", &Hints::headscales},
    {"i64", &Hints::i64},
    {"nodq", &Hints::nodq},
    {"nodk", &Hints::nodk},
    {"nodv", &Hints::nodv},
};
struct Lengths {
  std::string_view name;
  std::vector<std::int32_t> Hints::*field;
};
constexpr Lengths kLengths[] = {{"cuq", &Hints::cu_q},
                                {"cuk", &Hints::cu_k},
                                {"usedq", &Hints::used_q},
                                {"usedk", &Hints::used_k}};
struct Factor {
  std::string_view name;
  double Hints::*field;
};
constexpr Factor kFactors[] = {{"q", &Hints::q_factor}, {"k", &Hints::k_factor}};

[[noreturn]] void refuse(std::string_view token) {
  std::string flags;
  for (const Flag& flag : kFlags) flags += fmt::format("{} ", flag.name);
  throw Error(ErrorCode::invalid_argument,
              fmt::format("hint '{}' of a case is not known; accepted are {}q<x> k<x> and "
                          "cuq|cuk|usedq|usedk<n,n,...>",
                          core::echo(token), flags));
}

template <class T>
T number(std::string_view text, std::string_view token) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) refuse(token);
  return value;
}

void read_hint(std::string_view token, Hints& hints) {
  for (const Flag& flag : kFlags) {
    if (token == flag.name) {
      hints.*flag.field = true;
      return;
    }
  }
  for (const Lengths& lengths : kLengths) {
    if (!token.starts_with(lengths.name)) continue;
    std::string_view rest = token.substr(lengths.name.size());
    std::vector<std::int32_t>& to = hints.*lengths.field;
    while (true) {
      const std::size_t comma = rest.find(',');
      to.push_back(number<std::int32_t>(rest.substr(0, comma), token));
      if (comma == std::string_view::npos) return;
      rest.remove_prefix(comma + 1);
    }
  }
  for (const Factor& factor : kFactors) {
    if (!token.starts_with(factor.name)) continue;
    const auto value = number<double>(token.substr(1), token);
    if (!std::isfinite(value)) refuse(token);  // "qnan" is read as a number
    hints.*factor.field = value;
    return;
  }
  refuse(token);
}

// The first '/' outside parentheses, where it would divide.
std::size_t find_separator(std::string_view text) {
  int depth = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '(') ++depth;
    if (text[i] == ')') --depth;
    if (text[i] == '/' && depth == 0) return i;
  }
  return std::string_view::npos;
}

// A problem takes sizes of 0 from its tensors. A case has none, and 1 where no size is given.
void refuse_no_elements(std::string_view problem) {
  for (const std::string_view token : {"b0", "h0", "hq0", "hk0"}) {
    for (std::size_t at = problem.find(token); at != std::string_view::npos;
         at = problem.find(token, at + 1)) {
      const std::size_t end = at + token.size();
      const bool begins = at == 0 || problem[at - 1] == '_';
      const bool ends = end == problem.size() || problem[end] == '_';
      if (!begins || !ends) continue;
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("'{}' in the case '{}' leaves nothing to check; accepted are 1 and "
                              "more, and no token, which means 1",
                              token, core::echo(problem)));
    }
  }
}

}  // namespace

Case parse_case(std::string_view text) {
  const std::size_t separator = find_separator(text);
  refuse_no_elements(text.substr(0, separator));
  Case c{.problem = parse_problem(text.substr(0, separator)), .hints = {}};
  std::string_view rest =
      separator == std::string_view::npos ? std::string_view{} : text.substr(separator + 1);
  while (!rest.empty()) {
    const std::size_t end = std::min(rest.find('_'), rest.size());
    read_hint(rest.substr(0, end), c.hints);
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  for (std::int64_t* size : {&c.problem.batch, &c.problem.heads_q, &c.problem.heads_k}) {
    if (*size == 0) *size = 1;
  }
  if (c.hints.v_in_k && c.problem.head_dim_v > c.problem.head_dim) {
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("hint 'vink' of a case whose V has {} columns and K {}; accepted are at "
                    "most as many",
                    c.problem.head_dim_v, c.problem.head_dim));
  }
  return c;
}

Case at_full_length(Case c) {
  const auto whole = [&](Layout layout, std::int64_t seqlen, std::vector<std::int32_t>& cu,
                         std::vector<std::int32_t>& used) {
    const std::int64_t batch = c.problem.batch;
    if (layout == Layout::packed && cu.empty()) {
      for (std::int64_t b = 0; b <= batch; ++b) cu.push_back(static_cast<std::int32_t>(b * seqlen));
    }
    if (!used.empty() || (layout != Layout::paged && !c.hints.padded)) return;
    used.assign(static_cast<std::size_t>(batch), static_cast<std::int32_t>(seqlen));
    if (cu.size() != used.size() + 1) return;
    for (std::size_t b = 0; b < used.size(); ++b) used[b] = cu[b + 1] - cu[b];
  };
  whole(c.problem.layout_q, c.problem.seqlen_q, c.hints.cu_q, c.hints.used_q);
  whole(c.problem.layout_k, c.problem.seqlen_k, c.hints.cu_k, c.hints.used_k);
  return c;
}

std::string to_string(const Case& c) {
  std::vector<std::string> tokens;
  for (const Flag& flag : kFlags) {
    if (c.hints.*flag.field) tokens.emplace_back(flag.name);
  }
  for (const Factor& factor : kFactors) {
    const double value = c.hints.*factor.field;
    if (value != 1) tokens.push_back(fmt::format("{}{}", factor.name, value));
  }
  for (const Lengths& lengths : kLengths) {
    const std::vector<std::int32_t>& values = c.hints.*lengths.field;
    if (!values.empty())
      tokens.push_back(fmt::format("{}{}", lengths.name, fmt::join(values, ",")));
  }
  const std::string problem = attn::to_string(c.problem);
  return tokens.empty() ? problem : fmt::format("{}/{}", problem, fmt::join(tokens, "_"));
}

bool has_backward(const Problem& p) {
  return p.layout_k != Layout::paged && p.seqlen_prefix == 0 &&
         !(p.key_list > 0 && p.dtype == DType::f64) && !core::has_own_types(p) &&
         !core::has_own_type_q(p) && !core::has_own_type_o(p);
}

std::int64_t scores(const Case& c) {
  return c.problem.batch * c.problem.heads_q * c.problem.seqlen_q *
         (c.problem.seqlen_prefix + c.problem.seqlen_k);
}

}  // namespace attn::verify
