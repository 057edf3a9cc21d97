// parse_problem: text form -> Problem. Grammar in docs/descriptors.md.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>

#include "attn/error.hpp"
#include "attn/scalar.hpp"
#include "core/expr/grammar.hpp"
#include "core/text/echo.hpp"
#include "core/text/shorthands.hpp"
#include "core/text/token.hpp"

namespace attn {
namespace {

// The longest descriptor that is read: a mask and a score as long as they may be. Longer text is
// refused unread.
constexpr std::size_t kMaxLength = 2 * expr::kMaxText + (1 << 16);

// '_' separates tokens, except inside parentheses.
std::vector<std::string_view> split_tokens(std::string_view text) {
  std::vector<std::string_view> tokens;
  std::size_t begin = 0;
  int depth = 0;
  for (std::size_t i = 0; i <= text.size(); ++i) {
    if (i == text.size() || (text[i] == '_' && depth == 0)) {
      tokens.push_back(text.substr(begin, i - begin));
      begin = i + 1;
    } else if (text[i] == '(') {
      ++depth;
    } else if (text[i] == ')') {
      --depth;
    }
  }
  return tokens;
}

class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  Problem parse() {
    if (text_.size() > kMaxLength) {
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("descriptor has {} characters; at most {} are accepted", text_.size(),
                              kMaxLength));
    }
    const std::vector<std::string_view> tokens = split_tokens(text_);
    // Masks and scores last: their shapes come from the sizes, wherever those stand.
    for (const bool shapes_known : {false, true}) {
      for (const std::string_view token : tokens) {
        take(token);
        if (const core::Shorthand* shorthand = core::find_shorthand(token_.name)) {
          if (shapes_known) add(*shorthand);
        } else if (const Kind& kind = find_kind(); kind.needs_shapes == shapes_known) {
          (this->*kind.read)();
        }
      }
    }
    if (!seen_.contains("dv")) problem_.head_dim_v = problem_.head_dim;
    return problem_;
  }

 private:
  struct Kind {
    std::string_view name;  // the letters that a token of this kind starts with
    std::string_view form;  // for errors
    void (Parser::*read)();
    bool needs_shapes = false;
  };
  static const std::array<Kind, 35>& kinds();

  void take(std::string_view text) {
    const auto is_letter = [](char c) { return c >= 'a' && c <= 'z'; };
    const auto letters =
        static_cast<std::size_t>(std::ranges::find_if_not(text, is_letter) - text.begin());
    std::string_view name = text.substr(0, letters);
    // A dtype may follow at once, as in biasbf16.
    if (name.starts_with("bias")) name = name.starts_with("biasbr") ? "biasbr" : "bias";
    if (name == "bf" || name == "f") name = text;
    token_ = {text_, text, name, text.substr(name.size())};
  }

  const Kind& find_kind() const {
    const auto* const kind = std::ranges::find(kinds(), token_.name, &Kind::name);
    if (kind != kinds().end()) return *kind;
    std::vector<std::string_view> forms;
    for (const Kind& known : kinds()) forms.push_back(known.form);
    for (const core::Shorthand& known : core::shorthands()) forms.push_back(known.form);
    throw Error(ErrorCode::invalid_argument,
                fmt::format("descriptor token '{}' in '{}' is not known; accepted are {}",
                            core::echo(token_.text), core::echo(text_), fmt::join(forms, " ")));
  }

