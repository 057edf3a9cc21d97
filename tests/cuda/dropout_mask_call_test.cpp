// The mask of dropout, written by a GPU, is that of the CPU.
#include <cstdint>
#include <vector>

#include "attn/dropout_mask.hpp"
#include "cuda/driver/memory.hpp"
#include "cuda/gpu.hpp"

namespace attn::cuda {
namespace {

TEST(CudaDropoutMask, IsThatOfTheCpu) {
  ATTN_NEEDS_GPU();
  for (const Dropout& dropout :
       {Dropout{}, Dropout{0.3, 7, 0}, Dropout{0.9, ~std::uint64_t{0}, 4294967301},
        Dropout{1.0 / 32768, 1, 2}, Dropout{31.0 / 32, 3, 4}, Dropout{0.97, 5, 6},
        Dropout{0.999, 8, 9, true}, Dropout{0.3, ~std::uint64_t{0}, 4294967301, true}}) {
    for (const std::int64_t keys : {1, 33, 200}) {
      Problem problem;
      problem.dropout = dropout;
      const auto size = static_cast<std::size_t>(2 * 3 * 9 * keys);
      std::vector<std::uint8_t> expected(size, 9), got(size, 9);
      problem.dropout.rng_state = false;
      dropout_mask(problem, tensor(expected.data(), {2, 3, 9, keys}));
      problem.dropout = dropout;
      DeviceBuffer memory(kGpu.index, size);
      memory.fill(0x5a);
      synchronize(kGpu.index);
      const Stream stream(kGpu.index);
      Context context;
      context.stream = stream.handle();
      Tensor kept = tensor(memory.data(), DType::u8, {2, 3, 9, keys}, kGpu);
      kept.strides = {3 * 9 * keys, keys, 3 * keys, 1};  // queries before heads
      Tensor state;
      DeviceBuffer words(kGpu.index, sizeof(std::int64_t) * 2);
      if (dropout.rng_state) {
        const std::uint64_t numbers[] = {dropout.seed, dropout.offset};
        words.upload(numbers, sizeof(numbers));
        state = tensor(words.data(), DType::i64, {2}, kGpu);
        problem.dropout.seed = problem.dropout.offset = 0;
      }
      dropout_mask(problem, kept, state, context);
      stream.synchronize();
      std::vector<std::uint8_t> bytes(size);
      memory.download(bytes.data(), size);
      std::size_t i = 0;
      for (std::int64_t b = 0; b < 2; ++b) {
        for (std::int64_t h = 0; h < 3; ++h) {
          for (std::int64_t q = 0; q < 9; ++q) {
            for (std::int64_t k = 0; k < keys; ++k, ++i) {
              got[i] = bytes[static_cast<std::size_t>(kept.offset({b, h, q, k}))];
            }
          }
        }
      }
      EXPECT_EQ(got, expected) << dropout.probability << ' ' << keys;
    }
  }
}

}  // namespace
}  // namespace attn::cuda
