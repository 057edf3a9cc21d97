// Checks of a rank's arguments.
#include <fmt/format.h>

#include <cstddef>
#include <optional>

#include "attn/cache_type.hpp"
#include "attn/error.hpp"
#include "core/cache_type.hpp"
#include "core/text/echo.hpp"
#include "core/validate/validate.hpp"
#include "core/validate/validate_parts.hpp"
#include "dist/call.hpp"

namespace attn::dist {
namespace {

using core::ArgumentCheck;
using core::Label;
using core::Shape;
using Tensors = std::pmr::vector<core::NamedTensor>;

constexpr std::string_view kKnown = "the plan has the lengths";

class Checker {
 public:
  explicit Checker(const PlanData& plan)
      : plan_(plan),
        p_(plan.problem),
        check_(&plan.problem, plan.options.local.device),
        rank_(static_cast<std::size_t>(plan.group->rank())) {}

  void inputs(const Inputs& in, const attn::Context& context) {
    const RowList &own = plan_.rows[rank_], &keys = plan_.keys[rank_];
    stored("q", in.q, plan_.q, own, p_.heads_q, core::type_of_q(p_), p_.head_dim);
    stored("k", in.k, plan_.k, keys, p_.heads_k, core::type_of_k(p_), p_.head_dim);
    stored("v", in.v, plan_.k, keys, p_.heads_k, core::type_of_v(p_), p_.head_dim_v);
    Problem held = p_;
    held.seqlen_q = count(own);
    held.seqlen_k = count(keys);
    core::check_scales(check_, held, in);
    check_.not_given("cu_seqlens_q", in.cu_seqlens_q, kKnown);
    check_.not_given("cu_seqlens_k", in.cu_seqlens_k, kKnown);
    check_.not_given("seqused_q", in.seqused_q, kKnown);
    check_.not_given("seqused_k", in.seqused_k, kKnown);
    check_.not_given("page_table", in.page_table, "layout_k is not paged");
    check_.not_given("prefix_k", in.prefix_k, "problem.seqlen_prefix is 0");
    check_.not_given("prefix_v", in.prefix_v, "problem.seqlen_prefix is 0");
    check_.not_given("prefix_page_table", in.prefix_page_table, "problem.paged_prefix is false");
    check_.not_given("key_list", in.key_list, "problem.key_list is 0");
    check_.not_given("workspace", context.workspace, "a rank's call takes its own");
    if (p_.sink) {
      check_.tensor("sink", in.sink, DType::f32, {p_.heads_q});
      check_.contiguous("sink", in.sink);
    } else {
      check_.not_given("sink", in.sink, "problem.sink is false");
    }
    core::check_rng_state(check_, p_.dropout, in.rng_state);
    buffers_.emplace(core::check_buffers(check_, p_, in, memory_.resource()));
    for (const core::BoundBuffer& buffer : *buffers_) {
      add_read({"buffer", buffer.name}, buffer.tensor);
    }
    add_read("scale_q", in.scale_q);
    add_read("scale_k", in.scale_k);
    add_read("scale_v", in.scale_v);
    add_read("sink", in.sink);
    add_read("rng_state", in.rng_state);
  }

  void o(const Label& name, const Tensor& t, bool written) {
    like_q(name, t, p_.head_dim_v, written, core::type_of_o(p_));
  }

  void lse(const Label& name, const Tensor& t, bool written) {
    const DType dtype = p_.dtype == DType::f64 ? DType::f64 : DType::f32;
    const std::int64_t rows = count(plan_.rows[rank_]);
    check_.tensor(name, t, dtype,
                  plan_.q.packed ? Shape{p_.heads_q, rows} : Shape{p_.batch, p_.heads_q, rows});
    (written ? written_ : read_).push_back({name, t});
  }

  void max_logit(const Tensor& t) {
    check_.tensor("max_logit", t, p_.dtype == DType::f64 ? DType::f64 : DType::f32, {p_.heads_q});
    written_.push_back({"max_logit", t});
  }

  void gradients(const Gradients& g) {
    if (g.dq.given()) like_q("dq", g.dq, p_.head_dim, true, p_.dtype);
    if (g.dk.given()) like_k("dk", g.dk, p_.head_dim, true);
    if (g.dv.given()) like_k("dv", g.dv, p_.head_dim_v, true);
    core::check_sum_gradients(check_, p_, g, *buffers_, written_);
  }

  void apart() { check_.disjoint(written_, read_); }

 private:
  void add_read(const Label& name, const Tensor& t) {
    if (t.given()) read_.push_back({name, t});
  }
  void rows(const Label& name, const Tensor& t, const Side& side, const RowList& list,
            std::int64_t heads, DType dtype, std::int64_t dim, bool written) {
    const std::int64_t rows = count(list);
    check_.tensor(name, t, dtype,
                  side.packed ? Shape{rows, heads, dim} : Shape{p_.batch, rows, heads, dim});
    check_.contiguous_rows(name, t);
    (written ? written_ : read_).push_back({name, t});
  }
  void stored(const Label& name, const Tensor& t, const Side& side, const RowList& list,
              std::int64_t heads, CacheType type, std::int64_t dim) {
    rows(name, t, side, list, heads, storage_dtype(type), row_size(type, dim), false);
  }
  void like_q(const Label& name, const Tensor& t, std::int64_t dim, bool written, DType dtype) {
    rows(name, t, plan_.q, plan_.rows[rank_], p_.heads_q, dtype, dim, written);
  }
  void like_k(const Label& name, const Tensor& t, std::int64_t dim, bool written) {
    rows(name, t, plan_.k, plan_.keys[rank_], p_.heads_k, p_.dtype, dim, written);
  }

  const PlanData& plan_;
  const Problem& p_;
  ArgumentCheck check_;
  std::size_t rank_;
  core::CallMemory memory_;
  std::optional<std::pmr::vector<core::BoundBuffer>> buffers_;
  Tensors read_{&memory_.resource()}, written_{&memory_.resource()};
};

}  // namespace

void check_forward(const PlanData& plan, const Inputs& inputs, const Outputs& outputs,
                   const attn::Context& context) {
  Checker check(plan);
  check.inputs(inputs, context);
  check.o("o", outputs.o, true);
  if (outputs.lse.given()) check.lse("lse", outputs.lse, true);
  if (outputs.max_logit.given()) check.max_logit(outputs.max_logit);
  check.apart();
}

void check_backward(const PlanData& plan, const Inputs& inputs, const Outputs& outputs,
                    const OutputGradients& d_outputs, const Gradients& gradients,
                    const attn::Context& context) {
  core::validate_options(plan.problem, Phase::backward, plan.options.local, context);
  Checker check(plan);
  check.inputs(inputs, context);
  check.o("o", outputs.o, false);
  check.lse("lse", outputs.lse, false);
  check.o("d_o", d_outputs.o, false);
  if (d_outputs.lse.given()) check.lse("d_lse", d_outputs.lse, false);
  check.gradients(gradients);
  check.apart();
}

}  // namespace attn::dist
