#include "core/problem/prefix_parts.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <limits>

#include "attn/error.hpp"
#include "core/expr/build.hpp"
#include "core/problem/prefix_expressions.hpp"
#include "core/tensor/size.hpp"

namespace attn::core {
namespace {

// Fewer keys than these are not worth a pass of their own.
constexpr std::int64_t kLeastShared = 128;
// The rest begins at a whole block of keys of every kernel, and, paged, at a page.
constexpr std::int64_t kBlock = 64;

// More rows of all sequences are not taken as one: kernels count rows in int32.
constexpr std::int64_t kMostRows = std::int64_t{1} << 30;

std::int64_t all_rows(const Problem& p) {
  const Size rows = Size(p.batch) * p.seqlen_q;
  return rows.fits() ? rows.value() : std::numeric_limits<std::int64_t>::max();
}

std::int64_t shared_keys(const Problem& p) {
  if (all_rows(p) > kMostRows) return 0;
  if (!same_for_all_queries(p.score)) return 0;
  std::int64_t low = 0, high = p.seqlen_prefix;  // keys that are seen, and that may be
  while (low < high) {
    const std::int64_t middle = (low + high + 1) / 2;
    if (sees_first_keys(p, middle)) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  if (low < p.seqlen_prefix) {
    low -= low % kBlock;
    if (p.paged_prefix) low -= low % p.page_size;
  }
  return low < std::min(kLeastShared, p.seqlen_prefix) ? 0 : low;
}

Problem without_prefix(const Problem& p) {
  Problem part = p;
  part.softmax_scale = p.scale();
  part.seqlen_prefix = 0;
  part.paged_prefix = false;
  return part;
}

// A problem over keys of the prefix.
Problem over_prefix(const Problem& p, std::int64_t keys) {
  Problem part = without_prefix(p);
  part.seqlen_k = keys;
  part.sink = false;
  if (!p.paged_prefix) {
    part.layout_k = Layout::dense;
    part.page_size = 0;
  }
  return part;
}

expr::Expr own_length(const Problem& p, OwnLengths lengths) {
  const auto& s = expr::symbols();
  const auto declared = [](const char* name, std::int64_t size) {
    const std::int32_t* const nothing = nullptr;
    return expr::Buffer(name, tensor(nothing, DType::i32, {size}));
  };
  switch (lengths) {
    case OwnLengths::problem:
      break;
    case OwnLengths::cu_seqlens: {
      const expr::Buffer starts = declared(kOwnStarts, p.batch + 1);
      return starts[s.batch + 1] - starts[s.batch];
    }
    case OwnLengths::seqused:
      return declared(kOwnLengths, p.batch)[s.batch];
  }
  return expr::int32(static_cast<std::int32_t>(p.seqlen_k));
}

// Parts bind buffers of these names beside those of the caller.
void refuse_own_names(const Problem& p) {
  for (const expr::Expr* e : {&p.mask, &p.score}) {
    for (const auto& buffer : expr::buffers(*e)) {
      if (buffer->name() != kOwnLengths && buffer->name() != kOwnStarts) continue;
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("a buffer is called {}; accepted with a shared prefix is any name "
                              "but {} and {}",
                              buffer->name(), kOwnLengths, kOwnStarts));
    }
  }
}

// Rows [first, first + keys) of [prefix, heads, dim] as K or V of sequences that share them.
Tensor shared_rows(const Tensor& t, std::int64_t batch, std::int64_t first, std::int64_t keys) {
  Tensor out = t;
  out.rank = 4;
  out.shape = {batch, keys, t.shape[1], t.shape[2]};
  out.strides = {0, t.strides[0], t.strides[1], t.strides[2]};
  if (t.data != nullptr && first > 0) {
    out.data = static_cast<std::byte*>(t.data) +
               first * t.strides[0] * static_cast<std::int64_t>(size_of(t.dtype));
  }
  return out;
}

// Puts keys [first, first + keys) of the prefix into K and V, for `batch` sequences.
void take_keys(const Problem& problem, const Inputs& inputs, std::int64_t batch, std::int64_t first,
               std::int64_t keys, Inputs& to) {
  to.scale_k = inputs.scale_k;  // beside prefix_k of rank 1 (validate_inputs.cpp)
  to.scale_v = inputs.scale_v;
  if (problem.paged_prefix) {
    to.k = inputs.k;
    to.v = inputs.v;
    const Tensor& table = inputs.prefix_page_table;
    const std::int64_t page = first / problem.page_size;
    to.page_table = table;
    to.page_table.rank = 2;
    to.page_table.shape = {batch, table.shape[0] - page, 0, 0};
    to.page_table.strides = {0, 1, 0, 0};
    to.page_table.data = static_cast<std::byte*>(table.data) +
                         page * static_cast<std::int64_t>(size_of(table.dtype));
    return;
  }
  to.k = shared_rows(inputs.prefix_k, batch, first, keys);
  to.v = shared_rows(inputs.prefix_v, batch, first, keys);
}

}  // namespace

PrefixParts prefix_parts(const Problem& problem, OwnLengths lengths, bool as_one) {
  refuse_own_names(problem);
  PrefixParts parts;
  const std::int64_t prefix = problem.seqlen_prefix;
  parts.shared_keys = as_one ? shared_keys(problem) : 0;
  if (parts.shared_keys > 0) {
    Problem& shared = parts.shared.emplace(over_prefix(problem, parts.shared_keys));
    shared.batch = 1;
    shared.seqlen_q = all_rows(problem);
    shared.mask = {};
  }
  if (parts.shared_keys < prefix) {
    Problem& rest = parts.rest.emplace(over_prefix(problem, prefix - parts.shared_keys));
    const expr::Expr own = own_length(problem, lengths);
    for (expr::Expr* e : {&rest.mask, &rest.score}) {
      *e = over_prefix_keys(*e, parts.shared_keys, own);
    }
  }
  parts.own = without_prefix(problem);
  for (expr::Expr* e : {&parts.own.mask, &parts.own.score}) *e = over_own_keys(*e, prefix);
  return parts;
}

bool is_in_line(const Problem& problem, const Inputs& inputs) {
  if (problem.layout_q == Layout::packed || problem.batch == 1 || problem.seqlen_q == 1)
    return true;
  const auto in_line = [&](const Tensor& t) {
    return t.strides[0] == problem.seqlen_q * t.strides[1];
  };
  return in_line(inputs.q) && (inputs.scale_q.rank <= 1 || in_line(inputs.scale_q));
}

bool counts_unused_rows(const Problem& problem, const Inputs& inputs, const Outputs& outputs) {
  return outputs.max_logit.given() &&
         (problem.layout_q == Layout::packed || inputs.seqused_q.given());
}

Tensor rows_of_all(const Problem& problem, const Tensor& q) {
  Tensor out = q;
  if (problem.layout_q == Layout::packed) {
    out.shape[0] = std::min(q.shape[0], all_rows(problem));
    return out;
  }
  out.rank = q.rank - 1;
  out.shape = {q.shape[0] * q.shape[1], q.shape[2], q.shape[3], 0};
  out.strides = {problem.seqlen_q == 1 ? q.strides[0] : q.strides[1], q.strides[2], q.strides[3],
                 0};
  return out;
}

Inputs shared_inputs(const Problem& problem, const PrefixParts& parts, const Inputs& inputs) {
  Inputs part;
  part.q = rows_of_all(problem, inputs.q);
  const Tensor& scale = inputs.scale_q;
  part.scale_q = scale.rank <= 1 ? scale : rows_of_all(problem, scale);
  take_keys(problem, inputs, 1, 0, parts.shared_keys, part);
  part.buffers = inputs.buffers;
  return part;
}

Inputs rest_inputs(const Problem& problem, const PrefixParts& parts, const Inputs& inputs) {
  Inputs part;
  part.q = inputs.q;
  part.scale_q = inputs.scale_q;
  part.cu_seqlens_q = inputs.cu_seqlens_q;
  part.seqused_q = inputs.seqused_q;
  take_keys(problem, inputs, problem.batch, parts.shared_keys,
            problem.seqlen_prefix - parts.shared_keys, part);
  part.buffers = inputs.buffers;
  return part;
}

Inputs own_inputs(const Inputs& inputs) {
  Inputs part = inputs;
  part.prefix_k = part.prefix_v = part.prefix_page_table = {};
  return part;
}

std::string prefix_reason(const Problem& problem, const PrefixParts& parts) {
  if (parts.shared_keys == problem.seqlen_prefix) {
    return fmt::format("the {} keys of the shared prefix are read once for all {} sequences",
                       problem.seqlen_prefix, problem.batch);
  }
  if (parts.shared_keys > 0) {
    return fmt::format(
        "{} of {} keys of the shared prefix are read once for all {} sequences; of the others the "
        "mask does not say that every query sees them",
        parts.shared_keys, problem.seqlen_prefix, problem.batch);
  }
  return fmt::format(
      "the {} keys of the shared prefix are read once for each sequence: by mask and score they "
      "are not the same to all queries",
      problem.seqlen_prefix);
}

}  // namespace attn::core
