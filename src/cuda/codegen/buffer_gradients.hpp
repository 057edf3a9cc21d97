// The gradients of the buffers that a score reads, as device code.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "attn/expr.hpp"
#include "attn/problem.hpp"
#include "core/expr/build.hpp"
#include "cuda/codegen/expression_pack.hpp"
#include "cuda/codegen/printed_buffers.hpp"

namespace attn::cuda {

// Buffers whose elements are each of one query and one key, read in one place, as a bias is: the
// gradient of an element is a sum over batch entries and heads alone, so one thread can have it.
// That is so for [heads, query, key], but not for [heads] nor for a table of distances.
struct OwnElements {
  std::vector<std::string> names{};
  // All of them read batch, head and position alike; of a score whose buffers differ, `names` has
  // those that read as the first one does.
  bool reads_batch = false, reads_head = false;
  bool by_position = false;  // rows are positions (query + seqlen_k - seqlen_q), not queries

  bool has(std::string_view name) const noexcept;
};
// Depends on the score and the declared sizes of its buffers, of which those of 1 take any index.
OwnElements own_elements(const expr::Expr& score);
// Whether each element of such a buffer is of a query and a key of the problem, so that the kernel
// writes all of them; false where the buffer is larger.
bool covers_elements(const Problem& problem, std::string_view name);

// The text of
//
//   struct alignas(8) BufferGradients {
//     static constexpr bool kHasSlope = false;
//     // Places where the score reads a buffer with a gradient that is added to in memory, and with
//     // one of own_elements; the first and kElementsOr1 are 1 where there are none.
//     static constexpr int kLoads, kElements, kElementsOr1;
//     static constexpr bool kReadsBatch, kReadsHead, kByPosition;  // OwnElements
//     int splits;  // parts of the batch entries and heads that share elements
//     // Adds dT times the derivative of T with respect to the element that is read: to its sum in
//     // memory, or to the query's and key's own. dot, ..., seqlen_k: as of Slope::slope.
//     void add(PendingSum (&sums)[kLoads], float (&elements)[kElementsOr1], float d_t, float dot,
//              ...) const;
//     // What is still pending. A warp calls it together.
//     void flush(PendingSum (&sums)[kLoads]) const;
//     // Stores a query's and key's own.
//     void store(const float (&elements)[kElementsOr1], int split, int query, ...) const;
//     // Where kElements is 1: those of a query.
//     ElementRow row(int split, int query, int batch, ...) const;
//   };
//
// (src/cuda/device/expr/buffer_gradient.cuh) for the gradients of buffers `names`.
// exact: sums in memory are device::Superaccumulator, else float64.
std::string print_buffer_gradients(const expr::Expr& score, const std::vector<std::string>& names,
                                   bool exact, const PrintedBuffers& printed = {});
// The device's type of a sum in memory, and its bytes.
std::string_view sum_type(bool exact) noexcept;
std::size_t sum_bytes(bool exact) noexcept;

// Where the gradient of a buffer goes, on the device.
struct BufferTarget {
  void* sums = nullptr;  // row-major; of buffers that are added to in memory
  // Where sums is null, the element at an index is elements[split * split_stride + index *
  // strides].
  float* elements = nullptr;
  std::array<long long, 4> strides{};
  long long split_stride = 0;
};

// The bytes of that struct. As ExpressionPack, and with a target for each name, in their order.
class BufferGradientsPack {
 public:
  BufferGradientsPack(const expr::Expr& score, const std::vector<std::string>& names);
  std::size_t size() const noexcept { return size_; }
  void pack(std::span<const BufferTarget> targets, int splits, const expr::Bindings& bindings,
            std::byte* to) const;

 private:
  struct Place {  // where the score reads a buffer that has a gradient
    std::size_t name;
    std::shared_ptr<const expr::Buffer> buffer;
    bool own;
  };
  ExpressionPack views_;
  std::vector<Place> places_;
  std::size_t size_;
};
std::size_t buffer_gradients_bytes(const expr::Expr& score, const std::vector<std::string>& names);

}  // namespace attn::cuda
