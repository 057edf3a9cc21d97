#include "command/run_problem.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <optional>
#include <utility>

#include "attn/error.hpp"
#include "attn/mask.hpp"
#include "command/number.hpp"
#include "io/npy.hpp"

namespace attn::command {
namespace {

// '_' separates tokens of the text form, except inside parentheses.
std::vector<std::string> split_tokens(const std::string& text) {
  std::vector<std::string> tokens(1);
  int depth = 0;
  for (const char c : text) {
    depth += c == '(' ? 1 : c == ')' ? -1 : 0;
    if (c == '_' && depth == 0) {
      tokens.emplace_back();
    } else {
      tokens.back() += c;
    }
  }
  return tokens;
}

bool is_dtype(std::string_view token) {
  return token == "f64" || token == "f32" || token == "bf16" || token == "f16";
}

// Whether a token says a size, a dtype or a layout: what tensors say as well.
bool is_shape(std::string_view token) {
  constexpr std::array<std::string_view, 12> kSizes{"b",  "n",  "sq", "sk", "sp",    "h",
                                                    "hq", "hk", "d",  "dv", "paged", "list"};
  const std::size_t digits = std::min(token.find_first_of("0123456789"), token.size());
  const bool is_size =
      std::find(kSizes.begin(), kSizes.end(), token.substr(0, digits)) != kSizes.end() &&
      token.find_first_not_of("0123456789", digits) == std::string_view::npos;
  const bool is_cache_type = token.starts_with("q(") || token.starts_with("k(") ||
                             token.starts_with("v(") || token.starts_with("kv(");
  return is_size || is_cache_type || is_dtype(token) || token == "packed" || token == "packedq" ||
         token == "packedk" || token == "pagedprefix";
}

// Whether the text is a shorthand of the text form, or some; an expression begins with no such
// word, as in score-1.0, or has other characters.
bool is_tokens(const std::string& text) {
  constexpr std::string_view kWords[] = {"causal", "window",  "prefix", "documents", "butterfly",
                                         "tree",   "softcap", "alibi",  "bias"};
  return std::ranges::any_of(kWords,
                             [&](std::string_view word) { return text.starts_with(word); }) &&
         std::all_of(text.begin(), text.end(), [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '.' ||
                  c == ',' || c == '-';
         });
}

std::string shape_text(const Tensor& t) {
  return fmt::format("{}", fmt::join(t.shape.begin(), t.shape.begin() + t.rank, "x"));
}

[[noreturn]] void refuse(std::string_view option, std::string_view value,
                         std::string_view accepted) {
  throw Error(ErrorCode::invalid_argument,
              fmt::format("{} is {}; accepted is {}", option, io::printable(value), accepted));
}

class Reader {
 public:
  explicit Reader(const ProblemOptions& options)
      : options_(options), user_tokens_(split_tokens(options.tokens)) {
    if (!options.input.empty()) {
      file_.emplace(options.input);
      result_.files.push_back(options.input);
    }
    if (options.tokens.empty()) user_tokens_.clear();
  }

  RunProblem read() {
    Inputs& inputs = result_.inputs;
    inputs.cu_seqlens_q = optional_input("cu_seqlens_q", options_.cu_seqlens_q);
    inputs.cu_seqlens_k = optional_input("cu_seqlens_k", options_.cu_seqlens_k);
    inputs.seqused_q = optional_input("seqused_q", options_.seqused_q);
    inputs.seqused_k = optional_input("seqused_k", options_.seqused_k);
    inputs.page_table = optional_input("page_table", options_.page_table);
    inputs.key_list = optional_input("key_list", "");
    inputs.prefix_k = prefix_input("prefix_k");
    inputs.prefix_v = prefix_input("prefix_v");
    inputs.prefix_page_table = optional_input("prefix_page_table", "");
    read_heads();
    tokens_ = {to_string(shapes())};
    read_buffers();
    read_scalars();
    add_masks();
    add_scores();
    add_options();
    result_.problem = parse();
    bind_scalars();
    bind_by_name();
    result_.problem = complete(result_.problem, inputs);
    return std::move(result_);
  }

