// Lists of keys of a test case.
#include "core/problem/rows.hpp"
#include "verify/data.hpp"

namespace attn::verify {

// Keys in any order, some of them twice, between entries that stand for nothing: -1, numbers past
// the length, the ends of the type. Some lists are keys in a row, some have no key at all. What
// stands past the queries in use is nonsense.
void CaseData::make_key_list() {
  const bool packed = problem.layout_q == Layout::packed;
  const std::int64_t heads = below(2) == 0 ? 1 : problem.heads_k;
  const std::int64_t rows = packed ? shape_like(true, 1)[0] : problem.seqlen_q;
  const std::vector<std::int64_t> shape =
      packed ? std::vector{heads, rows, problem.key_list}
             : std::vector{problem.batch, heads, rows, problem.key_list};
  inputs.key_list = integers("key_list", shape, {.strided = hints_.strided});
  const Tensor& lists = inputs.key_list;
  const auto none = [&](std::int64_t length) {
    const std::int64_t kind = below(4);
    if (kind == 0) return far_integer(below(2) == 1);
    return kind == 1 ? length + below(3) : -1;
  };
  const auto fill = [&](std::int64_t list, std::int64_t length) {
    const std::int64_t kind = below(8);  // 0: no key, 1: in a row, others: any
    const std::int64_t first = length > 0 ? below(length) : 0;
    for (std::int64_t j = 0; j < problem.key_list; ++j) {
      if (length == 0 || kind == 0 || below(8) == 0) {
        set_integer(lists, list + j, none(length));
      } else {
        set_integer(lists, list + j, kind == 1 ? (first + j) % length : below(length));
      }
    }
  };
  const core::Integers starts(inputs.cu_seqlens_q);
  for (std::int64_t b = 0; b < problem.batch; ++b) {
    const core::Sequence sequence = core::sequence(problem, inputs, b);
    for (std::int64_t h = 0; h < heads; ++h) {
      for (std::int64_t i = 0; i < sequence.capacity_q; ++i) {
        const std::int64_t at =
            packed ? lists.offset({h, starts[b] + i, 0}) : lists.offset({b, h, i, 0});
        fill(at, i < sequence.length_q ? sequence.length_k : 0);
      }
    }
  }
}

}  // namespace attn::verify
