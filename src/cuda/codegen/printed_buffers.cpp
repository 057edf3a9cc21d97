#include "cuda/codegen/printed_buffers.hpp"

#include "core/expr/build.hpp"
#include "cuda/codegen/expression_buffers.hpp"

namespace attn::cuda {

PrintedTensor printed_tensor(const expr::Buffer& buffer, const PrintedBuffers& printed) {
  if (expr::is_scalar(buffer)) return {.dtype = buffer.tensor().dtype};  // has no last dimension
  for (const auto& [name, tensor] : printed) {
    if (name == buffer.name()) return tensor;
  }
  const Tensor& declared = buffer.tensor();
  return {declared.dtype, last_is_contiguous(declared), elements_at_once(declared)};
}

}  // namespace attn::cuda
