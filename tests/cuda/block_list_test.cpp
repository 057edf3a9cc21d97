// The bytes that lists of blocks become on a GPU are those of the CPU.
#include "attn/block_list.hpp"

#include <cstdint>
#include <random>
#include <vector>

#include "cuda/driver/memory.hpp"
#include "cuda/gpu.hpp"

namespace attn::cuda {
namespace {

// Number: int32 or int64, of which some name a block in their low halves alone.
template <class Number>
void compare(std::uint64_t seed) {
  std::mt19937 random(seed);
  for (const std::int64_t blocks_k : {1, 31, 100}) {
    for (const std::int64_t entries : {0, 3, 70}) {
      const std::int64_t rows = 2 * 3 * 5;
      std::vector<Number> numbers(static_cast<std::size_t>(rows * entries));
      for (Number& number : numbers) {
        number = static_cast<Number>(random() % static_cast<unsigned>(2 * blocks_k)) - 1;
        if (sizeof(Number) == 8 && random() % 4 == 0) number += Number{1} << (sizeof(Number) * 4);
      }
      const auto size = static_cast<std::size_t>(rows * (blocks_k + 3));
      std::vector<std::uint8_t> expected(size, 0x5a), got(size);
      Tensor blocks = tensor(expected.data(), {2, 3, 5, blocks_k});
      blocks.strides = {blocks_k + 3, 10 * (blocks_k + 3), 2 * (blocks_k + 3), 1};
      write_block_mask(tensor(numbers.data(), {2, 3, 5, entries}), blocks);
      DeviceBuffer lists(kGpu.index, numbers.size() * sizeof(Number) + 8);
      DeviceBuffer memory(kGpu.index, size);
      if (entries > 0) lists.upload(numbers.data(), numbers.size() * sizeof(Number));
      memory.fill(0x5a);
      synchronize(kGpu.index);
      const Stream stream(kGpu.index);
      Context context;
      context.stream = stream.handle();
      Tensor there = tensor(memory.data(), DType::u8, {2, 3, 5, blocks_k}, kGpu);
      there.strides = blocks.strides;
      write_block_mask(tensor(lists.data(), dtype_of<Number>, {2, 3, 5, entries}, kGpu), there,
                       context);
      stream.synchronize();
      memory.download(got.data(), size);
      EXPECT_EQ(got, expected) << blocks_k << ' ' << entries;
    }
  }
}

TEST(CudaBlockList, IsThatOfTheCpu) {
  ATTN_NEEDS_GPU();
  compare<std::int32_t>(3);
  compare<std::int64_t>(4);
}

}  // namespace
}  // namespace attn::cuda
