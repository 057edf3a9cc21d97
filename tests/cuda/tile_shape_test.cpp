// Rows of the tables of tile shapes that depend on more than the head size.
#include <gtest/gtest.h>

#include <initializer_list>

#include "attn/mask.hpp"
#include "attn/problem.hpp"
#include "cuda/kernels/forward_sm90/kernel.hpp"
#include "cuda/plan/choose_forward.hpp"
#include "cuda/plan/tile_order.hpp"

namespace attn::cuda {
namespace {

int rows_of_tile(const Problem& problem) {
  return choose_forward(problem, Arch{90, true}, {}, 1, "forward_sm90").tiling.rows;
}
int rows_of_tile(const std::string& mask) {
  return rows_of_tile(parse_problem("b1_n4096_h32_d64_bf16_buffer(blocks:u8:8x64x64)" + mask));
}

TEST(TileShape, FollowsRowsOfBlocksAtHeadSize64) {
  for (const char* mask :
       {"_mask(blocks[0,query/128,key/64]!=0)", "_mask(blocks[head,query/256,key/128]==1)",
        "_causal_mask(blocks[0,query/128,key/128]!=0)",
        "_mask(blocks[0,1,key/128]!=blocks[head,query/128,2])"}) {
    EXPECT_EQ(rows_of_tile(mask), 128) << mask;
  }
  for (const char* mask :
       {"", "_causal", "_documents", "_mask(blocks[0,query/64,key/128]!=0)",
        "_mask(blocks[0,query/384,key/128]!=0)", "_mask(blocks[0,key/128,key/128]!=0)",
        "_mask(query/128==key/128)", "_mask(blocks[0,query%128,key/128]!=0)",
        "_mask(blocks[0,(query+5)/128,key/128]!=0)"}) {
    EXPECT_EQ(rows_of_tile(mask), 192) << mask;
  }
  // As the library's own block masks say it.
  Problem problem = parse_problem("b1_n4096_h32_d64_bf16");
  problem.mask = BlockMask::butterfly(4096, 4096, 128).mask();
  EXPECT_EQ(rows_of_tile(problem), 128);
  // Positions of a cache begin at a multiple of the block, or do not.
  problem.seqlen_k = 8192;
  EXPECT_EQ(rows_of_tile(problem), 128);
  problem.seqlen_k = 8200;
  EXPECT_EQ(rows_of_tile(problem), 192);
}

// Masks of blocks of 64 keys, or of an odd multiple, have tiles of two such blocks wherever they
// lie (device/schedule/gathered_blocks.cuh).
TEST(TileShape, GathersBlocksOf64Keys) {
  const auto gathered = [](const char* problem) {
    const Tiling tiling =
        choose_forward(parse_problem(problem), Arch{90, true}, {}, 1, "forward_sm90").tiling;
    EXPECT_TRUE(tiling.gathered_keys == 0 || (tiling.rows == 128 && tiling.keys == 128)) << problem;
    return tiling.gathered_keys;
  };
  for (const char* problem : {
           "b1_n4096_h4_d64_mask(m[0,query/64,key/64]!=0)_buffer(m:u8:1x64x64)_bf16",
           "b1_n4096_h4_d128_mask(m[query/128,key/192]!=0)_causal_buffer(m:u8:32x22)_f16",
           "b1_n4096_h4_d128_butterfly64_softcap20_alibi_bf16",
           "b2_n4096_h4_d96_paged16_mask(m[0,query/64,key/64]!=0)_buffer(m:u8:1x64x64)_bf16",
       }) {
    EXPECT_EQ(gathered(problem), 64) << problem;
  }
  for (const char* problem : {
           "b1_n4096_h4_d128_mask(m[0,query/64,key/128]!=0)_buffer(m:u8:1x64x32)_bf16",
           "b1_n4096_h4_d128_mask(m[0,query/64,key/32]!=0)_buffer(m:u8:1x64x128)_bf16",
           "b1_n4096_h4_d128_mask(m[0,query/64,(key+3)/64]!=0)_buffer(m:u8:1x64x65)_bf16",
           "b1_n4096_h4_d128_butterfly64_dropout0.1_bf16",
           "b1_n4096_h4_d128_butterfly64_bias_bf16",
           "b1_n4096_h4_d256_butterfly64_bf16",
           "b1_n4096_h4_d128_causal_bf16",
           // The lists would take more than 256 MB.
           "b1_n262144_h16_d64_mask(m[head,0,key/64]!=0)_buffer(m:u8:16x1x4096)_bf16",
       }) {
    EXPECT_EQ(gathered(problem), 0) << problem;
  }
}

struct Keys {
  const char* problem;
  int keys;  // of a tile
};
void expect(std::initializer_list<Keys> all) {
  for (const auto& [problem, keys] : all) {
    const Problem p = parse_problem(problem);
    EXPECT_EQ(choose_forward(p, Arch{90, true}, {}, 1, "forward_sm90").tiling.keys, keys)
        << problem;
  }
}

TEST(TileShape, FollowsTheNumberOfKeys) {
  expect({{"b1_n4096_h1_d128_bf16", 176},
          {"b1_n8191_h1_d128_causal_bf16", 128},
          {"b1_n8192_h1_d128_causal_bf16", 176},
          {"b1_n4096_h1_d72_bf16", 176},
          {"b1_n4096_h1_d96_causal_bf16", 176},
          {"b1_n4096_h1_d64_bf16", 128},
          {"b1_n4095_h1_d128_bf16", 128},
          {"b1_sq1_sk8192_h1_d128_bf16", 128},
          {"b1_sq4096_sk576_h1_d256_bf16", 64},
          {"b1_sq16_sk577_h1_d256_bf16", 80}});
}

int heads_together(const char* problem, const char* kernel = "forward_sm90") {
  const Problem p = parse_problem(problem);
  return heads_at_once(p, choose_forward(p, Arch{90, true}, {}, 1, kernel));
}

TEST(HeadsAtOnce, AreThoseWhoseKeysAndValuesStayInL2) {
  EXPECT_EQ(heads_together("b32_n512_h16_d128_bf16"), 1);  // without a mask tiles are as long
  EXPECT_EQ(heads_together("b8_n2048_h16_d128_causal_bf16"), 32);
  EXPECT_EQ(heads_together("b1_n16384_h16_d128_causal_bf16"), 4);
  EXPECT_EQ(heads_together("b1_n16384_h2_d128_causal_bf16"), 2);
  EXPECT_EQ(heads_together("b32_n512_h32_d64_causal_bf16"), 256);
  EXPECT_EQ(heads_together("b32_n512_h8_d256_causal_bf16"), 64);
  const char* float8 = "forward_sm90_float8";  // also where tiles of a head are few
  EXPECT_EQ(heads_together("b32_n512_h16_d128_causal_q(e4m3)_kv(e4m3)_bf16", float8), 128);
  EXPECT_EQ(heads_together("b16_n1024_h8_d256_causal_q(e4m3)_kv(e4m3)_bf16", float8), 32);
}

TEST(HeadsAtOnce, AreFewWhereTilesOfAHeadAre) {
  EXPECT_EQ(heads_together("b32_n512_h16_d128_causal_bf16"), 16);
  EXPECT_EQ(heads_together("b16_n1024_h16_d128_causal_bf16"), 8);
  EXPECT_EQ(heads_together("b64_n256_h16_d128_causal_bf16"), 32);
  EXPECT_EQ(heads_together("b1_n512_h3_d128_causal_bf16"), 3);
}

TEST(TileShape, FollowsWhatIsDoneWithScores) {
  expect({{"b1_n4096_h1_d128_softcap30_bf16", 160},
          {"b1_n4096_h1_d128_causal_alibi_bf16", 160},
          {"b1_n4096_h1_d128_bias_bf16", 128},
          {"b1_n4096_h1_d128_window1024x0_bf16", 128},
          {"b1_n4096_h1_d128_prefix8_bf16", 128},
          {"b1_n4096_h1_d128_documents_bf16", 128},
          {"b1_n4096_h1_d128_dropout0.1_bf16", 128}});
}

int near_blocks(const char* problem) {
  const ForwardConfig config =
      choose_forward(parse_problem(problem), Arch{90, true}, {}, 1, "forward_sm90");
  return dynamic_cast<const ForwardSm90&>(*config.shape).near_blocks;
}

TEST(TileShape, DealsLateWhereTilesAreShort) {
  EXPECT_EQ(near_blocks("b32_n512_h16_d128_causal_bf16"), 1);
  EXPECT_EQ(near_blocks("b32_n512_h16_d64_causal_bf16"), 1);
  EXPECT_EQ(near_blocks("b32_n512_h8_d256_causal_bf16"), 2);
  EXPECT_EQ(near_blocks("b32_n512_h16_d128_bf16"), 2);
  EXPECT_EQ(near_blocks("b16_n1024_h16_d128_causal_bf16"), 2);
}

// V of 8-bit floats is transposed by each tile of queries that reads it where a K, V head has few,
// grouped heads counted, else once by a kernel ahead.
TEST(TileShape, TransposesValuesWhereFewTilesReadThem) {
  const auto ahead = [](const char* problem) {
    return choose_forward(parse_problem(problem), Arch{90, true}, {}, 1, "forward_sm90_float8")
        .shape->reads_transposed();
  };
  for (const char* problem :
       {"b8_n512_h16_d128_q(e4m3)_kv(e4m3)_bf16", "b8_n1024_h32_d64_causal_q(e4m3)_kv(e4m3)_bf16",
        "b8_sq1_sk8192_h8_d256_q(e4m3)_kv(e4m3)_bf16"}) {
    EXPECT_FALSE(ahead(problem)) << problem;
  }
  for (const char* problem :
       {"b1_n16384_h16_d128_q(e4m3)_kv(e4m3)_bf16", "b8_n512_hq32_hk1_d128_q(e4m3)_kv(e4m3)_bf16",
        "b1_n16384_h32_d64_causal_q(e4m3)_kv(e4m3)_bf16",
        "b1_n16384_h8_d256_q(e4m3)_kv(e4m3)_bf16"}) {
    EXPECT_TRUE(ahead(problem)) << problem;
  }
}

TEST(TileShape, FollowsTheValuesHeadSize) {
  expect({{"b1_n4096_h1_d192_dv128_bf16", 128},
          {"b1_n4096_h1_d192_bf16", 112},
          {"b1_n4096_h1_d128_dv192_bf16", 112}});
}

TEST(TileShape, FitsPages) {
  expect({{"b1_n4096_h1_d128_paged256_bf16", 128},
          {"b1_n4096_h1_d128_paged16_bf16", 128},
          {"b1_n4096_h1_d128_paged192_bf16", 64},
          {"b1_n4096_h1_d192_dv128_paged192_bf16", 64},
          {"b1_n4096_h1_d256_paged64_bf16", 64}});
}

}  // namespace
}  // namespace attn::cuda
