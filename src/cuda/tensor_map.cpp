#include "cuda/tensor_map.hpp"

#include <cstddef>

#include "cuda/driver/api.hpp"

namespace attn::cuda {

bool encode_map(CUtensorMap& map, const Tensor& tensor, int rank, const MapSizes& sizes,
                const MapSizes& strides, const std::array<std::uint32_t, 5>& box) {
  std::array<std::uint64_t, 4> bytes{};
  for (std::size_t i = 0; i + 1 < static_cast<std::size_t>(rank); ++i) {
    bytes[i] = strides[i] * size_of(tensor.dtype);
  }
  const std::array<std::uint32_t, 5> step{1, 1, 1, 1, 1};
  CUtensorMapDataType type = CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
  if (tensor.dtype == DType::bf16) type = CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  if (tensor.dtype == DType::u8) type = CU_TENSOR_MAP_DATA_TYPE_UINT8;
  return api().cuTensorMapEncodeTiled(
             &map, type, static_cast<unsigned>(rank), tensor.data, sizes.data(), bytes.data(),
             box.data(), step.data(), CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

}  // namespace attn::cuda