  void once(std::string_view field) {
    if (!seen_.insert(std::string(field)).second) {
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("descriptor token '{}' in '{}' sets {} a second time; each size and "
                              "option is accepted once",
                              core::echo(token_.text), core::echo(text_), field));
    }
  }

  void size(std::initializer_list<std::pair<std::string_view, std::int64_t*>> fields) {
    for (const auto& [field, to] : fields) {
      once(field);
      *to = token_.size();
    }
  }
  void read_b() { size({{"b", &problem_.batch}}); }
  void read_n() { size({{"sq", &problem_.seqlen_q}, {"sk", &problem_.seqlen_k}}); }
  void read_sq() { size({{"sq", &problem_.seqlen_q}}); }
  void read_sk() { size({{"sk", &problem_.seqlen_k}}); }
  void read_sp() { size({{"sp", &problem_.seqlen_prefix}}); }
  void read_h() { size({{"hq", &problem_.heads_q}, {"hk", &problem_.heads_k}}); }
  void read_hq() { size({{"hq", &problem_.heads_q}}); }
  void read_hk() { size({{"hk", &problem_.heads_k}}); }
  void read_d() { size({{"d", &problem_.head_dim}}); }
  void read_dv() { size({{"dv", &problem_.head_dim_v}}); }

  void read_dtype() {
    once("dtype");
    problem_.dtype = parse_dtype(token_.text);
  }

  void cache_type(std::initializer_list<std::pair<std::string_view, CacheType*>> fields) {
    const std::string_view type = token_.parenthesised("a type of caches, as in kv(q8_0)");
    for (const auto& [field, to] : fields) {
      once(field);
      *to = parse_cache_type(type);
    }
  }
  void read_o() {
    const std::string_view type = token_.parenthesised("the dtype of O, as in o(f32)");
    once("type_o");
    problem_.type_o = parse_dtype(type);
  }
  void read_q() { cache_type({{"type_q", &problem_.type_q}}); }
  void read_k() { cache_type({{"type_k", &problem_.type_k}}); }
  void read_v() { cache_type({{"type_v", &problem_.type_v}}); }
  void read_kv() { cache_type({{"type_k", &problem_.type_k}, {"type_v", &problem_.type_v}}); }

  void read_packed() {
    token_.take_no_value();
    if (token_.name != "packedk") {
      once("layout_q");
      problem_.layout_q = Layout::packed;
    }
    if (token_.name != "packedq") {
      once("layout_k");
      problem_.layout_k = Layout::packed;
    }
  }
  void read_paged() {
    once("layout_k");
    problem_.layout_k = Layout::paged;
    problem_.page_size = token_.size();
    if (problem_.page_size == 0) token_.refuse("paged<N> with N at least 1, as in paged16");
  }

  void read_paged_prefix() {
    once("paged_prefix");
    token_.take_no_value();
    problem_.paged_prefix = true;
  }

  void read_list() {
    once("key_list");
    problem_.key_list = token_.size();
    if (problem_.key_list == 0) token_.refuse("list<N> with N at least 1, as in list64");
  }

  void read_sink() {
    once("sink");
    token_.take_no_value();
    problem_.sink = true;
  }
  void read_dropout() {
    once("dropout");
    constexpr std::string_view kAccepted = "dropout<p> with p in [0, 1), as in dropout0.1";
    problem_.dropout.probability = token_.number<double>(kAccepted);
    if (!(problem_.dropout.probability >= 0 && problem_.dropout.probability < 1)) {
      token_.refuse(kAccepted);
    }
  }
  void read_seed() {
    once("seed");
    problem_.dropout.seed = token_.number<std::uint64_t>("seed<N> with 0 <= N < 2^64");
  }
  void read_offset() {
    once("offset");
    problem_.dropout.offset = token_.number<std::uint64_t>("offset<N> with 0 <= N < 2^64");
  }
  void read_rngstate() {
    once("rngstate");
    token_.take_no_value();
    problem_.dropout.rng_state = true;
  }
  void read_scale() {
    once("scale");
    problem_.softmax_scale = token_.number<double>("scale<x> with x finite, as in scale0.125");
  }

  // buffer(name:dtype:2x8): a named tensor that mask(...) and score(...) may read.
  void read_buffer() {
    constexpr std::string_view kAccepted =
        "buffer(name:dtype:shape), as in buffer(slopes:f32:8), each name once";
    const std::vector<std::string_view> parts = core::split(token_.parenthesised(kAccepted), ':');
    if (parts.size() != 3 || !names_.emplace(parts[0]).second) token_.refuse(kAccepted);
    buffers_.emplace_back(std::string(parts[0]),
                          core::shape_only(parse_dtype(parts[1]), token_.shape(parts[2])));
  }

  // scalar(name=12) or scalar(name:dtype): a number that mask(...) and score(...) may read.
  void read_scalar() {
    constexpr std::string_view kAccepted =
        "scalar(name=number) or scalar(name:dtype) with i32 or f32, as in scalar(w=12), each name "
        "once";
    const std::string_view text = token_.parenthesised(kAccepted);
    const std::size_t end = text.find_first_of("=:");
    if (end == std::string_view::npos) token_.refuse(kAccepted);
    const std::string_view name = text.substr(0, end);
    if (!names_.emplace(name).second) token_.refuse(kAccepted);
    if (text[end] == ':') {
      buffers_.emplace_back(std::string(name),
                            core::shape_only(parse_dtype(text.substr(end + 1)), {}));
      return;
    }
    const expr::Expr value = expr::parse(text.substr(end + 1));
    buffers_.push_back(*expr::scalar(std::string(name), value).node().buffer);
  }

  // A shorthand's expression with buffers of its own: the second bias reads bias2, the third bias3.
  expr::Expr own(expr::Expr e) {
    for (const auto& buffer : expr::buffers(e)) {
      const int n = ++shorthand_buffers_[buffer->name()];
      if (n > 1) e = core::rename_buffer(e, buffer->name(), fmt::format("{}{}", buffer->name(), n));
    }
    return e;
  }
  void add_mask(const expr::Expr& mask) {
    problem_.mask = problem_.mask.empty() ? mask : problem_.mask && mask;
  }
  void add_score(const expr::Expr& score) {
    problem_.score = problem_.score.empty() ? score : compose(score, problem_.score);
  }

  void read_mask() {
    const expr::Expr mask =
        expr::parse(token_.parenthesised("mask(<expression>), as in mask(query>=key)"), buffers_);
    if (mask.type() != expr::Type::boolean) token_.refuse("mask(<expression>) of type boolean");
    add_mask(mask);
  }
  void read_score() {
    const expr::Expr score =
        expr::parse(token_.parenthesised("score(<expression>), as in score(2.0*score)"), buffers_);
    if (score.type() != expr::Type::float32) token_.refuse("score(<expression>) of type float32");
    add_score(score);
  }
  void add(const core::Shorthand& shorthand) {
    const expr::Expr e = own(shorthand.read(token_, problem_, shorthand.alignment));
    shorthand.is_score ? add_score(e) : add_mask(e);
  }

  std::string_view text_;
  core::Token token_{};
  Problem problem_;
  std::set<std::string> seen_;
  std::vector<expr::Buffer> buffers_;
  std::set<std::string> names_;                   // of buffers_
  std::map<std::string, int> shorthand_buffers_;  // how many of each name
};

