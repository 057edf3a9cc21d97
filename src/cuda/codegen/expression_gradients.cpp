#include "cuda/codegen/expression_gradients.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <span>

#include "core/expr/bindings.hpp"
#include "core/expr/build.hpp"
#include "cuda/codegen/expression_buffers.hpp"
#include "cuda/codegen/expression_factors.hpp"
#include "cuda/codegen/expression_functions.hpp"
#include "cuda/codegen/expression_text.hpp"
#include "cuda/codegen/expression_values.hpp"
#include "cuda/device/expr/gradient_sums.cuh"

namespace attn::cuda {
namespace {

using expr::Expr;

constexpr std::string_view kPoint =
    "float dot, int query, int key, int batch, int head, int seqlen_q, int seqlen_k";
constexpr std::string_view kArguments = "dot, query, key, batch, head, seqlen_q, seqlen_k";

std::string_view type_name(expr::Type type) { return type == expr::Type::int32 ? "int" : "float"; }

std::string value_function(std::string_view name, const Expr& e) {
  const expr::Program program = compile(e);
  return function(
      type_name(e.type()), name, kPoint,
      value_body(program, expr::CudaMath::slope, nullptr, program.instructions.size() - 1));
}

// Views of all that the score reads: what its derivatives read is among it.
std::string views_text(const Expr& score, const expr::Bindings& bindings) {
  std::string text;
  for (const auto& buffer : expression_buffers({}, score)) {
    text += buffer_text(*buffer, described(*buffer, bindings), {.element = true, .shared = true});
  }
  return text;
}

std::string struct_text(std::string_view name, const std::string& body) {
  return fmt::format(
      "#include \"expr/expressions.cuh\"\n#include \"expr/buffer_gradient.cuh\"\n\n"
      "namespace attn::device {{\n\nstruct alignas(8) {} {{\n{}}};\n\n"
      "}}  // namespace attn::device\n",
      name, body);
}

// What is packed beside a derivative is the same for either form.
constexpr expr::TanhSlope kAnyForm = expr::TanhSlope::squares;

// Empty where it is 1.
Expr slope_of(const Expr& score, expr::TanhSlope form) {
  if (score.empty()) return {};
  Expr slope = expr::derivative(score, form);
  return expr::same(slope, Expr(1.0F)) ? Expr() : slope;
}

// e with `what` replaced by `by`.
Expr replaced(const Expr& e, const Expr& what, const Expr& by) {
  if (expr::same(e, what)) return by;
  std::vector<Expr> args;
  for (const Expr& arg : e.node().args) args.push_back(replaced(arg, what, by));
  return args.empty() ? e : expr::rebuild(e, args);
}

// The first tanh in e whose argument reads the score; empty where there is none.
Expr tanh_of_score(const Expr& e) {
  if (!expr::depends_on(e, expr::Op::score)) return {};
  if (e.node().op == expr::Op::tanh) return e;
  for (const Expr& arg : e.node().args) {
    if (Expr found = tanh_of_score(arg); !found.empty()) return found;
  }
  return {};
}

// Where the passes take different forms of tanh (device/expr/small_tanh.cuh), s is off by 2.3e-5
// |s| for |s| up to half of this, so exp(s - LSE) is above 1 by 2^-9 at most.
constexpr float kLargestBound = 128;
// A score that rises with one tanh of S and reads S nowhere else, as softcap does.
struct TanhScore {
  Expr of_tanh;      // the score, its symbol `score` standing for the tanh
  float multiple{};  // of S in the tanh
  float slope{};     // dT/dS is this times (1 - tanh^2)
  bool bounded{};    // a multiple of the tanh and no more, of up to kLargestBound
};
std::optional<TanhScore> tanh_score(const Expr& score) {
  if (score.empty() || may_hide_keys(score)) return std::nullopt;
  const Expr tanh = tanh_of_score(score);
  if (tanh.empty()) return std::nullopt;
  const Expr zero = expr::float32(0), argument = tanh.node().args[0];
  const Expr multiple = expr::derivative(argument);
  if (!expr::is_constant(multiple) ||
      !expr::same(expr::substitute(argument, expr::Op::score, zero), zero) ||
      expr::depends_on(replaced(score, tanh, zero), expr::Op::score)) {
    return std::nullopt;
  }
  TanhScore found{replaced(score, tanh, expr::symbols().score), multiple.node().float_value};
  const Expr factor = expr::derivative(found.of_tanh);
  if (!expr::is_constant(factor) || !(factor.node().float_value > 0)) return std::nullopt;
  found.slope = factor.node().float_value * found.multiple;
  found.bounded = factor.node().float_value <= kLargestBound &&
                  expr::same(expr::substitute(found.of_tanh, expr::Op::score, zero), zero);
  return found;
}

std::string tanh_text(const TanhScore& score) {
  const ScoreFactors factors = score_factors(score.of_tanh);
  std::string text =
      fmt::format("  static constexpr float kTanhMultiple = {:a}f;\n", score.multiple);
  text += fmt::format("  static constexpr float kTanhSlope = {:a}f;\n", score.slope);
  text += fmt::format("  static constexpr float kTanhFactor = {:a}f;\n", factors.after);
  text += fmt::format("  static constexpr bool kIsBounded = {};\n", score.bounded);
  return text + function("float", "of_tanh", kPoint,
                         value_body(compile(score.of_tanh), expr::CudaMath::fast, nullptr,
                                    factors.result));
}

// A place where the score reads a buffer that has a gradient.
struct Load {
  std::size_t name = 0;  // index into the names
  expr::LoadDerivative derivative;
};
std::vector<Load> loads_of(const Expr& score, const std::vector<std::string>& names,
                           expr::TanhSlope form) {
  std::vector<Load> loads;
  for (std::size_t i = 0; i < names.size(); ++i) {
    for (expr::LoadDerivative& d : expr::load_derivatives(score, names[i], form)) {
      loads.push_back({i, std::move(d)});
    }
  }
  return loads;
}

constexpr std::size_t kLeastBytes = 8;  // no struct is empty

}  // namespace

std::string print_slope(const Expr& score, expr::TanhSlope form, const expr::Bindings& bindings) {
  const Expr slope = slope_of(score, form);
  std::string body = fmt::format(
      "  static constexpr bool kHasSlope = {};\n  static constexpr int kLoads = 1;  // of none\n",
      !slope.empty());
  if (!slope.empty()) body += views_text(score, bindings) + value_function("slope", slope);
  const std::optional<TanhScore> of_tanh = tanh_score(score);
  body += fmt::format("  static constexpr bool kIsOfTanh = {};\n", of_tanh.has_value());
  if (of_tanh) body += tanh_text(*of_tanh);
  return struct_text("Slope", body);
}

ExpressionPack slope_pack(const Expr& score) {
  if (slope_of(score, kAnyForm).empty()) return ExpressionPack();
  return ExpressionPack(expression_buffers({}, score));
}

std::size_t slope_bytes(const Expr& score) {
  if (slope_of(score, kAnyForm).empty()) return kLeastBytes;
  return std::max(buffers_bytes(expression_buffers({}, score)), kLeastBytes);
}

std::string print_buffer_gradients(const Expr& score, const std::vector<std::string>& names,
                                   expr::TanhSlope form, const expr::Bindings& bindings) {
  const std::vector<Load> loads = loads_of(score, names, form);
  // Without a load whose value counts, as of a buffer that only a condition reads, all stays 0.
  std::string body =
      fmt::format("  static constexpr int kLoads = {};\n", std::max<std::size_t>(loads.size(), 1));
  body += views_text(score, bindings);
  std::string sums, functions, add, flush;
  for (std::size_t i = 0; i < loads.size(); ++i) {
    sums += fmt::format("  GradientSums sums_{};\n", i);
    const auto& [load, derivative] = loads[i].derivative;
    functions += value_function(fmt::format("factor_{}", i), derivative);
    std::string indices;
    for (std::size_t d = 0; d < load.node().args.size(); ++d) {
      functions += value_function(fmt::format("index_{}_{}", i, d), load.node().args[d]);
      indices += fmt::format(", index_{}_{}({})", i, d, kArguments);
    }
    add += fmt::format("    add_to(pending[{0}], sums_{0}, d_t * factor_{0}({1}){2});\n", i,
                       kArguments, indices);
    flush += fmt::format("    flush_to(pending[{0}], sums_{0});\n", i);
  }
  body += sums + functions;
  body += function("void", "add",
                   fmt::format("PendingSum (&pending)[kLoads], float d_t, {}", kPoint), add);
  body += function("void", "flush", "PendingSum (&pending)[kLoads]", flush);
  return struct_text("BufferGradients", body);
}

BufferGradientsPack::BufferGradientsPack(const Expr& score, const std::vector<std::string>& names)
    : views_(expression_buffers({}, score)) {
  const auto buffers = expression_buffers({}, score);
  for (const Load& load : loads_of(score, names, kAnyForm)) {
    places_.push_back({load.name, *std::ranges::find_if(buffers, [&](const auto& b) {
                         return b->name() == names[load.name];
                       })});
  }
}

std::size_t BufferGradientsPack::size() const noexcept {
  return views_.size() + places_.size() * sizeof(device::GradientSums);
}

void BufferGradientsPack::pack(std::span<double* const> sums, const expr::Bindings& bindings,
                               std::byte* to) const {
  views_.pack(bindings, to);
  to += views_.size();
  for (const Place& place : places_) {
    const Tensor& tensor = described(*place.buffer, bindings);
    device::GradientSums packed{sums[place.name], {1, 1, 1, 1}};
    for (std::int32_t d = 0; d < tensor.rank; ++d) {
      packed.sizes[d] = tensor.shape[static_cast<std::size_t>(d)];
    }
    std::memcpy(to, &packed, sizeof(packed));
    to += sizeof(packed);
  }
}

std::size_t buffer_gradients_bytes(const Expr& score, const std::vector<std::string>& names) {
  const std::size_t views = buffers_bytes(expression_buffers({}, score));
  return std::max(views + loads_of(score, names, kAnyForm).size() * sizeof(device::GradientSums),
                  kLeastBytes);
}

}  // namespace attn::cuda
