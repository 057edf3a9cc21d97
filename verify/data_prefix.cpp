// Keys that all sequences of a test case share.
#include "core/cache_type.hpp"
#include "core/tensor/integers.hpp"
#include "verify/data.hpp"

namespace attn::verify {

void CaseData::make_prefix() {
  if (problem.seqlen_prefix == 0 || problem.paged_prefix) return;
  const auto make = [&](std::string name, CacheType type, std::int64_t dim) {
    return input(std::move(name), storage_dtype(type),
                 {problem.seqlen_prefix, problem.heads_k, row_size(type, dim)},
                 {.strided = hints_.strided});
  };
  inputs.prefix_k = make("prefix_k", core::type_of_k(problem), problem.head_dim);
  inputs.prefix_v = make("prefix_v", core::type_of_v(problem), problem.head_dim_v);
}

void CaseData::fill_prefix(bool of_k, const Value& value) {
  if (problem.seqlen_prefix == 0) return;
  const Tensor& t = problem.paged_prefix ? (of_k ? inputs.k : inputs.v)
                                         : (of_k ? inputs.prefix_k : inputs.prefix_v);
  const core::Integers pages(inputs.prefix_page_table);
  const std::int64_t dim = columns(t);
  std::vector<double> values(static_cast<std::size_t>(dim));
  for (std::int64_t j = 0; j < problem.seqlen_prefix; ++j) {
    for (std::int64_t h = 0; h < problem.heads_k; ++h) {
      std::vector<std::int64_t> row{j, h};
      if (problem.paged_prefix) {
        row = {pages[j / problem.page_size], j % problem.page_size, h};
      }
      for (std::int64_t c = 0; c < dim; ++c) {
        values[static_cast<std::size_t>(c)] = value(kPrefixBatch, j, h, c);
      }
      store_row(t, row, values);
    }
  }
}

}  // namespace attn::verify
