// attn::write_block_mask: checks its arguments, and writes the bytes on the CPU or has the CUDA
// backend write them.
#include "attn/block_list.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>

#include "attn/error.hpp"
#include "core/tensor/integers.hpp"
#include "core/validate/argument_check.hpp"
#include "cpu/plan_check.hpp"
#include "cuda/block_list.hpp"
#include "cuda/driver/device.hpp"
#include "cuda/driver/pointer.hpp"

namespace attn {
namespace {

[[noreturn]] void refuse(const std::string& message) {
  throw Error(ErrorCode::invalid_argument, message);
}

void check_tensors(const core::ArgumentCheck& check, const Tensor& lists, const Tensor& blocks) {
  check.view("blocks", blocks);
  if (blocks.rank != 4 || blocks.dtype != DType::u8) {
    check.refuse(fmt::format("blocks is {}; accepted is u8 [batch, heads, blocks_q, blocks_k]",
                             to_string(blocks)));
  }
  check.integers("lists", lists,
                 {blocks.shape[0], blocks.shape[1], blocks.shape[2], core::kAnySize});
  check.contiguous_rows("lists", lists);
  check.contiguous_rows("blocks", blocks);
  constexpr std::int64_t kMost = INT32_MAX;
  if (blocks.shape[3] > kMost || lists.shape[3] > kMost) {
    check.refuse(fmt::format(
        "blocks is {} and lists is {}; accepted are last dimensions of up to 2^31 - 1 elements",
        to_string(blocks), to_string(lists)));
  }
  const core::NamedTensor written{"blocks", blocks}, read{"lists", lists};
  check.disjoint({&written, 1}, {&read, 1});
}

}  // namespace

expr::Expr block_mask(const Tensor& blocks, std::int32_t block_q, std::int32_t block_k,
                      std::int32_t group, std::string_view name) {
  if (blocks.rank != 4 || blocks.dtype != DType::u8) {
    refuse(fmt::format("blocks is {}; accepted is u8 [batch or 1, heads, blocks_q, blocks_k]",
                       to_string(blocks)));
  }
  if (block_q < 1 || block_k < 1 || group < 1) {
    refuse(fmt::format("block_q is {}, block_k is {} and group is {}; accepted are at least 1 each",
                       block_q, block_k, group));
  }
  const auto& s = expr::symbols();
  const expr::Expr head = group == 1 ? s.head : s.head / group;
  return expr::Buffer(std::string(name),
                      blocks)({s.batch, head, s.query / block_q, s.key / block_k}) != 0;
}

void write_block_mask(const Tensor& lists, const Tensor& blocks, const Context& context) {
  const core::ArgumentCheck check(nullptr, blocks.device);
  check_tensors(check, lists, blocks);
  if (blocks.device.type == DeviceType::cuda) {
    const core::NamedTensor tensors[] = {{"lists", lists}, {"blocks", blocks}};
    const cuda::ContextGuard guard(blocks.device.index);
    cuda::check_memory(check, tensors, blocks.device.index);
    if (blocks.size() > 0) cuda::write_block_mask(lists, blocks, context);
    return;
  }
  const std::int64_t heads = blocks.shape[1], rows = blocks.shape[2];
  const std::int64_t pairs = blocks.size() > 0 ? blocks.shape[0] * heads : 0;
  cpu::executor_of(context)->parallel_for(pairs, [&](std::int64_t pair, int) {
    for (std::int64_t row = 0; row < rows; ++row) {
      const core::Integers list =
          core::Integers(lists).from(lists.offset({pair / heads, pair % heads, row}));
      auto* const bytes = static_cast<std::uint8_t*>(blocks.data) +
                          blocks.offset({pair / heads, pair % heads, row});
      std::fill_n(bytes, blocks.shape[3], std::uint8_t{0});
      for (std::int64_t i = 0; i < lists.shape[3]; ++i) {
        if (list[i] >= 0 && list[i] < blocks.shape[3]) bytes[list[i]] = 1;
      }
    }
  });
}

}  // namespace attn
