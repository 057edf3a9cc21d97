#include "command/run_problem.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>

#include "attn/error.hpp"
#include "attn/mask.hpp"
#include "io/npy.hpp"

namespace attn::command {
namespace {

class Reader {
 public:
  explicit Reader(const ProblemOptions& options) : options_(options) {
    if (!options.input.empty()) file_.emplace(options.input);
  }

  RunProblem read() {
    result_.inputs.q = heads_tensor("--q", options_.q);
    result_.inputs.k = heads_tensor("--k", options_.k);
    result_.inputs.v = heads_tensor("--v", options_.v);
    const Tensor& q = result_.inputs.q;
    const Tensor& k = result_.inputs.k;
    tokens_ = {fmt::format("b{}_sq{}_sk{}_hq{}_hk{}_d{}_dv{}_{}", q.shape[0], q.shape[1],
                           k.shape[1], q.shape[2], k.shape[2], q.shape[3],
                           result_.inputs.v.shape[3], name(q.dtype))};
    read_buffers();
    add_masks();
    add_scores();
    if (!options_.sink.empty()) {
      tokens_.emplace_back("sink");
      result_.inputs.sink = source("--sink", options_.sink);
    }
    if (!options_.scale.empty()) tokens_.push_back("scale" + options_.scale);
    if (!options_.tokens.empty()) tokens_.push_back(options_.tokens);
    result_.problem = parse_problem(fmt::format("{}", fmt::join(tokens_, "_")));
    if (options_.alibi) make_slopes();
    result_.problem = complete(result_.problem, result_.inputs);
    return std::move(result_);
  }

 private:
  Tensor keep(io::Array array) { return result_.arrays.emplace_back(std::move(array)).tensor(); }

  Tensor source(std::string_view option, const std::string& from) {
    if (from.ends_with(".npy")) return keep(io::read_npy(from));
    if (!file_) {
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("{} is \"{}\", which needs --input with a safetensors file that "
                              "holds a tensor of this name; without --input the path of an .npy "
                              "file is accepted",
                              option, io::printable(from)));
    }
    return keep(file_->read(from));
  }

  // Q, K or V in the dtype asked for, rank 4.
  Tensor heads_tensor(std::string_view option, const std::string& from) {
    Tensor t = source(option, from);
    if (t.rank != 3 && t.rank != 4) {
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("{} is {}, but [batch, seqlen, heads, head_dim] or [seqlen, heads, "
                              "head_dim] is accepted",
                              option, to_string(t)));
    }
    if (!is_floating(t.dtype)) {
      throw Error(
          ErrorCode::invalid_argument,
          fmt::format("{} is {}, but f32, bf16, f16 and f64 are accepted", option, to_string(t)));
    }
    if (!options_.dtype.empty()) {
      const DType dtype = parse_dtype(options_.dtype);
      if (dtype != t.dtype) t = keep(io::convert(t, dtype));
    }
    if (option == "--q") result_.rank = t.rank;
    if (t.rank == 4) return t;
    Tensor batched = t;
    batched.rank = 4;
    batched.shape = {1, t.shape[0], t.shape[1], t.shape[2]};
    batched.strides = {t.size(), t.strides[0], t.strides[1], t.strides[2]};
    return batched;
  }

  static std::string shape_text(const Tensor& t) {
    return fmt::format("{}", fmt::join(t.shape.begin(), t.shape.begin() + t.rank, "x"));
  }

  void bind(const std::string& buffer, const Tensor& tensor) {
    result_.inputs.buffers.emplace_back(buffer, tensor);
  }

  void read_buffers() {
    for (const std::string& text : options_.buffers) {
      const std::size_t equals = text.find('=');
      if (equals == 0 || equals == std::string::npos) {
        throw Error(ErrorCode::invalid_argument,
                    fmt::format("--buffer is \"{}\", but name=tensor or name=file.npy is accepted",
                                io::printable(text)));
      }
      const std::string buffer = text.substr(0, equals);
      const Tensor t = source("--buffer", text.substr(equals + 1));
      tokens_.push_back(fmt::format("buffer({}:{}:{})", buffer, name(t.dtype), shape_text(t)));
      bind(buffer, t);
    }
  }

  // The characters of which tokens of the text form consist; an expression has others.
  static bool is_tokens(const std::string& text) {
    return std::all_of(text.begin(), text.end(), [](char c) {
      return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '.' || c == ',' ||
             c == '-';
    });
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
      std::string sizes = options_.window;
      std::replace(sizes.begin(), sizes.end(), ',', 'x');
      tokens_.push_back("window" + sizes);
    }
    if (!options_.documents.empty()) {
      const Tensor ids = source("--documents", options_.documents);
      tokens_.push_back("documents" + shape_text(ids));
      bind_shorthand(documents(ids), ids);
    }
  }

  void add_scores() {
    add_expression("score", options_.score);
    if (!options_.softcap.empty()) tokens_.push_back("softcap" + options_.softcap);
    if (options_.alibi) tokens_.emplace_back("alibi");
    if (!options_.bias.empty()) {
      const Tensor t = source("--bias", options_.bias);
      tokens_.push_back("bias" + shape_text(t) + std::string(name(t.dtype)));
      bind_shorthand(bias(t), t);
    }
  }

  void make_slopes() {
    const std::vector<float> slopes = alibi_slopes(result_.problem.heads_q);
    const Tensor t = keep(io::Array(DType::f32, std::array{result_.problem.heads_q}));
    std::copy(slopes.begin(), slopes.end(), static_cast<float*>(t.data));
    bind_shorthand(alibi(t), t);
  }

  const ProblemOptions& options_;
  std::optional<io::SafetensorsFile> file_;
  std::vector<std::string> tokens_;
  RunProblem result_;
};

}  // namespace

RunProblem read_problem(const ProblemOptions& options) { return Reader(options).read(); }

}  // namespace attn::command
