#include "dist/local_problem.hpp"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "core/expr/build.hpp"
#include "dist/rewrite.hpp"

namespace attn::dist {
namespace {

using core::Runs;
using expr::Expr;
using expr::Op;

// A table of i32 that an expression owns.
expr::Buffer table(const std::string& name, std::vector<std::int32_t> values,
                   std::vector<std::int64_t> shape) {
  auto owner = std::make_shared<std::vector<std::int32_t>>(std::move(values));
  Tensor t = shape.size() == 1 ? tensor(owner->data(), {shape[0]})
                               : tensor(owner->data(), {shape[0], shape[1]});
  return {kOwnBuffers + name, t, owner};
}

// Numbers of runs, the same for all sequences or read by `batch`.
class RunNumbers {
 public:
  // member: of Run. missing: the number of runs that a sequence has not.
  RunNumbers(const std::vector<Runs>& of, std::size_t most, std::int32_t core::Run::*member,
             std::int32_t missing, const std::string& name)
      : first_(of[0]), member_(member) {
    alike_ = std::all_of(of.begin(), of.end(), [&](const Runs& runs) { return runs == of[0]; });
    if (alike_) return;
    std::vector<std::int32_t> values;
    for (const Runs& runs : of) {
      for (std::size_t i = 0; i < most; ++i) {
        values.push_back(i < runs.size() ? runs[i].*member : missing);
      }
    }
    const auto rows = static_cast<std::int64_t>(of.size());
    buffer_ = std::make_shared<expr::Buffer>(
        table(name, std::move(values), {rows, static_cast<std::int64_t>(most)}));
  }
  Expr operator()(std::size_t i) const {
    if (alike_) return expr::int32(first_[i].*member_);
    return (*buffer_)({expr::symbols().batch, expr::int32(static_cast<std::int32_t>(i))});
  }

 private:
  Runs first_;
  std::int32_t core::Run::*member_;
  bool alike_ = false;
  std::shared_ptr<expr::Buffer> buffer_;
};

// The place in the whole of `symbol`, a row of a part with these runs.
Expr whole_place(const Expr& symbol, const std::vector<Runs>& of, const std::string& name) {
  if (of.empty()) return symbol;
  std::size_t most = 0;
  for (const Runs& runs : of) most = std::max(most, runs.size());
  const RunNumbers begin(of, most, &core::Run::begin, std::numeric_limits<std::int32_t>::max(),
                         name + "_begin");
  const RunNumbers shift(of, most, &core::Run::shift, 0, name + "_shift");
  const auto among = [&](const auto& self, std::size_t first, std::size_t last) -> Expr {
    if (first + 1 == last) return symbol + shift(first);
    const std::size_t middle = first + (last - first) / 2;
    return select(symbol < begin(middle), self(self, first, middle), self(self, middle, last));
  };
  return among(among, 0, most);
}

Expr whole_length(const Side& side, const std::string& name) {
  if (side.used.empty()) return expr::int32(0);
  if (std::all_of(side.used.begin(), side.used.end(),
                  [&](std::int64_t n) { return n == side.used[0]; })) {
    return expr::int32(static_cast<std::int32_t>(side.used[0]));
  }
  return table(name, {side.used.begin(), side.used.end()},
               {static_cast<std::int64_t>(side.used.size())})[expr::symbols().batch];
}

struct LocalSide {
  std::vector<Runs> runs{};
  std::vector<std::int32_t> cu{}, used{};
  std::int64_t longest = 0;
};

LocalSide local_side(const RowList& rows, const Side& side) {
  LocalSide local;
  std::vector<std::int32_t> used;
  bool is_whole = true;
  for (std::size_t i = 0; i < side.start.size(); ++i) {
    const auto b = static_cast<std::int64_t>(i);
    const std::int64_t capacity = local_capacity(rows, side, b);
    local.runs.push_back(local_runs(rows, side, b));
    local.longest = std::max(local.longest, capacity);
    used.push_back(static_cast<std::int32_t>(local_used(rows, side, b)));
    is_whole = is_whole && used.back() == capacity;
    if (side.packed) local.cu.push_back(static_cast<std::int32_t>(local_start(rows, side, b)));
  }
  if (side.packed) local.cu.push_back(static_cast<std::int32_t>(count(rows)));
  if (!side.packed) local.longest = count(rows);
  if (!is_whole) local.used = std::move(used);
  return local;
}

}  // namespace

expr::Bindings own_tables(const Problem& problem) {
  expr::Bindings tables;
  for (const Expr* e : {&problem.mask, &problem.score}) {
    if (e->empty()) continue;
    for (const auto& buffer : expr::buffers(*e)) {
      const auto is_it = [&](const auto& bound) { return bound.first == buffer->name(); };
      if (!buffer->name().starts_with(kOwnBuffers) || std::ranges::any_of(tables, is_it)) continue;
      tables.emplace_back(buffer->name(), buffer->tensor());
    }
  }
  return tables;
}

LocalProblem local_problem(const Problem& problem, const Side& side_q, const Side& side_k,
                           const RowList& rows, const RowList& gathered) {
  LocalSide q = local_side(rows, side_q);
  LocalSide k = local_side(gathered, side_k);
  const expr::Symbols& s = expr::symbols();
  const Rewriter rewrite({{Op::query, whole_place(s.query, q.runs, "query")},
                          {Op::key, whole_place(s.key, k.runs, "key")},
                          {Op::seqlen_q, whole_length(side_q, "seqlen_q")},
                          {Op::seqlen_k, whole_length(side_k, "seqlen_k")}});
  LocalProblem local;
  local.problem = problem;
  local.problem.seqlen_q = q.longest;
  local.problem.seqlen_k = k.longest;
  local.problem.softmax_scale = problem.scale();
  local.problem.mask = rewrite(problem.mask);
  local.problem.score = rewrite(problem.score);
  local.places = std::make_shared<core::Places>(
      core::Places{.query = std::move(q.runs), .key = std::move(k.runs)});
  local.cu_q = std::move(q.cu);
  local.cu_k = std::move(k.cu);
  local.used_q = std::move(q.used);
  local.used_k = std::move(k.used);
  return local;
}

}  // namespace attn::dist