const std::array<Parser::Kind, 35>& Parser::kinds() {
  static const std::array<Kind, 35> kKinds{{
      {"b", "b<N>", &Parser::read_b},
      {"n", "n<N>", &Parser::read_n},
      {"sq", "sq<N>", &Parser::read_sq},
      {"sk", "sk<N>", &Parser::read_sk},
      {"sp", "sp<N>", &Parser::read_sp},
      {"h", "h<N>", &Parser::read_h},
      {"hq", "hq<N>", &Parser::read_hq},
      {"hk", "hk<N>", &Parser::read_hk},
      {"d", "d<N>", &Parser::read_d},
      {"dv", "dv<N>", &Parser::read_dv},
      {"f64", "f64", &Parser::read_dtype},
      {"f32", "f32", &Parser::read_dtype},
      {"bf16", "bf16", &Parser::read_dtype},
      {"f16", "f16", &Parser::read_dtype},
      {"o", "o(<dtype>)", &Parser::read_o},
      {"q", "q(<type>)", &Parser::read_q},
      {"k", "k(<type>)", &Parser::read_k},
      {"v", "v(<type>)", &Parser::read_v},
      {"kv", "kv(<type>)", &Parser::read_kv},
      {"packed", "packed", &Parser::read_packed},
      {"packedq", "packedq", &Parser::read_packed},
      {"packedk", "packedk", &Parser::read_packed},
      {"paged", "paged<N>", &Parser::read_paged},
      {"pagedprefix", "pagedprefix", &Parser::read_paged_prefix},
      {"list", "list<N>", &Parser::read_list},
      {"sink", "sink", &Parser::read_sink},
      {"dropout", "dropout<p>", &Parser::read_dropout},
      {"seed", "seed<N>", &Parser::read_seed},
      {"offset", "offset<N>", &Parser::read_offset},
      {"rngstate", "rngstate", &Parser::read_rngstate},
      {"scale", "scale<x>", &Parser::read_scale},
      {"buffer", "buffer(<name>:<dtype>:<shape>)", &Parser::read_buffer},
      {"scalar", "scalar(<name>=<number>)", &Parser::read_scalar},
      {"mask", "mask(<expression>)", &Parser::read_mask, true},
      {"score", "score(<expression>)", &Parser::read_score, true},
  }};
  return kKinds;
}

}  // namespace

Problem parse_problem(std::string_view text) { return Parser(text).parse(); }

}  // namespace attn
