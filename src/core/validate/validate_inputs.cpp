// Checks of Inputs: shapes, strides and dtypes of Q, K, V and of what goes with them, and the
// buffers that mask and score read.
#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "core/cache_type.hpp"
#include "core/expr/build.hpp"
#include "core/text/echo.hpp"
#include "core/validate/validate_parts.hpp"

namespace attn::core {
namespace {

using attn::expr::Buffer;

const Tensor* bound(const attn::expr::Bindings& bindings, const std::string& name) {
  for (const auto& [bound_name, tensor] : bindings) {
    if (bound_name == name) return &tensor;
  }
  return nullptr;
}

using Buffers = std::pmr::vector<const Buffer*>;

// Mask first; each name once. One name must mean one declaration.
Buffers declared_buffers(const ArgumentCheck& check, const Problem& problem,
                         std::pmr::memory_resource& memory) {
  Buffers declared(&memory);
  Buffers read(&memory);
  for (const attn::expr::Expr* e : {&problem.mask, &problem.score}) {
    if (e->empty()) continue;
    read.clear();
    attn::expr::collect_buffers(*e, read);
    for (const Buffer* buffer : read) {
      const auto same_name =
          std::find_if(declared.begin(), declared.end(),
                       [&](const Buffer* other) { return other->name() == buffer->name(); });
      if (same_name == declared.end()) {
        declared.push_back(buffer);
        continue;
      }
      const Tensor& a = (*same_name)->tensor();
      const Tensor& b = buffer->tensor();
      if (!attn::expr::same_tensor(a, b)) {
        check.refuse(
            fmt::format("buffer '{}' is {} in mask and {} in score; accepted is one tensor "
                        "a name",
                        buffer->name(), to_string(a), to_string(b)));
      }
    }
  }
  return declared;
}

std::string names_of(const Buffers& declared) {
  std::string names;
  for (const Buffer* buffer : declared) {
    names += fmt::format("{}'{}'", names.empty() ? "" : ", ", buffer->name());
  }
  return names.empty() ? "none, as mask and score read no buffer" : echo(names, 300);
}

void check_binding_names(const ArgumentCheck& check, const Buffers& declared,
                         const attn::expr::Bindings& bindings) {
  for (auto binding = bindings.begin(); binding != bindings.end(); ++binding) {
    const std::string& name = binding->first;
    if (std::none_of(declared.begin(), declared.end(),
                     [&](const Buffer* buffer) { return buffer->name() == name; })) {
      check.refuse(
          fmt::format("buffers names '{}'; accepted are {}", echo(name), names_of(declared)));
    }
    if (std::any_of(bindings.begin(), binding,
                    [&](const auto& earlier) { return earlier.first == name; })) {
      check.refuse(fmt::format("buffers names '{}' twice; accepted is each name once", echo(name)));
    }
  }
}

void check_scalar(const ArgumentCheck& check, const Label& label, DType dtype, const Tensor& t) {
  if (t.rank != 0 || t.dtype != dtype || t.device != Device{}) {
    check.refuse(fmt::format("{} is {} of rank {} on {}; accepted is a scalar, {} of rank 0 on cpu",
                             to_string(label), name(t.dtype), t.rank, to_string(t.device),
                             name(dtype)));
  }
  if (t.data == nullptr) {
    check.refuse(fmt::format("{} is a scalar without a value; accepted is one bound to its name",
                             to_string(label)));
  }
  check.aligned(label, t);
}

// As shape_like_q and shape_like_k, without the last dimension.
Shape shape_of_scales_q(const Problem& p, std::int64_t rows) {
  if (p.layout_q == Layout::packed) return {rows, p.heads_q};
  return {p.batch, p.seqlen_q, p.heads_q};
}
Shape shape_of_scales(const Problem& p, std::int64_t rows) {
  if (p.layout_k == Layout::packed) return {rows, p.heads_k};
  if (p.layout_k == Layout::paged) return {rows, p.page_size, p.heads_k};
  return {p.batch, p.seqlen_k, p.heads_k};
}

// Scales by rank 1: one, or one a head. False where a given tensor is of another rank.
bool check_scale_of_heads(const ArgumentCheck& check, std::string_view name, const Tensor& t,
                          std::string_view heads, std::int64_t count) {
  check.view(name, t);
  if (t.rank != 1) return false;
  if (t.dtype != DType::f32 || (t.shape[0] != 1 && t.shape[0] != count)) {
    check.refuse(
        fmt::format("{0} is {1}; accepted of rank 1 are f32[1] and f32[{2}], {2} being {3}", name,
                    to_string(t), heads, count));
  }
  return true;
}

// Scales of a type that has some: of all keys and heads, or of fewer by rank 1.
void check_scale(const ArgumentCheck& check, const Problem& p, const Inputs& inputs,
                 std::string_view name, const Tensor& t, std::string_view field, CacheType type) {
  if (!t.given()) return;
  if (!is_scaled(type)) {
    check.refuse(fmt::format("{} is {} and {} is {}; accepted with e4m3, e5m2 and i8 alone", name,
                             to_string(t), field, attn::name(type)));
  }
  if (check_scale_of_heads(check, name, t, "heads_k", p.heads_k)) return;
  if (p.seqlen_prefix > 0 && !p.paged_prefix) {
    check.refuse(fmt::format("{} is {}; accepted beside prefix_k are f32[1] and f32[heads_k]", name,
                             to_string(t)));
  }
  check.tensor(name, t, DType::f32, shape_of_scales(p, inputs.k.shape[0]));
}

void check_scale_q(const ArgumentCheck& check, const Problem& p, const Inputs& inputs) {
  const Tensor& t = inputs.scale_q;
  if (!t.given()) return;
  if (!has_own_type_q(p)) {
    check.refuse(fmt::format("scale_q is {} and type_q is as_q; accepted with e4m3 and e5m2 alone",
                             to_string(t)));
  }
  if (check_scale_of_heads(check, "scale_q", t, "heads_q", p.heads_q)) return;
  check.tensor("scale_q", t, DType::f32, shape_of_scales_q(p, inputs.q.shape[0]));
}

// Whether the prefix is there where the problem has one; its pages are checked with those of K.
void check_prefix(const ArgumentCheck& check, const Problem& p, const Inputs& inputs) {
  const bool is_given = inputs.prefix_k.given() || inputs.prefix_v.given();
  if (p.paged_prefix || (p.seqlen_prefix == 0 && !is_given)) {
    const std::string_view why =
        p.paged_prefix ? "problem.paged_prefix is true" : "problem.seqlen_prefix is 0";
    check.not_given("prefix_k", inputs.prefix_k, why);
    check.not_given("prefix_v", inputs.prefix_v, why);
    return;
  }
  check.tensor("prefix_k", inputs.prefix_k, storage_dtype(type_of_k(p)),
               {p.seqlen_prefix, p.heads_k, row_size(type_of_k(p), p.head_dim)});
  check.contiguous_rows("prefix_k", inputs.prefix_k);
  check.tensor("prefix_v", inputs.prefix_v, storage_dtype(type_of_v(p)),
               {p.seqlen_prefix, p.heads_k, row_size(type_of_v(p), p.head_dim_v)});
  check.contiguous_rows("prefix_v", inputs.prefix_v);
}

}  // namespace

std::pmr::vector<BoundBuffer> check_buffers(const ArgumentCheck& check, const Problem& problem,
                                            const Inputs& inputs,
                                            std::pmr::memory_resource& memory) {
  const Buffers declared = declared_buffers(check, problem, memory);
  check_binding_names(check, declared, inputs.buffers);
  std::pmr::vector<BoundBuffer> buffers(&memory);
  for (const Buffer* buffer : declared) {
    const Label label("buffer", buffer->name());
    const Tensor& declaration = buffer->tensor();
    const Tensor* binding = bound(inputs.buffers, buffer->name());
    const Tensor& t = binding != nullptr ? *binding : declaration;
    if (attn::expr::is_scalar(*buffer)) {
      check_scalar(check, label, declaration.dtype, t);
      buffers.push_back({buffer->name(), t});
      continue;
    }
    // A size of 0 stands for that of the binding, unless nothing is there to be read.
    const bool is_read =
        problem.batch > 0 && problem.seqlen_q > 0 && problem.seqlen_k + problem.seqlen_prefix > 0;
    if (binding == nullptr && t.data == nullptr && is_read) {
      check.refuse(
          fmt::format("{} is {} without data; accepted is a tensor with data, in the problem's "
                      "Buffer or bound to its name in buffers",
                      to_string(label), to_string(t)));
    }
    check.view(label, t);
    if (t.dtype != declaration.dtype || t.rank != declaration.rank) {
      check.refuse(fmt::format("{} is {}; accepted are {} tensors of rank {}", to_string(label),
                               to_string(t), name(declaration.dtype), declaration.rank));
    }
    for (std::int32_t k = 0; k < t.rank; ++k) {
      const bool open = declaration.shape[k] == 0 && declaration.data == nullptr;
      if (!open && declaration.shape[k] != t.shape[k]) {
        check.refuse(fmt::format("{} is {}; accepted is size {} in dimension {}, as declared",
                                 to_string(label), to_string(t), declaration.shape[k], k));
      }
    }
    check_shorthand_shape(check, problem, *buffer, t);
    buffers.push_back({buffer->name(), t});
  }
  return buffers;
}

void check_scales(const ArgumentCheck& check, const Problem& p, const Inputs& inputs) {
  check_scale_q(check, p, inputs);
  check_scale(check, p, inputs, "scale_k", inputs.scale_k, "type_k", type_of_k(p));
  check_scale(check, p, inputs, "scale_v", inputs.scale_v, "type_v", type_of_v(p));
}

void check_rng_state(const ArgumentCheck& check, const Dropout& dropout, const Tensor& rng_state) {
  if (!dropout.rng_state) {
    check.not_given("rng_state", rng_state, "problem.dropout.rng_state is false");
    return;
  }
  check.tensor("rng_state", rng_state, DType::i64, {2});
  check.contiguous("rng_state", rng_state);
}

Shape shape_like_q(const Problem& problem, std::int64_t rows, std::int64_t dim) {
  if (problem.layout_q == Layout::packed) return {rows, problem.heads_q, dim};
  return {problem.batch, problem.seqlen_q, problem.heads_q, dim};
}

Shape shape_like_k(const Problem& problem, std::int64_t rows, std::int64_t dim) {
  if (problem.layout_k == Layout::packed) return {rows, problem.heads_k, dim};
  if (problem.layout_k == Layout::paged) return {rows, problem.page_size, problem.heads_k, dim};
  return {problem.batch, problem.seqlen_k, problem.heads_k, dim};
}

std::pmr::vector<BoundBuffer> check_inputs(const ArgumentCheck& check, const Problem& p,
                                           const Inputs& inputs,
                                           std::pmr::memory_resource& memory) {
  check.tensor("q", inputs.q, storage_dtype(type_of_q(p)), shape_like_q(p, kAnySize, p.head_dim));
  check.contiguous_rows("q", inputs.q);
  const CacheType type_k = type_of_k(p), type_v = type_of_v(p);
  check.tensor("k", inputs.k, storage_dtype(type_k),
               shape_like_k(p, kAnySize, row_size(type_k, p.head_dim)));
  check.contiguous_rows("k", inputs.k);
  check.tensor("v", inputs.v, storage_dtype(type_v),
               shape_like_k(p, inputs.k.shape[0], row_size(type_v, p.head_dim_v)));
  check.contiguous_rows("v", inputs.v);
  check_scales(check, p, inputs);
  check_prefix(check, p, inputs);
  check_sequences(check, p, inputs);
  check_key_list(check, p, inputs);
  if (p.sink) {
    check.tensor("sink", inputs.sink, DType::f32, {p.heads_q});
    check.contiguous("sink", inputs.sink);
  } else {
    check.not_given("sink", inputs.sink, "problem.sink is false");
  }
  check_rng_state(check, p.dropout, inputs.rng_state);
  std::pmr::vector<BoundBuffer> buffers = check_buffers(check, p, inputs, memory);
  check_pages(check, p, inputs);
  return buffers;
}

}  // namespace attn::core
