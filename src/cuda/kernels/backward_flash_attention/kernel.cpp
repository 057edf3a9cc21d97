#include "cuda/kernels/backward_flash_attention/kernel.hpp"

#include <fmt/format.h>

#include "cuda/kernel_parts.hpp"
#include "cuda/kernels/backward_tiles.hpp"
#include "cuda/kernels/shared_memory.hpp"

namespace attn::cuda {
namespace {

constexpr int kMostKeys = 64, kLeastKeys = 16;  // a thread holds 8 x 4 scores at most
constexpr int kWarps = 4;

struct Shape {
  int keys = kMostKeys;  // B_c and B_r
  bool skips_empty = false;
};

class BackwardFlashAttention final : public BackwardShape {
 public:
  explicit BackwardFlashAttention(bool skips_empty) : skips_empty_(skips_empty) {}
  void print(const BackwardConfig&, ConfigText& to) const override {
    to.flag("kSkipsEmpty", skips_empty_);
  }

 private:
  const bool skips_empty_;
};

bool set_part(Shape& shape, std::string_view part) {
  if (part == kSkipsEmpty) {
    shape.skips_empty = true;
  } else if (const int n = number_after(part, "n"); n == 16 || n == 32 || n == 64) {
    shape.keys = n;
  } else {
    return false;
  }
  return true;
}

// BackwardFlashLayout has K, V, dK, dV, Q and dO, P and dS, LSE and D.
std::int64_t shared_bytes(const BackwardFeatures& f, std::int64_t keys) {
  const std::int64_t row = (f.head_dim | 1) + (f.head_dim_v | 1);
  return 4 * (2 * keys * row + keys * row + 2 * keys * (keys + 1) + 2 * keys);
}

}  // namespace

BackwardChoice choose_backward_flash_attention(const BackwardRequest& request) {
  const BackwardFeatures& f = request.features;
  const std::int64_t most = most_shared_bytes(request.arch);
  Shape shape;
  while (shape.keys > kLeastKeys && shared_bytes(f, shape.keys) > most) shape.keys /= 2;
  if (!request.parts.empty()) {
    set_parts("backward_flash_attention", request.parts,
              "n16, n32 and n64 (keys and queries of a block) and sparse",
              [&](std::string_view part) { return set_part(shape, part); });
  }
  const std::int64_t bytes = shared_bytes(f, shape.keys);
  if (bytes > most) {
    return BackwardChoice::refused(fmt::format(
        "Q, dO, K, V and their gradients, {} queries and keys at a time, take {} bytes of shared "
        "memory; accepted are up to {}",
        shape.keys, bytes, most));
  }
  return {.tiling = {.block_m = shape.keys,
                     .block_n = shape.keys,
                     .warps = kWarps,
                     .shared_bytes = bytes,
                     .reason = "K, V outside, Q inside; dQ goes through memory"},
          .shape = std::make_shared<BackwardFlashAttention>(shape.skips_empty),
          .skips_empty = shape.skips_empty};
}

core::Size backward_flash_attention_workspace(const Problem& p, const BackwardConfig&) {
  return num_rows(p) * p.head_dim * sizeof(float);
}

void place_backward_flash_attention(device::BackwardParams& to, const Problem&,
                                    const BackwardConfig&, std::byte* at) {
  to.dq_sum = reinterpret_cast<float*>(at);
}

}  // namespace attn::cuda
