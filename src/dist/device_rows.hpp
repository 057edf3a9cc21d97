// Copies of rows of K and V on and between GPUs, in the order of a stream.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "attn/context.hpp"
#include "attn/tensor.hpp"
#include "cuda/driver/device.hpp"
#include "dist/row_tensor.hpp"

namespace attn::dist {

// A stream's copies between host and devices; with unified addressing the driver sees by the
// address where each side is.
class Copies {
 public:
  Copies(Device device, void* stream)
      : guard_(device.index), stream_(static_cast<cuda::CUstream>(stream)) {}
  void copy(void* to, const void* from, std::size_t bytes) const;
  void wait() const;

 private:
  cuda::ContextGuard guard_;
  cuda::CUstream stream_;
};

// The address of the element that lies `offset` elements behind the first.
std::byte* at(const Tensor& t, std::int64_t offset);

// to <- from, of one shape and dtype, each on the host or a device.
void copy_tensor(const Copies& copies, const Tensor& from, const Tensor& to);

// The rows [first, first + count) of a tensor of K or V.
Tensor rows_of(Tensor t, std::int64_t first, std::int64_t count);
// The rows of the line [rows.begin, rows.end), which the tensor has side by side.
Tensor rows_of(const RowTensor& t, const Rows& rows);

// sums, which has the rows `own`, <- the terms of all ranks, in their order, each in its rows:
// added in f32 and rounded once to its dtype. Terms have one dtype; all are of one device; up to
// cuda::kMostRowTerms. Put into the context's stream.
void add_terms(const std::vector<RowTensor>& terms, const RowTensor& sums,
               const attn::Context& context);

// Copies the rows that both have.
void copy_common(const Copies& copies, const RowTensor& from, const RowTensor& to);

}  // namespace attn::dist