 private:
  Tensor keep(io::Array array) { return result_.arrays.emplace_back(std::move(array)).tensor(); }

  Tensor source(std::string_view option, const std::string& from) {
    if (from.ends_with(".npy")) {
      result_.files.push_back(from);
      return keep(io::read_npy(from));
    }
    if (!file_) {
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("{} is \"{}\", which needs --input with a safetensors file that "
                              "holds a tensor of this name; without --input the path of an .npy "
                              "file is accepted",
                              option, io::printable(from)));
    }
    return keep(file_->read(from));
  }

  static std::string option_of(std::string name) {
    std::replace(name.begin(), name.end(), '_', '-');
    return "--" + name;
  }

  Tensor optional_input(const std::string& name, const std::string& from) {
    if (!from.empty()) return source(option_of(name), from);
    if (file_ && file_->contains(name)) return keep(file_->read(name));
    return {};
  }

  // In the dtype asked for, as Q, K and V are.
  Tensor prefix_input(const std::string& name) {
    const Tensor t = optional_input(name, "");
    if (!t.given() || options_.dtype.empty() || !is_floating(t.dtype)) return t;
    const DType dtype = parse_dtype(options_.dtype);
    return dtype == t.dtype ? t : keep(io::convert(t, dtype));
  }

  bool has_token(std::string_view token) const {
    return std::find(user_tokens_.begin(), user_tokens_.end(), token) != user_tokens_.end();
  }
  bool has_paged_token() const {
    return std::any_of(user_tokens_.begin(), user_tokens_.end(), [](const std::string& token) {
      return token.starts_with("paged") && token != "pagedprefix" && is_shape(token);
    });
  }

  void read_heads() {
    Inputs& inputs = result_.inputs;
    const bool packed_q =
        inputs.cu_seqlens_q.given() || has_token("packed") || has_token("packedq");
    const bool paged = inputs.page_table.given() || has_paged_token();
    const bool packed_k =
        inputs.cu_seqlens_k.given() || has_token("packed") || has_token("packedk");
    layout_q_ = packed_q ? Layout::packed : Layout::dense;
    layout_k_ = paged ? Layout::paged : packed_k ? Layout::packed : Layout::dense;
    // Q, K and V in types of their own (--problem "q(e4m3)_kv(q8_0)") are not converted, and may be
    // of bytes.
    const auto has_type = [&](std::string_view of) {
      return std::any_of(user_tokens_.begin(), user_tokens_.end(), [&](const std::string& token) {
        return token.starts_with(of) || (of != "q(" && token.starts_with("kv("));
      });
    };
    has_type_q_ = has_type("q(");
    inputs.q = heads_tensor("--q", options_.q, layout_q_, result_.batchless_q, has_type_q_);
    inputs.k = heads_tensor("--k", options_.k, layout_k_, result_.batchless_k, has_type("k("));
    inputs.v = heads_tensor("--v", options_.v, layout_k_, result_.batchless_v, has_type("v("));
    inputs.scale_q = optional_input("scale_q", "");
    inputs.scale_k = optional_input("scale_k", "");
    inputs.scale_v = optional_input("scale_v", "");
    if (!options_.backward) {
      if (!options_.d_o.empty()) refuse("--d-o", options_.d_o, "--d-o beside --backward");
      if (!options_.d_lse.empty()) refuse("--d-lse", options_.d_lse, "--d-lse beside --backward");
      return;
    }
    const bool in_file = file_ && file_->contains("d_o");
    if (options_.d_o.empty() && !in_file) {
      throw Error(
          ErrorCode::invalid_argument,
          "--backward needs the gradient of O; accepted are a tensor \"d_o\" of --input and "
          "--d-o with the name of a tensor or an .npy file");
    }
    bool batchless = false;
    result_.d_outputs.o =
        heads_tensor("--d-o", options_.d_o.empty() ? "d_o" : options_.d_o, layout_q_, batchless);
    result_.d_outputs.lse = optional_input("d_lse", options_.d_lse);
  }

