// Checks of the values of cu_seqlens, seqused and page_table, in memory of the CPU alone.
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string_view>

#include "core/problem/key_list.hpp"
#include "core/problem/rows.hpp"
#include "core/problem/visible.hpp"
#include "core/validate/validate_parts.hpp"

namespace attn::core {
namespace {

// seqused: i32 or i64 [batch], contiguous, each from 0 to the rows of its sequence.
void check_seqused(const ArgumentCheck& check, const char* name, const Tensor& t,
                   std::int64_t batch, const Integers& cu_seqlens, std::int64_t seqlen) {
  if (!t.given()) return;
  check.integers(name, t, {batch});
  check.contiguous(name, t);
  if (!check.readable()) return;
  const Integers lengths(t);
  for (std::int64_t b = 0; b < batch; ++b) {
    const std::int64_t capacity = cu_seqlens ? cu_seqlens[b + 1] - cu_seqlens[b] : seqlen;
    if (lengths[b] < 0 || lengths[b] > capacity) {
      check.refuse(fmt::format("{}[{}] is {}; accepted are 0 to {}, the rows of the sequence", name,
                               b, lengths[b], capacity));
    }
  }
}

// What messages call the arguments of one side.
struct SideNames {
  const char* seqlen;
  const char* cu_seqlens;
  const char* seqused;
  const char* not_packed;
};
constexpr SideNames kNamesQ{"seqlen_q", "cu_seqlens_q", "seqused_q", "layout_q is not packed"};
constexpr SideNames kNamesK{"seqlen_k", "cu_seqlens_k", "seqused_k", "layout_k is not packed"};

// The sequences of Q, or of K and V when these are not paged. `rows`: of a packed tensor.
void check_side(const ArgumentCheck& check, const SideNames& names, Layout layout,
                std::int64_t batch, std::int64_t seqlen, std::int64_t rows,
                const Tensor& cu_seqlens, const Tensor& seqused) {
  Integers starts;
  if (layout == Layout::packed) {
    const std::int64_t longest = check_cu_seqlens(check, names.cu_seqlens, cu_seqlens, batch, rows);
    if (seqlen < longest) {
      check.refuse(fmt::format("{} is {}; accepted are at least {}, the longest sequence of {}",
                               names.seqlen, seqlen, longest, names.cu_seqlens));
    }
    starts = Integers(cu_seqlens);
  } else {
    check.not_given(names.cu_seqlens, cu_seqlens, names.not_packed);
  }
  check_seqused(check, names.seqused, seqused, batch, starts, seqlen);
}

// Whether the pages of a table hold so many keys.
void check_pages_of_keys(const ArgumentCheck& check, const Problem& p, const char* seqlen,
                         std::int64_t keys, const char* table, const char* which,
                         std::int64_t pages) {
  // Divided, not multiplied: the product may exceed 64 bits.
  if ((keys + p.page_size - 1) / p.page_size <= pages) return;
  check.refuse(fmt::format("{} is {}; accepted are up to {} pages of {} keys, the {} of {}", seqlen,
                           keys, pages, p.page_size, which, table));
}

void check_page_table(const ArgumentCheck& check, const Problem& p, const Inputs& inputs) {
  const Tensor& table = inputs.page_table;
  if (p.layout_k != Layout::paged) {
    check.not_given("page_table", table, "layout_k is not paged");
    return;
  }
  check.integers("page_table", table, {p.batch, kAnySize});
  check.contiguous_rows("page_table", table);
  check_pages_of_keys(check, p, "seqlen_k", p.seqlen_k, "page_table", "second size",
                      table.shape[1]);
}

void check_prefix_pages(const ArgumentCheck& check, const Problem& p, const Inputs& inputs) {
  const Tensor& table = inputs.prefix_page_table;
  if (!p.paged_prefix) {
    check.not_given("prefix_page_table", table, "problem.paged_prefix is false");
    return;
  }
  check.integers("prefix_page_table", table, {kAnySize});
  check.contiguous("prefix_page_table", table);
  check_pages_of_keys(check, p, "seqlen_prefix", p.seqlen_prefix, "prefix_page_table", "size",
                      table.shape[0]);
  if (!check.readable()) return;
  const std::int64_t pages = inputs.k.shape[0];
  for (std::int64_t n = 0; n * p.page_size < p.seqlen_prefix; ++n) {
    const std::int64_t page = Integers(table)[n];
    if (page >= 0 && page < pages) continue;
    check.refuse(fmt::format("prefix_page_table[{}] is {}; accepted are 0 to {}, the pages of k", n,
                             page, pages - 1));
  }
}

}  // namespace

std::int64_t check_cu_seqlens(const ArgumentCheck& check, std::string_view name, const Tensor& t,
                              std::int64_t batch, std::int64_t rows) {
  check.integers(name, t, {kAnySize});
  if (t.shape[0] < 1 || t.shape[0] - 1 != batch) {
    check.refuse(fmt::format("{} is {}; accepted is i32 or i64 [batch + 1] with batch {}", name,
                             to_string(t), batch));
  }
  check.contiguous(name, t);
  if (!check.readable()) return 0;
  const Integers starts(t);
  if (starts[0] != 0) {
    check.refuse(fmt::format("{}[0] is {}; accepted is 0", name, starts[0]));
  }
  std::int64_t longest = 0;
  for (std::int64_t b = 0; b < batch; ++b) {
    if (starts[b + 1] < starts[b]) {
      check.refuse(fmt::format("{}[{}] is {} after {}; accepted are numbers that do not decrease",
                               name, b + 1, starts[b + 1], starts[b]));
    }
    longest = std::max(longest, starts[b + 1] - starts[b]);
  }
  if (starts[batch] > rows) {
    check.refuse(fmt::format("{}[{}] is {}; accepted are up to {}, the rows of the tensor", name,
                             batch, starts[batch], rows));
  }
  constexpr std::int64_t kMostRows = std::numeric_limits<std::int32_t>::max();
  if (starts[batch] > kMostRows) {
    check.refuse(
        fmt::format("{}[{}] is {}; accepted are up to 2^31 - 1", name, batch, starts[batch]));
  }
  return longest;
}

void check_sequences(const ArgumentCheck& check, const Problem& problem, const Inputs& inputs) {
  check_side(check, kNamesQ, problem.layout_q, problem.batch, problem.seqlen_q, inputs.q.shape[0],
             inputs.cu_seqlens_q, inputs.seqused_q);
  check_side(check, kNamesK, problem.layout_k, problem.batch, problem.seqlen_k, inputs.k.shape[0],
             inputs.cu_seqlens_k, inputs.seqused_k);
  check_page_table(check, problem, inputs);
  check_prefix_pages(check, problem, inputs);
}

void check_key_list(const ArgumentCheck& check, const Problem& p, const Inputs& inputs) {
  const Tensor& lists = inputs.key_list;
  if (p.key_list == 0) {
    check.not_given("key_list", lists, "problem.key_list is 0");
    return;
  }
  const bool packed = p.layout_q == Layout::packed;
  check.integers("key_list", lists,
                 packed ? Shape{kAnySize, inputs.q.shape[0], p.key_list}
                        : Shape{p.batch, kAnySize, p.seqlen_q, p.key_list});
  const std::int64_t heads = lists.shape[packed ? 0 : 1];
  if (heads != 1 && heads != p.heads_k) {
    check.refuse(fmt::format("key_list is {}; accepted are lists of 1 or of {} heads, heads_k",
                             to_string(lists), p.heads_k));
  }
  check.contiguous_rows("key_list", lists);
}

namespace {

// Refuses an entry of page_table that is no page, of a key that a list names and a mask shows.
void check_listed_pages(const ArgumentCheck& check, const Problem& p, const Inputs& inputs,
                        const Sequence& s) {
  const Tensor& table = inputs.page_table;
  const std::int64_t pages = inputs.k.shape[0];
  for (std::int64_t head = 0; head < p.heads_k; ++head) {
    for (std::int64_t query = 0; query < s.length_q; ++query) {
      const KeyList list = key_list(p, inputs, s, query, head);
      for (std::int64_t entry = 0; entry < list.count; ++entry) {
        const std::int32_t key = list.key(entry);
        if (key < 0) continue;
        const std::int64_t page = Integers(table)[table.offset({s.batch, key / p.page_size})];
        if (page >= 0 && page < pages) continue;
        if (sees(p, inputs, s, query, head, key)) {
          check.refuse(
              fmt::format("page_table[{}, {}] is {}; accepted are pages of k, of which there are "
                          "{}, where a list has a key of the page, as that of query {} has {}",
                          s.batch, key / p.page_size, page, pages, query, key));
        }
      }
    }
  }
}

}  // namespace

void check_pages(const ArgumentCheck& check, const Problem& p, const Inputs& inputs) {
  if (p.layout_k != Layout::paged || !check.readable()) return;
  const Tensor& table = inputs.page_table;
  const std::int64_t pages = inputs.k.shape[0];
  for (std::int64_t b = 0; b < p.batch; ++b) {
    const Sequence s = sequence(p, inputs, b);
    if (p.key_list > 0) {
      check_listed_pages(check, p, inputs, s);
      continue;
    }
    const std::int64_t length = s.length_k - p.seqlen_prefix;
    for (std::int64_t n = 0; n * p.page_size < length; ++n) {
      if (pages == 0) {
        check.refuse(
            fmt::format("k has no pages; accepted is one or more, because sequence {} has "
                        "{} keys",
                        b, length));
      }
      const std::int64_t page = Integers(table)[table.offset({b, n})];
      if (page >= 0 && page < pages) continue;
      const std::int64_t end = std::min((n + 1) * p.page_size, length);
      if (sees_any(p, inputs, s, n * p.page_size, end)) {
        check.refuse(
            fmt::format("page_table[{}, {}] is {}; accepted are 0 to {}, the pages of k, "
                        "where some row sees a key of the page",
                        b, n, page, pages - 1));
      }
    }
  }
}

}  // namespace attn::core
