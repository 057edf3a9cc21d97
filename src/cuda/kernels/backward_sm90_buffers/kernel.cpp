#include "cuda/kernels/backward_sm90_buffers/kernel.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "core/ceil_div.hpp"
#include "cuda/codegen/wgmma_text.hpp"
#include "cuda/kernels/tensor_core_obstacle.hpp"

namespace attn::cuda {
namespace {

struct Shape {
  int head_dim;       // up to this, of the larger of Q K's and V's
  int queries, keys;  // of a tile; 64 queries for each score warpgroup
  int part_keys;      // keys whose S and dP a thread holds at a time
  int stages;         // places for two operands of a product
  int producer_registers, score_registers;
  int spill_bytes;  // accepted, at most, under any of tests/cuda/kernels_backward*.txt
  std::string_view reason;
};

// A tile of 128 x 128 of shorter sequences would be empty for the most part.
constexpr std::int64_t kLeastLength = 96;

// Bytes of spills that are accepted: those of the producer, which is ahead of all others, and,
// where a thread keeps the bias, six words that it loads at the start of a step.
constexpr int kSpills = 48;

// Bounds: 227 KB of shared memory = places x (queries + keys) x 2 bytes x columns, rounded up to
// 64; of registers a launch gives each thread 168 where there are two score groups, 128 where there
// are three, and what the producer leaves of its own is theirs: 40 + 2 x 232 = 3 x 168. A thread
// holds keys / 2 sums, and part_keys / 2 of S and of dP.
constexpr std::array kShapes{
    Shape{
        64, 128, 128, 64, 6, 40, 232, kSpills,
        "as 128, with operands of three steps in flight; 192 KB; three warpgroups of 160 registers "
        "would spill 160 bytes in their loop"},
    Shape{128, 128, 128, 64, 3, 40, 232, kSpills,
          "two warpgroups of 64 x 128; operands of a step and a half are in flight; 192 KB; two "
          "blocks of threads that share Q and dO: 2 to 8 % slower passes"},
};

class BackwardSm90Buffers final : public BackwardShape {
 public:
  explicit BackwardSm90Buffers(const Shape& shape) : shape_(shape) {}
  void print(const BackwardConfig& c, ConfigText& to) const override {
    to.number("kPartKeys", shape_.part_keys);
    to.flag("kSameVectors", c.buffers.same_vectors);
    to.number("kProducerRegisters", shape_.producer_registers);
    to.number("kScoreRegisters", shape_.score_registers);
  }
  std::string declarations(const BackwardConfig& c) const override {
    return "template <class Element, int kColumns>\nstruct ProductSS;\n" +
           print_product_ss(c.features.dtype, shape_.part_keys);
  }

 private:
  const Shape shape_;
};

// Null where backward_sm80_buffers is to take the problem.
const Shape* shape_of(const Problem& p) {
  if (std::min(p.seqlen_q, p.seqlen_k) < kLeastLength || p.batch == 0) return nullptr;
  const std::int64_t widest = std::max(p.head_dim, p.head_dim_v);
  const auto* const row =
      std::ranges::find_if(kShapes, [&](const Shape& shape) { return widest <= shape.head_dim; });
  return row == kShapes.end() ? nullptr : row;
}

// BackwardSm90BuffersLayout
std::int64_t shared_bytes(const BackwardFeatures& f, const Shape& s) {
  constexpr std::int64_t kPanelColumns = 64, kStepBytes = 32, kBarriers = 16;
  const std::int64_t panels =
      core::ceil_div(std::int64_t{std::max(f.head_dim, f.head_dim_v)}, kPanelColumns);
  const std::int64_t place = 2 * kPanelColumns * panels * (s.queries + s.keys);
  return s.stages * (place + kStepBytes + kBarriers);
}

}  // namespace

BackwardChoice choose_backward_sm90_buffers(const BackwardRequest& request) {
  if (std::string why = tensor_core_obstacle(request.problem, request.tensors); !why.empty()) {
    return BackwardChoice::refused(std::move(why));
  }
  if (request.arch.number != 90 || !request.tensors.mapped) {
    return BackwardChoice::refused(
        "accepted are sm_90a and strides of which the driver makes maps");
  }
  // A thread has the sums in registers.
  if (!request.buffers.single_own) {
    return BackwardChoice::refused("accepted is one buffer, of elements of a query and a key each");
  }
  const Shape* const shape = shape_of(request.problem);
  if (shape == nullptr) {
    return BackwardChoice::refused(
        fmt::format("accepted are heads of up to {} columns and at least {} queries and keys",
                    kShapes.back().head_dim, kLeastLength));
  }
  constexpr int kGroupRows = 64, kGroupWarps = 4;
  return {.tiling = {.block_m = shape->queries,
                     .block_n = shape->keys,
                     .warps = kGroupWarps * (1 + shape->queries / kGroupRows),
                     .stages = shape->stages,
                     .shared_bytes = shared_bytes(request.features, *shape),
                     .reason = shape->reason,
                     .spill_bytes = shape->spill_bytes},
          .shape = std::make_shared<BackwardSm90Buffers>(*shape)};
}

std::optional<BackwardMaps> backward_sm90_buffers_maps(const BackwardConfig& config,
                                                       const Problem& p, const Inputs& inputs,
                                                       const Tensor& d_o) {
  return backward_maps(p, inputs, d_o, config.tiling.block_m, config.tiling.block_n);
}

}  // namespace attn::cuda
