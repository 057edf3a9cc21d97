#include "dist/device_rows.hpp"

#include <algorithm>

#include "cuda/driver/api.hpp"
#include "cuda/row_sums.hpp"

namespace attn::dist {
namespace {

// Calls visit(offset in a, offset in b, elements) for the longest runs that are contiguous in both
// tensors, which have one shape.
template <class Visit>
void for_runs(const Tensor& a, const Tensor& b, const Visit& visit) {
  if (a.size() == 0) return;
  std::int64_t run = 1;
  std::int32_t axes = a.rank;  // outside of a run
  while (axes > 0) {
    const auto d = static_cast<std::size_t>(axes - 1);
    if (a.shape[d] != 1 && (a.strides[d] != run || b.strides[d] != run)) break;
    run *= a.shape[d];
    --axes;
  }
  for (std::int64_t i = 0; i < a.size() / run; ++i) {
    std::int64_t left = i, in_a = 0, in_b = 0;
    for (std::int32_t d = axes; d-- > 0;) {
      const auto axis = static_cast<std::size_t>(d);
      in_a += left % a.shape[axis] * a.strides[axis];
      in_b += left % a.shape[axis] * b.strides[axis];
      left /= a.shape[axis];
    }
    visit(in_a, in_b, run);
  }
}

}  // namespace

void Copies::copy(void* to, const void* from, std::size_t bytes) const {
  if (bytes == 0) return;
  cuda::check(cuda::api().cuMemcpyAsync(reinterpret_cast<cuda::CUdeviceptr>(to),
                                        reinterpret_cast<cuda::CUdeviceptr>(from), bytes, stream_),
              "a copy between ranks");
}

void Copies::wait() const {
  cuda::check(cuda::api().cuStreamSynchronize(stream_), "waiting for a rank's stream");
}

std::byte* at(const Tensor& t, std::int64_t offset) {
  return static_cast<std::byte*>(t.data) + offset * static_cast<std::int64_t>(size_of(t.dtype));
}

void copy_tensor(const Copies& copies, const Tensor& from, const Tensor& to) {
  for_runs(from, to, [&](std::int64_t there, std::int64_t here, std::int64_t elements) {
    copies.copy(at(to, here), at(from, there),
                static_cast<std::size_t>(elements) * size_of(from.dtype));
  });
}

Tensor rows_of(Tensor t, std::int64_t first, std::int64_t count) {
  const auto axis = static_cast<std::size_t>(t.rank - 3);
  t.data = at(t, first * t.strides[axis]);
  t.shape[axis] = count;
  return t;
}

Tensor rows_of(const RowTensor& t, const Rows& rows) {
  return rows_of(t.tensor, rows_before(t.rows, rows.begin), rows.end - rows.begin);
}

void add_terms(const std::vector<RowTensor>& terms, const RowTensor& sums,
               const attn::Context& context) {
  std::vector<std::int64_t> cuts;  // between which the same terms have rows
  for (const Rows& rows : sums.rows) cuts.insert(cuts.end(), {rows.begin, rows.end});
  for (const RowTensor& term : terms) {
    for (const Rows& rows : common(term.rows, sums.rows)) {
      cuts.insert(cuts.end(), {rows.begin, rows.end});
    }
  }
  std::ranges::sort(cuts);
  cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
  for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
    const Rows rows{cuts[i], cuts[i + 1]};
    if (common(sums.rows, {rows}).empty()) continue;
    std::vector<Tensor> summands;
    for (const RowTensor& term : terms) {
      if (!common(term.rows, {rows}).empty()) summands.push_back(rows_of(term, rows));
    }
    cuda::row_sums(summands, rows_of(sums, rows), context);
  }
}

void copy_common(const Copies& copies, const RowTensor& from, const RowTensor& to) {
  for (const Rows& rows : common(from.rows, to.rows)) {
    copy_tensor(copies, rows_of(from, rows), rows_of(to, rows));
  }
}

}  // namespace attn::dist
