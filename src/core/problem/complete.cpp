// attn::complete: the sizes and the dtype that a problem leaves out are taken from the tensors.
#include <fmt/format.h>

#include "attn/run.hpp"
#include "core/cache_type.hpp"
#include "core/validate/argument_check.hpp"
#include "core/validate/validate.hpp"
#include "core/validate/validate_parts.hpp"

namespace attn {
namespace {

using core::ArgumentCheck;

// Sizes read from a tensor before anything else is known about it need its rank.
void check_rank(const ArgumentCheck& check, std::string_view name, const Tensor& t, Layout layout) {
  const std::string_view accepted = layout == Layout::packed ? "[total, heads, head_dim] (packed)"
                                    : layout == Layout::paged
                                        ? "[pages, page_size, heads, head_dim] (paged)"
                                        : "[batch, seqlen, heads, head_dim] (dense)";
  if (!t.given()) check.refuse(fmt::format("{} is not given; accepted is {}", name, accepted));
  check.view(name, t);
  const int rank = layout == Layout::packed ? 3 : 4;
  if (t.rank != rank) {
    check.refuse(fmt::format("{} is {}; accepted is {}", name, to_string(t), accepted));
  }
}

void fill(std::int64_t& size, std::int64_t from_tensor) {
  if (size == 0) size = from_tensor;
}

// The number of sequences that cu_seqlens describes.
std::int64_t packed_batch(const ArgumentCheck& check, std::string_view name, const Tensor& t) {
  if (t.rank != 1 || t.shape[0] < 1) {
    check.refuse(fmt::format("{} is {}; accepted is i32 or i64 [batch + 1]", name, to_string(t)));
  }
  return t.shape[0] - 1;
}

// seqlen of a packed side.
void fill_longest(const ArgumentCheck& check, char side, std::int64_t& seqlen, std::int64_t batch,
                  std::int64_t rows, const Tensor& cu_seqlens) {
  const std::string_view name = side == 'q' ? "cu_seqlens_q" : "cu_seqlens_k";
  const std::int64_t longest = core::check_cu_seqlens(check, name, cu_seqlens, batch, rows);
  if (seqlen == 0 && rows > 0 && !check.readable()) {
    check.refuse(
        fmt::format("seqlen_{} is 0; accepted is the length of the longest sequence or "
                    "more, because {} is {}",
                    side, name, to_string(cu_seqlens)));
  }
  fill(seqlen, longest);
}

// From the last dimension of V, which counts bytes where its type has blocks.
void fill_head_dim_v(Problem& p, std::int64_t size) {
  const std::int64_t of_block = row_size(core::type_of_v(p), core::kCacheBlock);
  const bool blocked = core::is_blocked(core::type_of_v(p));
  fill(p.head_dim_v, blocked ? size / of_block * core::kCacheBlock : size);
}

void fill_dtype(const ArgumentCheck& check, Problem& p, const Tensor& q) {
  if (core::has_own_type_q(p)) {
    if (p.dtype.given()) return;
    check.refuse(
        fmt::format("dtype is not given and type_q is {}, of which O cannot be; accepted are f32, "
                    "bf16 and f16",
                    name(p.type_q)));
  }
  if (p.dtype.given() && p.dtype != q.dtype) {
    check.refuse(
        fmt::format("q is {}, dtype is {}; accepted are tensors of that dtype, or a dtype that is "
                    "not given, for theirs",
                    to_string(q), name(p.dtype)));
  }
  p.dtype = q.dtype;
}

void fill_q(const ArgumentCheck& check, Problem& p, const Inputs& inputs) {
  const Tensor& q = inputs.q;
  fill(p.heads_q, q.shape[q.rank - 2]);
  if (p.layout_q == Layout::packed) {
    fill(p.batch, packed_batch(check, "cu_seqlens_q", inputs.cu_seqlens_q));
    fill_longest(check, 'q', p.seqlen_q, p.batch, q.shape[0], inputs.cu_seqlens_q);
  } else {
    fill(p.batch, q.shape[0]);
    fill(p.seqlen_q, q.shape[1]);
  }
}

void fill_k(const ArgumentCheck& check, Problem& p, const Inputs& inputs) {
  const Tensor& k = inputs.k;
  fill(p.heads_k, k.shape[k.rank - 2]);
  if (p.layout_k == Layout::packed) {
    fill_longest(check, 'k', p.seqlen_k, p.batch, k.shape[0], inputs.cu_seqlens_k);
  } else if (p.layout_k == Layout::paged) {
    fill(p.page_size, k.shape[1]);
    const Tensor& table = inputs.page_table;
    check.integers("page_table", table, {p.batch, core::kAnySize});
    std::int64_t capacity = 0;
    if (__builtin_mul_overflow(p.page_size, table.shape[1], &capacity)) {
      check.refuse(
          fmt::format("page_table is {} with pages of {} keys; accepted are up to 2^31 - 1 "
                      "keys a sequence",
                      to_string(table), p.page_size));
    }
    fill(p.seqlen_k, capacity);
  } else {
    fill(p.seqlen_k, k.shape[1]);
  }
}

void fill_prefix(const ArgumentCheck& check, Problem& p, const Inputs& inputs) {
  if (p.paged_prefix) {
    // The last page may not be full, so that the table does not say how many keys there are.
    if (p.seqlen_prefix == 0 && inputs.prefix_page_table.given()) {
      check.refuse(
          "seqlen_prefix is 0; accepted is the number of keys in the pages of prefix_page_table");
    }
    return;
  }
  const bool has_k = inputs.prefix_k.given();
  const Tensor& t = has_k ? inputs.prefix_k : inputs.prefix_v;
  if (t.given() && t.rank != 3) {
    check.refuse(fmt::format("{} is {}; accepted is [seqlen_prefix, heads_k, head_dim]",
                             has_k ? "prefix_k" : "prefix_v", to_string(t)));
  }
  if (t.given()) fill(p.seqlen_prefix, t.shape[0]);
}

void fill_key_list(const ArgumentCheck& check, Problem& p, const Inputs& inputs) {
  const Tensor& lists = inputs.key_list;
  if (!lists.given()) return;
  const bool packed = p.layout_q == Layout::packed;
  const std::int32_t rank = packed ? 3 : 4;
  if (lists.rank != rank) {
    check.refuse(fmt::format("key_list has rank {}; accepted is {}, [{}, entries of a list]",
                             lists.rank, rank,
                             packed ? "1 or heads_k, total_q" : "batch, 1 or heads_k, seqlen_q"));
  }
  const std::int64_t entries = lists.shape[static_cast<std::size_t>(rank) - 1];
  if (entries < 1) {
    check.refuse(
        fmt::format("key_list is {}; accepted are lists of one entry or more", to_string(lists)));
  }
  fill(p.key_list, entries);
}

}  // namespace

Problem complete(const Problem& problem, const Inputs& inputs) {
  Problem p = problem;
  const ArgumentCheck check(&p, core::device_of(inputs));
  check_rank(check, "q", inputs.q, p.layout_q);
  check_rank(check, "k", inputs.k, p.layout_k);
  check_rank(check, "v", inputs.v, p.layout_k);
  fill_dtype(check, p, inputs.q);
  fill(p.head_dim, inputs.q.shape[inputs.q.rank - 1]);
  fill_head_dim_v(p, inputs.v.shape[inputs.v.rank - 1]);
  fill_q(check, p, inputs);
  fill_k(check, p, inputs);
  fill_prefix(check, p, inputs);
  fill_key_list(check, p, inputs);
  core::validate_problem(p);
  core::CallMemory memory;
  core::check_inputs(check, p, inputs, memory.resource());
  return p;
}

}  // namespace attn
