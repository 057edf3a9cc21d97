// parse_problem: text form -> Problem. Grammar in docs/descriptors.md.
#include "core/text/descriptor.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <map>
#include <set>

#include "attn/error.hpp"
#include "attn/scalar.hpp"
#include "core/expr/grammar.hpp"

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

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (true) {
    const std::size_t at = text.find(separator);
    parts.push_back(text.substr(0, at));
    if (at == std::string_view::npos) return parts;
    text.remove_prefix(at + 1);
  }
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
        token_ = token;
        const Kind& kind = find_kind();
        if (kind.needs_shapes == shapes_known) (this->*kind.read)();
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
  static const std::array<Kind, 42>& kinds();

  const Kind& find_kind() {
    const auto is_letter = [](char c) { return c >= 'a' && c <= 'z'; };
    const auto letters = static_cast<std::size_t>(
        std::find_if_not(token_.begin(), token_.end(), is_letter) - token_.begin());
    name_ = token_.substr(0, letters);
    // A dtype may follow at once, as in biasbf16.
    if (name_.starts_with("bias")) name_ = name_.starts_with("biasbr") ? "biasbr" : "bias";
    value_ = token_.substr(name_.size());
    if (name_ == "bf" || name_ == "f") {
      name_ = token_;
      value_ = {};
    }
    std::string forms;
    for (const Kind& kind : kinds()) {
      if (kind.name == name_) return kind;
      forms += forms.empty() ? "" : " ";
      forms += kind.form;
    }
    throw Error(ErrorCode::invalid_argument,
                fmt::format("descriptor token '{}' in '{}' is not known; accepted are {}", token_,
                            text_, forms));
  }

  [[noreturn]] void refuse(std::string_view accepted) const {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("descriptor token '{}' in '{}' cannot be read; accepted is {}", token_,
                            text_, accepted));
  }

  void once(std::string_view field) {
    if (!seen_.insert(std::string(field)).second) {
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("descriptor token '{}' in '{}' sets {} a second time; each size and "
                              "option is accepted once",
                              token_, text_, field));
    }
  }

  template <class T>
  T number(std::string_view text, std::string_view accepted) const {
    T value{};
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc{} || end != text.data() + text.size()) refuse(accepted);
    if constexpr (std::is_floating_point_v<T>) {
      if (!std::isfinite(value)) refuse(accepted);
    }
    return value;
  }

  std::int64_t size_value() const {
    const auto value = number<std::int64_t>(value_, "a whole number, 0 or more");
    if (value < 0) refuse("a whole number, 0 or more");
    return value;
  }
  void size(std::initializer_list<std::pair<std::string_view, std::int64_t*>> fields) {
    for (const auto& [field, to] : fields) {
      once(field);
      *to = size_value();
    }
  }
  void no_value() const {
    if (!value_.empty()) refuse(fmt::format("'{}' without a value", name_));
  }

  std::vector<std::int64_t> shape(std::string_view text) const {
    constexpr std::string_view kAccepted =
        "1 to 4 sizes joined by x whose product fits 2^62, as in 2x8x64";
    std::vector<std::int64_t> sizes;
    std::int64_t product = 1;
    for (const std::string_view part : split(text, 'x')) {
      sizes.push_back(number<std::int64_t>(part, kAccepted));
      if (sizes.back() < 0 || sizes.size() > kMaxRank) refuse(kAccepted);
      if (product > (std::int64_t{1} << 62) / std::max<std::int64_t>(1, sizes.back())) {
        refuse(kAccepted);
      }
      product *= std::max<std::int64_t>(1, sizes.back());
    }
    return sizes;
  }

  void read_b() { size({{"b", &problem_.batch}}); }
  void read_n() { size({{"sq", &problem_.seqlen_q}, {"sk", &problem_.seqlen_k}}); }
  void read_sq() { size({{"sq", &problem_.seqlen_q}}); }
  void read_sk() { size({{"sk", &problem_.seqlen_k}}); }
  void read_h() { size({{"hq", &problem_.heads_q}, {"hk", &problem_.heads_k}}); }
  void read_hq() { size({{"hq", &problem_.heads_q}}); }
  void read_hk() { size({{"hk", &problem_.heads_k}}); }
  void read_d() { size({{"d", &problem_.head_dim}}); }
  void read_dv() { size({{"dv", &problem_.head_dim_v}}); }

  void read_dtype() {
    once("dtype");
    problem_.dtype = parse_dtype(token_);
  }

  void read_packed() {
    no_value();
    if (name_ != "packedk") {
      once("layout_q");
      problem_.layout_q = Layout::packed;
    }
    if (name_ != "packedq") {
      once("layout_k");
      problem_.layout_k = Layout::packed;
    }
  }
  void read_paged() {
    once("layout_k");
    problem_.layout_k = Layout::paged;
    problem_.page_size = size_value();
    if (problem_.page_size == 0) refuse("paged<N> with N at least 1, as in paged16");
  }

  void read_sink() {
    once("sink");
    no_value();
    problem_.sink = true;
  }
  void read_dropout() {
    once("dropout");
    constexpr std::string_view kAccepted = "dropout<p> with p in [0, 1), as in dropout0.1";
    problem_.dropout.probability = number<double>(value_, kAccepted);
    if (!(problem_.dropout.probability >= 0 && problem_.dropout.probability < 1)) {
      refuse(kAccepted);
    }
  }
  void read_seed() {
    once("seed");
    problem_.dropout.seed = number<std::uint64_t>(value_, "seed<N> with 0 <= N < 2^64");
  }
  void read_offset() {
    once("offset");
    problem_.dropout.offset = number<std::uint64_t>(value_, "offset<N> with 0 <= N < 2^64");
  }
  void read_rngstate() {
    once("rngstate");
    no_value();
    problem_.dropout.rng_state = true;
  }
  void read_scale() {
    once("scale");
    problem_.softmax_scale = number<double>(value_, "scale<x> with x finite, as in scale0.125");
  }

  // buffer(name:dtype:2x8): a named tensor that mask(...) and score(...) may read.
  void read_buffer() {
    constexpr std::string_view kAccepted =
        "buffer(name:dtype:shape), as in buffer(slopes:f32:8), each name once";
    const std::vector<std::string_view> parts = split(parenthesised(kAccepted), ':');
    if (parts.size() != 3 || !names_.emplace(parts[0]).second) refuse(kAccepted);
    buffers_.emplace_back(std::string(parts[0]),
                          core::shape_only(parse_dtype(parts[1]), shape(parts[2])));
  }

  // scalar(name=12) or scalar(name:dtype): a number that mask(...) and score(...) may read.
  void read_scalar() {
    constexpr std::string_view kAccepted =
        "scalar(name=number) or scalar(name:dtype) with i32 or f32, as in scalar(w=12), each name "
        "once";
    const std::string_view text = parenthesised(kAccepted);
    const std::size_t end = text.find_first_of("=:");
    if (end == std::string_view::npos) refuse(kAccepted);
    const std::string_view name = text.substr(0, end);
    if (!names_.emplace(name).second) refuse(kAccepted);
    if (text[end] == ':') {
      buffers_.emplace_back(std::string(name),
                            core::shape_only(parse_dtype(text.substr(end + 1)), {}));
      return;
    }
    const expr::Expr value = expr::parse(text.substr(end + 1));
    buffers_.push_back(*expr::scalar(std::string(name), value).node().buffer);
  }

  std::string_view parenthesised(std::string_view accepted) const {
    if (value_.size() < 2 || value_.front() != '(' || value_.back() != ')') refuse(accepted);
    return value_.substr(1, value_.size() - 2);
  }

  // A shorthand's expression with buffers of its own: the second bias reads bias2.
  expr::Expr own(expr::Expr e) {
    for (const auto& buffer : expr::buffers(e)) {
      const int n = ++shorthand_buffers_[buffer->name()];
      if (n > 1) e = core::rename_buffer(e, buffer->name(), core::numbered(buffer->name(), n));
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
        expr::parse(parenthesised("mask(<expression>), as in mask(query>=key)"), buffers_);
    if (mask.type() != expr::Type::boolean) refuse("mask(<expression>) of type boolean");
    add_mask(mask);
  }
  void read_score() {
    const expr::Expr score =
        expr::parse(parenthesised("score(<expression>), as in score(2.0*score)"), buffers_);
    if (score.type() != expr::Type::float32) refuse("score(<expression>) of type float32");
    add_score(score);
  }
  // The alignment that the end of the name says.
  Alignment alignment() const {
    return name_.ends_with("tl") || name_ == "bias" ? Alignment::top_left : Alignment::bottom_right;
  }

  void read_causal() {
    no_value();
    add_mask(causal(alignment()));
  }
  void read_window() {
    constexpr std::string_view kAccepted =
        "window<left>x<right> with a negative number for no bound, as in window128x0";
    const std::vector<std::string_view> parts = split(value_, 'x');
    if (parts.size() != 2) refuse(kAccepted);
    add_mask(window(number<std::int32_t>(parts[0], kAccepted),
                    number<std::int32_t>(parts[1], kAccepted), alignment()));
  }
  void read_prefix() {
    add_mask(prefix(number<std::int32_t>(value_, "prefix<N>, as in prefix64"), alignment()));
  }
  void read_documents() {
    const std::vector<std::string_view> parts = split(value_, ',');
    if (parts.size() > 2 || (parts.size() == 2 && alignment() == Alignment::top_left)) {
      refuse("documents, documents<shape>, documents<shape of q>,<of k>, documentstl<shape>");
    }
    const std::vector<std::int64_t> shape_q =
        value_.empty() ? core::default_ids_shape(problem_, alignment()) : shape(parts[0]);
    if (value_.empty() && problem_.batch == 0) refuse("documents beside b<N>, or with a shape");
    const Tensor ids_q = core::shape_only(DType::i32, shape_q);
    add_mask(own(parts.size() == 1
                     ? documents(ids_q, alignment())
                     : documents(ids_q, core::shape_only(DType::i32, shape(parts[1])))));
  }
  void read_butterfly() {
    constexpr std::string_view kAccepted =
        "butterfly<block> with a block of at least 1 and seqlens set, as in butterfly64";
    const auto block = number<std::int32_t>(value_, kAccepted);
    if (block < 1 || problem_.seqlen_q == 0 || problem_.seqlen_k == 0) refuse(kAccepted);
    add_mask(own(core::default_butterfly(problem_, block, alignment()).mask(alignment())));
  }
  void read_softcap() {
    add_score(softcap(number<float>(value_, "softcap<c> with c finite, as in softcap30")));
  }
  void read_alibi() {
    no_value();
    if (problem_.heads_q == 0) refuse("alibi beside h<N> or hq<N>");
    const Tensor slopes = core::shape_only(DType::f32, core::default_slopes_shape(problem_));
    add_score(own(alibi(slopes, alignment())));
  }
  void read_bias() {
    const auto sizes_end = value_.find_last_not_of("0123456789x");
    DType dtype = DType::f32;
    std::string_view sizes = value_;
    if (sizes_end != std::string_view::npos) {
      const std::size_t letters = value_.find_first_not_of("0123456789x");
      dtype = parse_dtype(value_.substr(letters));
      sizes = value_.substr(0, letters);
    }
    if (sizes.empty() && problem_.heads_q == 0)
      refuse("bias beside h<N> or hq<N>, or with a shape");
    const std::vector<std::int64_t> bias_shape =
        sizes.empty() ? core::default_bias_shape(problem_, alignment()) : shape(sizes);
    if (bias_shape.size() != 2 && bias_shape.size() != 4) {
      refuse("bias, bias<q>x<k> or bias<batch>x<head>x<q>x<k>, then a dtype if it is not f32");
    }
    add_score(own(bias(core::shape_only(dtype, bias_shape), alignment())));
  }

  std::string_view text_, token_, name_, value_;
  Problem problem_;
  std::set<std::string> seen_;
  std::vector<expr::Buffer> buffers_;
  std::set<std::string> names_;                   // of buffers_
  std::map<std::string, int> shorthand_buffers_;  // how many of each name
};

