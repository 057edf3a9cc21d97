#include "cuda/kernels/forward_sm90/shapes.hpp"

#include <array>

namespace attn::cuda {

// Bounds: 227 KB of shared memory = Q stages_q * warpgroups * 64 rows, K stages_k and V stages_v
// times block_n rows, in panels of 64 columns; warpgroup_registers = producer + warpgroups *
// consumer, of which a consumer thread holds O (head_dim_v / 2), S (block_n / 2) and P (block_n /
// 4). spill_bytes is what documents take; where a kernel has a follower, the producers' bytes are
// added (kForwardSm90FollowerSpills). drops_by_product: +2 % at head size 128; at 64 its factor is
// spilled, -1 %, and at 256 it gives -5 to +1 %. Rows of `long` problems have no dropout.
std::span<const ForwardSm90Shape> forward_sm90_shapes() {
  using enum Condition;
  static constexpr std::array<ForwardSm90Shape, 13> kShapes{{
      {64, block_rows_of_128, 2, 128, 4, 4, 2, true, false, 56, 224, 0,
       "128 rows: a tile of 192 straddles rows of blocks, visits what either sees and masks the "
       "rest"},
      {64, key_blocks_of_64, 2, 128, 4, 4, 2, true, false, 56, 224, 0,
       "128 rows and two blocks of 64 keys that they see, wherever these lie: of 192 rows more "
       "would "
       "see blocks that others do not"},
      {64, score_of_elements, 2, 128, 4, 4, 2, true, false, 56, 224, 0,
       "two warpgroups: with three, what is loaded for the scores is spilled; a bf16 bias takes "
       "0.77 of the time at 2048 keys, one of f32 0.52"},
      {64, few_masked_keys, 3, 128, 4, 4, 4, false, false, 32, 160, 68,
       "tiles of one to four blocks: 4 places for Q, as O leaves through them, and no turns, as "
       "warpgroups differ in blocks; +5 % at 512 keys under a causal mask, 0 at 1024"},
      {64, always, 3, 128, 4, 4, 2, true, false, 32, 160, 52,
       "three warpgroups of 160 registers hide the exponentials, which take as long as the "
       "products; 112 keys are 2 to 8 % slower"},
      {128, long_and_plain, 2, 176, 2, 2, 1, true, false, 40, 232, 16,
       "176 keys: Q is read from shared memory a quarter less often; +2 to +3 % from 4096 keys on, "
       "+5 to +7 % at head size 96; under a causal mask -5 % at 4096 keys, where the one place for "
       "Q is waited for"},
      {128, long_with_score, 2, 160, 2, 2, 2, true, false, 40, 232, 8,
       "160 keys: as without a score, and two places for Q; +4 % at 4096 keys, 176 have +2 %"},
      {96, always, 2, 128, 2, 2, 2, true, false, 56, 224, 0,
       "two warpgroups of 224 registers; 64 rows x 128 keys each; a third stage of K gains "
       "nothing"},
      {128, always, 2, 128, 3, 2, 2, true, true, 56, 224, 8,
       "as 96; 3 stages of K, 2 of V and 2 of Q fill 224 KB"},
      {192, narrow_values, 2, 128, 2, 2, 1, true, false, 40, 232, 0,
       "128 keys: Q and two stages of K and V fill 208 KB; +2 to +4 % over 112 at (192, 128)"},
      {192, always, 2, 112, 2, 2, 1, true, false, 56, 224, 0,
       "112 keys: Q and two stages of K and V fill 216 KB; 80 and 64 keys are 5 to 15 % slower"},
      {256, few_keys, 2, 64, 3, 2, 1, true, false, 56, 224, 0,
       "64 keys divide 512, where 80 leave three fifths of the last block empty; +4 % there, none "
       "at 1024"},
      {256, always, 2, 80, 2, 2, 1, true, false, 40, 232, 8,
       "80 keys: Q and two stages of K and V fill 224 KB; consumers of 224 registers are 1 % "
       "slower from 4096 keys on"},
  }};
  return kShapes;
}

}  // namespace attn::cuda
