#include "cuda/kernels/forward_flash_attention/kernel.hpp"

#include <cstddef>

#include "cuda/kernel_parts.hpp"
#include "cuda/kernels/forward_simt/kernel.hpp"
#include "cuda/kernels/forward_tiles.hpp"

namespace attn::cuda {
namespace {

constexpr int kMostStages = 8;  // B_c of 512
// Shared memory of a block of threads on the smallest of the GPUs this runs on; a B_c that the
// caller names may take more.
constexpr std::int64_t kSharedBytes = 99 << 10;
constexpr std::int64_t kMostSharedBytes = 227 << 10;  // of a block, on 9.0: the most of all

struct Shape {
  int stages = kMostStages;  // 64 keys each
  bool skips_empty = false;
};

class ForwardFlashAttention final : public ForwardShape {
 public:
  explicit ForwardFlashAttention(const Shape& shape) : shape_(shape) {}
  void print(const ForwardConfig&, ConfigText& to) const override {
    to.number("kStages", shape_.stages);
    to.flag("kSkipsEmpty", shape_.skips_empty);
  }

 private:
  const Shape shape_;
};

bool set_part(Shape& shape, int tile_keys, std::string_view part) {
  if (part == "sparse") {
    shape.skips_empty = true;
  } else if (const int n = number_after(part, "n");
             n > 0 && n % tile_keys == 0 && n / tile_keys <= kMostStages) {
    shape.stages = n / tile_keys;
  } else {
    return false;
  }
  return true;
}

// Q and P as forward_simt has them, then K and V as they are stored.
std::int64_t shared_bytes(const Problem& p, const Tiling& t, int stages) {
  const std::int64_t rows = t.rows + kForwardSimtPad, slots = t.keys + kForwardSimtPad;
  const std::int64_t columns_v = (p.head_dim_v + 63) / 64 * 64;
  return 4 * (p.head_dim + t.keys) * rows + stages * (p.head_dim * slots + t.keys * columns_v) *
                                                static_cast<std::int64_t>(size_of(p.dtype));
}

// Bytes of O between blocks of keys; what follows is aligned to 8 bytes.
core::Size row_o_bytes(const Problem& p) {
  return core::round_up(all_rows(p) * p.head_dim_v * sizeof(float), alignof(device::RowSums));
}

}  // namespace

ForwardChoice choose_forward_flash_attention(const ForwardRequest& request) {
  const Problem& p = request.problem;
  if (request.features.max_logit) {
    return ForwardChoice::refused("max_logit is asked for, which forward_flash_attention lacks");
  }
  constexpr int kGroup = 1;  // the papers know no GQA
  Tiling tiling = forward_simt_tiling(p, kGroup);
  Shape shape;
  while (shape.stages > 1 && shared_bytes(p, tiling, shape.stages) > kSharedBytes) --shape.stages;
  if (!request.parts.empty()) {
    set_parts("forward_flash_attention", request.parts,
              "n64 to n512 (keys of a block, a multiple of 64) and sparse",
              [&](std::string_view part) { return set_part(shape, tiling.keys, part); });
  }
  tiling.shared_bytes = shared_bytes(p, tiling, shape.stages);
  if (shape.stages == 1 && tiling.shared_bytes > kMostSharedBytes) {
    return ForwardChoice::refused(
        "Q, P, K and V of a block of 64 keys do not fit into shared memory");
  }
  tiling.stages = shape.stages;
  tiling.block_keys = tiling.keys * shape.stages;
  tiling.reason = "K, V outside, Q inside; O, l and m go through memory";
  return {.tiling = tiling,
          .shape = std::make_shared<ForwardFlashAttention>(shape),
          .skips_empty = shape.skips_empty};
}

core::Size forward_flash_attention_workspace(const Problem& p) {
  return row_o_bytes(p) + all_rows(p) * sizeof(device::RowSums);
}

void place_forward_flash_attention(device::ForwardParams& to, const Problem& p, void* workspace) {
  to.row_o = static_cast<float*>(workspace);
  to.row_sums = reinterpret_cast<device::RowSums*>(static_cast<std::byte*>(workspace) +
                                                   row_o_bytes(p).value());
}

}  // namespace attn::cuda