const std::array<Parser::Kind, 42>& Parser::kinds() {
  static const std::array<Kind, 42> kKinds{{
      {"b", "b<N>", &Parser::read_b},
      {"n", "n<N>", &Parser::read_n},
      {"sq", "sq<N>", &Parser::read_sq},
      {"sk", "sk<N>", &Parser::read_sk},
      {"h", "h<N>", &Parser::read_h},
      {"hq", "hq<N>", &Parser::read_hq},
      {"hk", "hk<N>", &Parser::read_hk},
      {"d", "d<N>", &Parser::read_d},
      {"dv", "dv<N>", &Parser::read_dv},
      {"f64", "f64", &Parser::read_dtype},
      {"f32", "f32", &Parser::read_dtype},
      {"bf16", "bf16", &Parser::read_dtype},
      {"f16", "f16", &Parser::read_dtype},
      {"packed", "packed", &Parser::read_packed},
      {"packedq", "packedq", &Parser::read_packed},
      {"packedk", "packedk", &Parser::read_packed},
      {"paged", "paged<N>", &Parser::read_paged},
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
      {"causal", "causal", &Parser::read_causal, true},
      {"causaltl", "causaltl", &Parser::read_causal, true},
      {"window", "window<left>x<right>", &Parser::read_window, true},
      {"windowtl", "windowtl<left>x<right>", &Parser::read_window, true},
      {"prefix", "prefix<N>", &Parser::read_prefix, true},
      {"prefixtl", "prefixtl<N>", &Parser::read_prefix, true},
      {"documents", "documents", &Parser::read_documents, true},
      {"documentstl", "documentstl", &Parser::read_documents, true},
      {"butterfly", "butterfly<N>", &Parser::read_butterfly, true},
      {"butterflytl", "butterflytl<N>", &Parser::read_butterfly, true},
      {"softcap", "softcap<c>", &Parser::read_softcap, true},
      {"alibi", "alibi", &Parser::read_alibi, true},
      {"alibitl", "alibitl", &Parser::read_alibi, true},
      {"bias", "bias", &Parser::read_bias, true},
      {"biasbr", "biasbr", &Parser::read_bias, true},
  }};
  return kKinds;
}

}  // namespace

Problem parse_problem(std::string_view text) { return Parser(text).parse(); }

}  // namespace attn
