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

namespace attn::cuda {
namespace {

using expr::Expr;

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
  return expr::rewrite(e, [&](const Expr& part, const std::vector<Expr>& args) {
    return expr::same(part, what) ? by : expr::rebuild(part, args);
  });
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

// Where the passes take different forms of tanh (device/expr/small_tanh.cuh), s is off by 2.8e-5
// |s| in f16 for |s| up to half of this, so exp(s - LSE) is above 1 by 2^-9 at most; in bf16, whose
// polynomial errs by 4.8e-4, by 2^-6.
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
  ScoreFactors factors = score_factors(score.of_tanh);
  factors.multiple.assign(factors.multiple.size(), -1);  // each is computed
  std::string text =
      fmt::format("  static constexpr float kTanhMultiple = {:a}f;\n", score.multiple);
  text += fmt::format("  static constexpr float kTanhSlope = {:a}f;\n", score.slope);
  text += fmt::format("  static constexpr float kTanhFactor = {:a}f;\n", factors.after);
  text += fmt::format("  static constexpr bool kIsBounded = {};\n", score.bounded);
  return text + function("float", "of_tanh",
                         "float dot, int query, int key_first, int batch, int head, int seqlen_q, "
                         "int seqlen_k, int step",
                         value_body(compile(score.of_tanh), expr::CudaMath::fast, &factors,
                                    factors.result));
}

constexpr std::size_t kLeastBytes = 8;  // no struct is empty

}  // namespace

std::string print_slope(const Expr& score, expr::TanhSlope form, const PrintedBuffers& printed) {
  const Expr slope = slope_of(score, form);
  std::string body = fmt::format(
      "  static constexpr bool kHasSlope = {};\n  static constexpr int kLoads = 1;  // of none\n",
      !slope.empty());
  if (!slope.empty()) body += views_text(score, printed) + value_function("slope", slope);
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

}  // namespace attn::cuda