  // A tensor laid out as Q or K, in the dtype asked for; a batch of one where it has none.
  Tensor heads_tensor(std::string_view option, const std::string& from, Layout layout,
                      bool& batchless, bool own_type = false) {
    Tensor t = source(option, from);
    const std::string_view accepted = layout == Layout::packed ? "[total, heads, head_dim] (packed)"
                                      : layout == Layout::paged
                                          ? "[pages, page_size, heads, head_dim] (paged)"
                                          : "[batch, seqlen, heads, head_dim] or [seqlen, heads, "
                                            "head_dim]";
    const bool rank_fits =
        (t.rank == 3 && layout != Layout::paged) || (t.rank == 4 && layout != Layout::packed);
    if (!rank_fits) refuse(option, to_string(t), accepted);
    if (!own_type && !is_floating(t.dtype)) {
      refuse(option, to_string(t), "f32, bf16, f16 or f64, and u8 of a cache as by kv(q8_0)");
    }
    if (!own_type && !options_.dtype.empty()) {
      const DType dtype = parse_dtype(options_.dtype);
      if (dtype != t.dtype) t = keep(io::convert(t, dtype));
    }
    batchless = layout == Layout::dense && t.rank == 3;
    if (!batchless) return t;
    Tensor batched = t;
    batched.rank = 4;
    batched.shape = {1, t.shape[0], t.shape[1], t.shape[2]};
    batched.strides = {t.size(), t.strides[0], t.strides[1], t.strides[2]};
    return batched;
  }

  // Sizes, layout and dtype alone: those of --problem, and of the tensors where it is silent.
  Problem shapes() const {
    std::vector<std::string> tokens;
    std::copy_if(user_tokens_.begin(), user_tokens_.end(), std::back_inserter(tokens), is_shape);
    if (layout_q_ == Layout::packed && !has_token("packed") && !has_token("packedq")) {
      tokens.emplace_back("packedq");
    }
    if (layout_k_ == Layout::packed && !has_token("packed") && !has_token("packedk")) {
      tokens.emplace_back("packedk");
    }
    const Inputs& inputs = result_.inputs;
    if (layout_k_ == Layout::paged && !has_paged_token()) {
      tokens.push_back(fmt::format("paged{}", inputs.k.shape[1]));
    }
    if (inputs.prefix_page_table.given() && !has_token("pagedprefix")) {
      tokens.emplace_back("pagedprefix");
    }
    const auto dtype = std::find_if(tokens.begin(), tokens.end(), is_dtype);
    if (has_type_q_) {
      if (dtype == tokens.end() && !options_.dtype.empty()) tokens.emplace_back(options_.dtype);
    } else if (dtype == tokens.end()) {
      tokens.emplace_back(name(inputs.q.dtype));
    } else if (*dtype != name(inputs.q.dtype)) {
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("--problem says {}, but Q is {}; --dtype {} converts it", *dtype,
                              to_string(inputs.q), *dtype));
    }
    return complete(parse_problem(fmt::format("{}", fmt::join(tokens, "_"))), inputs);
  }

  void bind(const std::string& buffer, const Tensor& tensor) {
    result_.inputs.buffers.emplace_back(buffer, tensor);
  }
  bool is_bound(std::string_view buffer) const {
    const auto& bound = result_.inputs.buffers;
    return std::any_of(bound.begin(), bound.end(),
                       [&](const auto& binding) { return binding.first == buffer; });
  }
  bool has_token_from(const std::string& begin) const {
    return std::any_of(user_tokens_.begin(), user_tokens_.end(),
                       [&](const std::string& token) { return token.starts_with(begin); });
  }
  // Whether --problem declares the buffer, by a token buffer(name:...).
  bool is_declared(const std::string& buffer) const {
    return has_token_from("buffer(" + buffer + ":");
  }

