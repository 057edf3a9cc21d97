#include "cpu/expressions.hpp"

#include <algorithm>

#include "core/expr/build.hpp"
#include "cpu/tile_ops.hpp"
#include "cpu/workspace.hpp"

namespace attn::cpu {
namespace {

// What the products of the plan's run multiply.
DType operand_of(const Plan& plan) { return tile_ops(plan.isa, plan.compute).operand; }

// natural(e): e as the tiles' scores take it.
template <class Natural>
std::vector<LoadProgram> compile_loads(const expr::Expr& score, std::string_view buffer,
                                       const Natural& natural) {
  std::vector<LoadProgram> loads;
  for (const expr::LoadDerivative& load : expr::load_derivatives(score, buffer)) {
    LoadProgram l;
    l.load = load.load;
    l.has_factor = !expr::same(load.derivative, expr::Expr(1.0f));
    if (l.has_factor) l.factor = expr::compile(natural(load.derivative));
    for (const expr::Expr& index : load.load.node().args) l.index.push_back(expr::compile(index));
    loads.push_back(std::move(l));
  }
  return loads;
}

}  // namespace

Expressions::Expressions(const Plan& plan)
    : core::MadeFor{Backend::cpu, plan.phase},
      mask_(plan.problem.mask),
      score_(plan.problem.score),
      scale_(plan.problem.scale()),
      operand_(operand_of(plan)) {
  if (!mask_.empty()) mask_program_ = expr::compile(mask_);
  if (score_.empty()) return;
  // f32 operands have softmax_scale in Q; of bf16 operands the expression takes it.
  const auto natural = [&](const expr::Expr& e) {
    return operand_ == DType::f32
               ? e
               : expr::substitute(e, expr::Op::score,
                                  static_cast<float>(scale_) * expr::symbols().score);
  };
  score_program_ = expr::compile(natural(score_));
  if (phase == Phase::forward) return;
  const expr::Expr derivative = expr::derivative(score_);
  if (!expr::same(derivative, expr::Expr(1.0f)))
    derivative_program_ = expr::compile(natural(derivative));
  for (const auto& buffer : expr::buffers(score_)) {
    if (!is_floating(buffer->tensor().dtype) || expr::is_scalar(*buffer)) continue;
    buffers_.push_back({buffer->name(), compile_loads(score_, buffer->name(), natural)});
    gradient_elements_ += buffer->tensor().size();
  }
}

const Expressions* Expressions::of(const Plan& plan) {
  const auto* e = static_cast<const Expressions*>(core::made_for(plan));
  const bool same = e->mask_.get() == plan.problem.mask.get() &&
                    e->score_.get() == plan.problem.score.get() &&
                    e->scale_ == plan.problem.scale() && e->operand_ == operand_of(plan);
  return same ? e : nullptr;
}

const std::vector<LoadProgram>& Expressions::loads(std::string_view buffer) const {
  return std::find_if(buffers_.begin(), buffers_.end(),
                      [&](const BufferLoads& b) { return b.name == buffer; })
      ->loads;
}

template <class Visit>
void Expressions::for_each_program(const Visit& visit) const {
  visit(mask_program_);
  visit(score_program_);
  visit(derivative_program_);
  for (const BufferLoads& buffer : buffers_) {
    for (const LoadProgram& load : buffer.loads) {
      visit(load.factor);
      for (const expr::Program& index : load.index) visit(index);
    }
  }
}

std::size_t Expressions::scratch_floats() const {
  std::size_t floats = 0;
  for_each_program(
      [&](const expr::Program& program) { floats = std::max(floats, program.scratch_floats); });
  return floats;
}

std::size_t Expressions::most_instructions() const {
  std::size_t most = 0;
  for_each_program(
      [&](const expr::Program& program) { most = std::max(most, program.instructions.size()); });
  return most;
}

std::size_t Expressions::view_bytes() const {
  std::size_t bytes = 0;
  for_each_program([&](const expr::Program& program) {
    // The programs of a load take, too, what buffers.cpp keeps beside the views.
    bytes += aligned(program.buffers.size() * sizeof(expr::BufferView)).bytes() +
             aligned(kMaxRank * sizeof(expr::BoundProgram)).bytes();
  });
  return bytes;
}

}  // namespace attn::cpu
