// The workspace that plans ask for: partial results of splits, the words of blocks of keys where
// the mask reads buffers, and sums of the gradients of buffers.
#include "cuda/backward/workspace.hpp"

#include <gtest/gtest.h>

#include "attn/problem.hpp"
#include "cuda/backward/one_pass.hpp"
#include "cuda/forward/parameters.hpp"
#include "cuda/plan/choose_backward.hpp"
#include "cuda/plan/choose_forward.hpp"

namespace attn::cuda {
namespace {

constexpr Arch kHopper{90, true};
constexpr const char* kForwardSm90 = "forward_sm90";

std::int64_t bytes(const std::string& descriptor, std::int32_t splits = 1) {
  return workspace_bytes(parse_problem(descriptor), kHopper, splits, {}).value();
}
std::int64_t words(const std::string& descriptor, const ForwardTensors& tensors = {}) {
  const Problem problem = parse_problem(descriptor);
  return num_key_words(problem, choose_forward(problem, kHopper, tensors, 1, kForwardSm90)).value();
}

const std::string kBlocks = "_mask(blocks[query/128,key/128]!=0)_buffer(blocks:u8:128x128)";

// forward_sm90 at d 128 has tiles of 128 rows in two parts and blocks of 128 keys.
TEST(KeyWords, OneForEachPartAndWindow) {
  EXPECT_EQ(words("b1_n16384_h16_d128_causal_bf16"), 0);
  EXPECT_EQ(words("b1_n16384_h16_d128_bf16" + kBlocks), 128 * 4 * 2);
  // A tile that is begun, a window that is begun.
  EXPECT_EQ(words("b1_sq129_sk4097_h16_d128_bf16" + kBlocks), 2 * 2 * 2);
}

TEST(KeyWords, OfHeadsAndBatchesWhereTheyDiffer) {
  const std::string sizes = "b3_n4096_hq8_hk4_d128_bf16_buffer(seen:u8:8x4096)";
  constexpr std::int64_t kOnce = 32 * 1 * 2;
  EXPECT_EQ(words(sizes + "_mask(seen[0,key]!=0)"), kOnce);
  EXPECT_EQ(words(sizes + "_mask(seen[head,key]!=0)"), 8 * kOnce);
  EXPECT_EQ(words(sizes + "_mask(seen[batch,key]!=0)"), 3 * kOnce);
  EXPECT_EQ(words(sizes + "_mask(seen[batch,key]!=0&&head!=2)"), 3 * 8 * kOnce);
  // Lengths that differ.
  EXPECT_EQ(words(sizes + "_mask(seen[0,key]!=0)_packed"), 3 * kOnce);
  EXPECT_EQ(words(sizes + "_mask(seen[0,key]!=0)_paged128"), 3 * kOnce);
  EXPECT_EQ(words(sizes + "_mask(seen[0,key]!=0)", {.seqused_q = true}), 3 * kOnce);
  EXPECT_EQ(words(sizes + "_mask(seen[0,key]!=0)", {.seqused_k = true}), 3 * kOnce);
  // Two heads of a group share a tile: 32 queries of each.
  EXPECT_EQ(
      words("b3_sq32_sk4096_hq8_hk4_d128_bf16_buffer(seen:u8:8x4096)_mask(seen[head,key]!=0)"),
      4 * 1 * 2);
}

TEST(Workspace, HoldsPartialResultsAndWords) {
  const std::string sizes = "b2_sq100_sk5000_h4_d128_bf16";
  EXPECT_EQ(bytes(sizes), 0);
  constexpr std::int64_t kPartial = 3 * 2 * 4 * 100 * (128 + 2) * 4 + 4;  // and the piece's blocks
  EXPECT_EQ(bytes(sizes, 3), kPartial);
  // Whichever kernel the tensors lead to: forward_simt has the most words here, of 4 parts of 16
  // rows, for each batch entry, since tensors may come with lengths.
  const std::int64_t most = bytes(sizes + kBlocks);
  EXPECT_EQ(bytes(sizes + kBlocks, 3), (kPartial + 7) / 8 * 8 + most);
  const Problem problem = parse_problem(sizes + kBlocks);
  std::int64_t largest = 0;
  for (const char* kernel : {"forward_sm90", "forward_sm80", "forward_simt"}) {
    const ForwardConfig config = choose_forward(problem, kHopper, {.seqused_q = true}, 1, kernel);
    const std::int64_t tiles = (100 + config.tiling.rows - 1) / config.tiling.rows;
    const std::int64_t windows = (5000 + 32 * config.tiling.keys - 1) / (32 * config.tiling.keys);
    const std::int64_t of_kernel = 8 * 2 * tiles * windows * config.tiling.parts;
    EXPECT_EQ((num_key_words(problem, config) * 8).value(), of_kernel) << kernel;
    largest = std::max(largest, of_kernel);
  }
  EXPECT_EQ(most, largest);
  // An odd number of floats before them.
  constexpr std::int64_t kOdd = 3 * 1 * 1 * 1 * (2 + 2) * 4;
  EXPECT_EQ(bytes("b1_sq1_sk900_h1_d2_f32" + kBlocks, 3) % 8, 0);
  EXPECT_GT(bytes("b1_sq1_sk900_h1_d2_f32" + kBlocks, 3), kOdd);
}

// What a call brings is not known when it is planned. Lists of blocks of 64 keys are made where
// they take at most 256 MB, which they pass here for each batch entry, as lengths ask for, and not
// once.
TEST(Workspace, HoldsListsOfBlocksWhateverTensorsACallBrings) {
  for (const char* descriptor :
       {"b1_n131072_h32_d64_bf16_mask(blocks[head,query/64,key/64]!=0)_"
        "buffer(blocks:u8:32x2048x2048)",
        "b2_n131072_h32_d64_bf16_mask(blocks[head,query/64,key/64]!=0)_"
        "buffer(blocks:u8:32x2048x2048)",
        "b64_n16384_hq8_hk2_d128_f16_mask(blocks[head,query/128,key/192]!=0)_"
        "buffer(blocks:u8:8x128x86)"}) {
    const std::int64_t planned = bytes(descriptor);
    for (int used = 0; used < 4; ++used) {
      const ForwardTensors tensors{.seqused_q = used % 2 != 0, .seqused_k = used / 2 != 0};
      EXPECT_GE(planned, 8 * words(descriptor, tensors)) << descriptor << " used " << used;
    }
  }
}

std::int64_t bytes_backward(const std::string& descriptor, bool deterministic) {
  return checked_workspace(parse_problem(descriptor), *find_backward_kernel("backward_simt"),
                           {.arch = kHopper, .deterministic = deterministic});
}

// What a call brings is not known when it is planned: lengths make words of each batch entry, and
// without lengths tiles of few keys take turns, which have words too.
TEST(Workspace, HoldsWhateverTensorsACallBrings) {
  const BackwardKernel& kernel = *find_backward_kernel("backward_sm90");
  for (const char* descriptor :
       {"b32_n512_h32_d64_bf16", "b32_n512_h16_d128_causal_bf16", "b32_n512_h8_d256_f16",
        "b128_sq2000_sk128_h16_d64_bf16", "b1024_n16_h2_d8_bf16", "b9_n3000_h2_d64_bf16"}) {
    const Problem p = parse_problem(descriptor);
    for (const bool deterministic : {false, true}) {
      const BackwardWish wish{.arch = kHopper, .deterministic = deterministic};
      const core::Size planned = checked_workspace(p, kernel, wish);
      for (int used = 0; used < 4; ++used) {
        const BackwardTensors tensors{.seqused_q = used % 2 != 0, .seqused_k = used / 2 != 0};
        const BackwardConfig config =
            backward_config(kernel, p, tensors, device::Gradient::all, wish);
        EXPECT_GE(planned, kernel_offset(p, deterministic) + kernel.workspace(p, config))
            << descriptor << " deterministic " << deterministic << " used " << used;
      }
    }
  }
}

// LSE and D of each row; as much again where the score may add so much that LSE is far from 0.
TEST(Workspace, HoldsFarRows) {
  constexpr std::int64_t kRows = 2 * 3 * 50 * 8;
  for (const char* near :
       {"", "_softcap30", "_score(score*1e9)", "_score(score-0.25*floor(abs(query-key)/1.7))",
        "_score(select(key<3,score,score-500000.0))"}) {
    EXPECT_EQ(bytes_backward("b2_n50_h3_d20" + std::string(near) + "_f32", true), kRows) << near;
  }
  for (const char* far : {"_score(score-select(key<3,1e9,0.0))", "_score(select(key<3,-1e6,score))",
                          "_score(score-1e4*to_float(seqlen_k))",
                          "_score(20.0*tanh(score)-20000.0*to_float(abs(query-key)))"}) {
    EXPECT_EQ(bytes_backward("b2_n50_h3_d20" + std::string(far) + "_f32", true), 2 * kRows + 16)
        << far;
  }
}

// Then sums: exact ones are of 56 bytes, those of elements of one query and key each in parts of 4.
TEST(Workspace, HoldsSumsOfBuffers) {
  constexpr std::int64_t kRows = 2 * 3 * 50 * 16 + 16;
  EXPECT_EQ(bytes_backward("b2_n50_h3_d20_alibi_f32", false), kRows + 3 * 8);
  EXPECT_EQ(bytes_backward("b2_n50_h3_d20_alibi_f32", true), kRows + 3 * 56);
  for (const bool deterministic : {false, true}) {
    EXPECT_EQ(bytes_backward("b2_n50_h3_d20_bias2x3x50x50_f32", deterministic), kRows);
    EXPECT_EQ(bytes_backward("b2_n50_h3_d20_bias1x3x50x50_f32", deterministic),
              kRows + 2 * 3 * 50 * 50 * 4);
  }
  const std::string both = "b2_n50_h3_d20_alibi_bias1x3x50x50_f32";
  EXPECT_EQ(bytes_backward(both, false), kRows + 3 * 8 + 2 * 3 * 50 * 50 * 4);
  EXPECT_EQ(bytes_backward(both, true), kRows + 3 * 56 + 2 * 3 * 50 * 50 * 4);
}

}  // namespace
}  // namespace attn::cuda