  // What an option says on the two sides of its first '='.
  static std::pair<std::string, std::string> named(std::string_view option, const std::string& text,
                                                   std::string_view accepted) {
    const std::size_t equals = text.find('=');
    if (equals == 0 || equals == std::string::npos || equals + 1 == text.size()) {
      refuse(option, text, accepted);
    }
    return {text.substr(0, equals), text.substr(equals + 1)};
  }

  void read_buffers() {
    for (const std::string& text : options_.buffers) {
      const auto [buffer, from] = named("--buffer", text, "name=tensor or name=file.npy");
      if (is_bound(buffer)) refuse("--buffer", text, "each name once");
      const Tensor t = source("--buffer", from);
      if (!is_declared(buffer)) {
        tokens_.push_back(fmt::format("buffer({}:{}:{})", buffer, name(t.dtype), shape_text(t)));
      }
      bind(buffer, t);
    }
  }

  // Declares those that no token scalar(name:type) or scalar(name=number) declares.
  void read_scalars() {
    for (const std::string& text : options_.scalars) {
      const auto [scalar, number] = named("--scalar", text, "name=number");
      float value = 0;
      if (!reads_as(number, value)) refuse("--scalar", text, "name=number");
      if (is_bound(scalar) || !scalars_.emplace(scalar, number).second) {
        refuse("--scalar", text, "each name once");
      }
      if (has_token_from("scalar(" + scalar + ":") || has_token_from("scalar(" + scalar + "=")) {
        continue;
      }
      tokens_.push_back(fmt::format("scalar({}={})", scalar, number));
    }
  }

  // Binds scalars to the numbers of their options, of the type that mask and score read.
  void bind_scalars() {
    for (const auto& [scalar, number] : scalars_) {
      const auto type = type_of_scalar(scalar);
      if (!type) refuse("--scalar", scalar, "a name that the mask or the score reads");
      const Tensor t = keep(io::Array(*type, std::array{std::int64_t{1}}));
      const bool fits = *type == DType::f32 ? reads_as(number, *static_cast<float*>(t.data))
                                            : reads_as(number, *static_cast<std::int32_t*>(t.data));
      if (!fits) refuse("--scalar", scalar + "=" + number, "a whole number that int32 holds");
      bind(scalar, tensor(t.data, *type, {}));
    }
  }

  std::optional<DType> type_of_scalar(const std::string& scalar) const {
    for (const expr::Expr* e : {&result_.problem.mask, &result_.problem.score}) {
      if (e->empty()) continue;
      for (const auto& buffer : expr::buffers(*e)) {
        const Tensor& t = buffer->tensor();
        if (buffer->name() == scalar && t.rank == 0) return t.dtype;
      }
    }
    return {};
  }

  void add_expression(const char* kind, const std::string& text) {
    if (text.empty()) return;
    tokens_.push_back(is_tokens(text) ? text : fmt::format("{}({})", kind, text));
  }

  // Binds the one buffer of a shorthand, whatever its name.
  void bind_shorthand(const expr::Expr& e, const Tensor& t) {
    bind(expr::buffers(e).front()->name(), t);
  }

  void add_masks() {
    add_expression("mask", options_.mask);
    if (options_.causal) tokens_.emplace_back("causal");
    if (!options_.window.empty()) {
      const std::size_t comma = options_.window.find(',');
      std::int32_t left = 0, right = 0;
      if (comma == std::string::npos || !reads_as(options_.window.substr(0, comma), left) ||
          !reads_as(options_.window.substr(comma + 1), right)) {
        refuse("--window", options_.window, "left,right: two whole numbers, as in 128,0");
      }
      tokens_.push_back(fmt::format("window{}x{}", left, right));
    }
    if (!options_.documents.empty()) {
      const Tensor ids = source("--documents", options_.documents);
      tokens_.push_back("documents" + shape_text(ids));
      bind_shorthand(documents(ids), ids);
    }
  }

  void add_scores() {
    add_expression("score", options_.score);
    if (!options_.softcap.empty()) {
      float cap = 0;
      if (!reads_as(options_.softcap, cap) || !std::isfinite(cap) || cap <= 0) {
        refuse("--softcap", options_.softcap, "a finite number above 0");
      }
      tokens_.push_back("softcap" + options_.softcap);
    }
    if (options_.alibi) tokens_.emplace_back("alibi");
    if (!options_.bias.empty()) {
      const Tensor t = source("--bias", options_.bias);
      tokens_.push_back("bias" + shape_text(t) + std::string(name(t.dtype)));
      bind_shorthand(bias(t), t);
    }
  }

  void add_options() {
    result_.inputs.sink = optional_input("sink", options_.sink);
    if (result_.inputs.sink.given() && !has_token("sink")) tokens_.emplace_back("sink");
    result_.inputs.rng_state = optional_input("rng_state", options_.rng_state);
    if (result_.inputs.rng_state.given() && !has_token("rngstate")) {
      tokens_.emplace_back("rngstate");
    }
    if (!options_.scale.empty()) {
      double scale = 0;
      if (!reads_as(options_.scale, scale) || !std::isfinite(scale)) {
        refuse("--scale", options_.scale, "a finite number");
      }
      tokens_.push_back("scale" + options_.scale);
    }
    std::copy_if(user_tokens_.begin(), user_tokens_.end(), std::back_inserter(tokens_),
                 [](const std::string& token) { return !is_shape(token); });
  }

  // The sizes of the tensors stand in the text form that the parser sees, so a refusal is told with
  // the options that were written.
  Problem parse() const {
    try {
      return parse_problem(fmt::format("{}", fmt::join(tokens_, "_")));
    } catch (const Error& error) {
      std::string written;
      for (const auto& [option, text] : {std::pair{"--mask", &options_.mask},
                                         {"--score", &options_.score},
                                         {"--problem", &options_.tokens}}) {
        if (!text->empty()) written += fmt::format(" {} {}", option, io::printable(*text));
      }
      if (written.empty()) throw;
      throw Error(error.code(), fmt::format("in{}: {}", written, error.what()));
    }
  }

  // Buffers of mask and score that no option named are tensors of the file; the slopes of alibi
  // have values of their own where the file has none.
  void bind_by_name() {
    std::vector<std::string> read;
    for (const expr::Expr* e : {&result_.problem.mask, &result_.problem.score}) {
      if (e->empty()) continue;
      for (const auto& buffer : expr::buffers(*e)) {
        const std::string& name = buffer->name();
        read.push_back(name);
        if (buffer->tensor().data != nullptr || is_bound(name)) continue;
        if (file_ && file_->contains(name)) {
          bind(name, keep(file_->read(name)));
        } else if (name == "slopes" && !is_declared(name)) {
          bind(name, slopes());
        }
      }
    }
    for (const auto& binding : result_.inputs.buffers) {
      if (std::find(read.begin(), read.end(), binding.first) == read.end()) {
        refuse("--buffer", binding.first, "a name that the mask or the score reads");
      }
    }
  }

  Tensor slopes() {
    const std::vector<float> values = alibi_slopes(result_.problem.heads_q);
    const Tensor t = keep(io::Array(DType::f32, std::array{result_.problem.heads_q}));
    std::copy(values.begin(), values.end(), static_cast<float*>(t.data));
    return t;
  }

  const ProblemOptions& options_;
  std::vector<std::string> user_tokens_;  // of --problem
  std::optional<io::SafetensorsFile> file_;
  Layout layout_q_ = Layout::dense, layout_k_ = Layout::dense;
  bool has_type_q_ = false;                     // Q is in a type of its own, and says no dtype
  std::vector<std::string> tokens_;             // of the whole
  std::map<std::string, std::string> scalars_;  // their numbers by name
  RunProblem result_;
};

}  // namespace

RunProblem read_problem(const ProblemOptions& options) { return Reader(options).read(); }

}  // namespace attn::command
