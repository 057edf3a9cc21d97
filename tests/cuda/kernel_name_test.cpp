// Names of kernels with parts of a tile shape.
#include <gtest/gtest.h>

#include <tuple>

#include "attn/error.hpp"
#include "attn/problem.hpp"
#include "cuda/kernels/backward_sm80/kernel.hpp"
#include "cuda/kernels/backward_sm90/kernel.hpp"
#include "cuda/kernels/backward_tiles.hpp"
#include "cuda/kernels/forward_sm90/kernel.hpp"
#include "cuda/kernels/shared_memory.hpp"
#include "cuda/plan/backward_kernel_name.hpp"
#include "cuda/plan/choose_backward.hpp"
#include "cuda/plan/choose_forward.hpp"
#include "cuda/plan/forward_kernel_name.hpp"
#include "cuda/support.hpp"

namespace attn::cuda {
namespace {

constexpr Arch kHopper{90, true};

ForwardConfig chosen(const std::string& descriptor, std::string_view kernel) {
  return choose_forward(parse_problem(descriptor), kHopper, {}, 1, kernel);
}

const ForwardSm90Shape& sm90(const ForwardConfig& config) {
  return dynamic_cast<const ForwardSm90&>(*config.shape).shape;
}

TEST(KernelName, PartsReplaceThoseOfTheTable) {
  const ForwardConfig table = chosen("b1_n2048_h16_d128_bf16", "");
  const ForwardConfig same = chosen("b1_n2048_h16_d128_bf16", "forward_sm90");
  EXPECT_EQ(table.tiling.keys, same.tiling.keys);
  ASSERT_EQ(table.tiling.keys, 128);
  ASSERT_EQ(sm90(table).stages_k, 3);
  const ForwardConfig wide = chosen("b1_n2048_h16_d128_bf16", "forward_sm90/n160_p40_s2");
  EXPECT_EQ(wide.tiling.keys, 160);
  EXPECT_EQ(sm90(wide).producer_registers, 40);
  EXPECT_EQ(sm90(wide).consumer_registers, 232);  // (504 - 40) / 2, a multiple of 8
  EXPECT_EQ(wide.tiling.stages, 2);
  EXPECT_EQ(sm90(wide).stages_k, 2);
  EXPECT_EQ(sm90(wide).stages_q, sm90(table).stages_q);
  EXPECT_EQ(wide.tiling.rows, table.tiling.rows);
  const ForwardConfig other = chosen("b1_n4096_h32_d64_bf16", "forward_sm90/wg2_s2_q1_p56_noturns");
  EXPECT_EQ(other.tiling.rows, 128);
  EXPECT_EQ(other.tiling.stages, 2);
  EXPECT_EQ(sm90(other).stages_k, 2);
  EXPECT_EQ(sm90(other).stages_q, 1);
  const ForwardConfig deep = chosen("b1_n2048_h16_d128_bf16", "forward_sm90/s3_k2");
  EXPECT_EQ(deep.tiling.stages, 3);
  EXPECT_EQ(sm90(deep).stages_k, 2);
  EXPECT_EQ(sm90(other).consumer_registers, 224);
  EXPECT_FALSE(sm90(other).take_turns);
  EXPECT_TRUE(sm90(chosen("b1_n4096_h32_d64_bf16", "forward_sm90/turns")).take_turns);
}

// setmaxnreg never returns where there are fewer registers than asked for.
TEST(KernelName, RegistersAreThoseOfTheLaunch) {
  for (const char* warpgroups : {"wg2", "wg3"}) {
    for (int producer = 24; producer <= 64; producer += 8) {
      const ForwardConfig config =
          chosen("b1_n512_h2_d64_bf16", std::string("forward_sm90/n64_s2_q1_") + warpgroups + "_p" +
                                            std::to_string(producer));
      const int consumers = config.tiling.parts;
      const int at_launch = 65536 / config.tiling.threads / 8 * 8;  // of a thread
      EXPECT_LE(sm90(config).producer_registers + consumers * sm90(config).consumer_registers,
                (1 + consumers) * at_launch)
          << warpgroups << ' ' << producer;
      EXPECT_GE(sm90(config).consumer_registers, at_launch);
    }
  }
  for (const ForwardSm90Shape& row : forward_sm90_shapes()) {
    EXPECT_LE(row.producer_registers + row.warpgroups * row.consumer_registers,
              warpgroup_registers(row.warpgroups))
        << row.reason;
  }
}

TEST(KernelName, Refusals) {
  const auto refused = [](std::string_view kernel) {
    return refusal(ErrorCode::invalid_argument, [&] { chosen("b1_n512_h2_d128_bf16", kernel); });
  };
  for (const char* part : {"wg4", "wg", "n24", "n272", "n0", "s9", "k0", "q3", "q8", "p20", "p72",
                           "fast", "n16x", "n-16"}) {
    const std::string text = refused(std::string("forward_sm90/wg2_") + part);
    expect_contains(text, std::string("'") + part + "'");
    expect_contains(text, "wg2 and wg3");
  }
  expect_contains(refused("forward_sm90/n128_"), "''");
  expect_contains(refused("forward_sm80/n128"), "only forward_sm90");
  expect_contains(refused("forward_sm90/n256_s8"), "shared memory");
  expect_contains(refused("fast"),
                  "accepted are forward_sm80_few_rows, forward_sm90_float8, forward_sm90, ");
  const std::string odd = refusal(ErrorCode::invalid_argument, [] {
    chosen("b1_n512_h2_d128_q(e4m3)_kv(e4m3)_bf16", "forward_sm90_float8/n48");
  });
  expect_contains(odd, "'forward_sm90_float8/n48', of 48 keys; accepted are multiples of 32");
  expect_contains(refused("forward_sm90/within1"), "'within1'");
  const std::string wide = refusal(ErrorCode::invalid_argument, [] {
    chosen("b1_n512_h2_d128_q(e4m3)_kv(e4m3)_bf16", "forward_sm90_float8/n160_within1");
  });
  EXPECT_EQ(
      chosen("b1_n512_h2_d128_q(e4m3)_kv(e4m3)_bf16", "forward_sm90_float8/n160_s2").tiling.keys,
      160);
  expect_contains(wide, "of 160 keys whose V is transposed within; accepted are up to 128");
}

// Bits of dropout come for 64 keys, of which a tile may use 32: 16 would be none.
TEST(KernelName, TilesWithDropoutHaveKeys) {
  const std::string descriptor = "b1_n512_h2_d128_dropout0.1_seed1_bf16";
  const std::string text =
      refusal(ErrorCode::invalid_argument, [&] { chosen(descriptor, "forward_sm90/wg2_n16"); });
  expect_contains(text, "'forward_sm90/wg2_n16', of 16 keys");
  expect_contains(text, "n32 to n256");
  EXPECT_EQ(chosen(descriptor, "forward_sm90/n48").tiling.keys, 32);
  EXPECT_EQ(chosen(descriptor, "forward_sm90/n96").tiling.keys, 64);
  EXPECT_EQ(chosen(descriptor, "forward_sm90/n160_s2").tiling.keys, 128);
  EXPECT_EQ(chosen("b1_n512_h2_d128_bf16", "forward_sm90/n16").tiling.keys, 16);
}

TEST(KernelName, AlgorithmsOfThePapersHaveAKernelEach) {
  EXPECT_EQ(forward_kernel_name(Algorithm::standard, ""), "forward_standard");
  EXPECT_EQ(forward_kernel_name(Algorithm::flash_attention, "forward_flash_attention/n128"),
            "forward_flash_attention/n128");
  EXPECT_EQ(forward_kernel_name(Algorithm::flash_attention_2, "forward_simt"), "forward_simt");
  const std::string sparse =
      forward_kernel_name(Algorithm::block_sparse, "forward_flash_attention/n128");
  const ForwardConfig config = chosen("b1_n2048_h16_d64_causal_bf16", sparse);
  EXPECT_EQ(config.tiling.keys_at_once(), 128);
  EXPECT_EQ(config.algorithm, Algorithm::block_sparse);
  // Without a number, as many keys as let the smallest GPU hold them.
  const ForwardConfig d64 = chosen("b1_n2048_h16_d64_bf16", "forward_flash_attention");
  EXPECT_EQ(d64.tiling.keys_at_once(), 192);
  EXPECT_LE(d64.tiling.shared_bytes, 99 << 10);
  EXPECT_EQ(chosen("b1_n2048_h16_d64_bf16", "").kernel->name, "forward_sm90");  // never unasked
}

// forward_standard works in the tiles of forward_simt, so it needs as much.
TEST(KernelName, StandardHasTheSharedMemoryOfSimt) {
  for (const char* text : {"b1_n300_h2_d64_bf16", "b1_n300_h2_d512_f32"}) {
    EXPECT_EQ(chosen(text, "forward_standard").tiling.shared_bytes,
              chosen(text, "forward_simt").tiling.shared_bytes);
  }
}

TEST(KernelName, AlgorithmsOfThePapersRefuse) {
  const auto refused = [](Algorithm algorithm, std::string_view kernel) {
    return refusal(ErrorCode::invalid_argument, [&] { forward_kernel_name(algorithm, kernel); });
  };
  expect_contains(refused(Algorithm::standard, "forward_simt"),
                  "accepted with it is forward_standard");
  expect_contains(
      refused(Algorithm::flash_decoding, "forward_flash_attention/n64"),
      "forward_sm90, forward_sm80, forward_sm90_wide, forward_sm80_wide or forward_simt");
  for (const char* part : {"n32", "n100", "n576", "dense"}) {
    expect_contains(
        refusal(
            ErrorCode::invalid_argument,
            [&] { chosen("b1_n512_h2_d64_bf16", std::string("forward_flash_attention/") + part); }),
        "n64 to n512");
  }
  expect_contains(refusal(ErrorCode::invalid_argument,
                          [] { chosen("b1_n512_h2_d128_f32", "forward_flash_attention/n512"); }),
                  "shared memory");
  expect_contains(refusal(ErrorCode::unsupported,
                          [] { chosen("b1_n512_h2_d512_f32", "forward_flash_attention"); }),
                  "a block of 64 keys");
}

BackwardConfig backward_chosen(const std::string& descriptor, std::string_view kernel,
                               bool deterministic = false) {
  const Problem p = parse_problem(descriptor);
  const BackwardWish wish{kHopper, kernel, deterministic};
  return backward_config(choose_backward_kernel(p, {}, wish), p, {}, device::Gradient::all, wish);
}

int heads_together(const char* problem) {
  return heads_at_once(parse_problem(problem), backward_chosen(problem, "backward_sm90"));
}

TEST(BackwardHeadsAtOnce, AreMoreWhereAWindowHasFewTiles) {
  EXPECT_EQ(heads_together("b1_sq8192_sk10240_hq64_hk8_d128_window4096x0_bf16"), 4);
  EXPECT_EQ(heads_together("b1_n16384_hq64_hk8_d128_window4096x0_bf16"), 2);
  EXPECT_EQ(heads_together("b1_n16384_hq64_hk8_d128_causal_bf16"), 1);
  EXPECT_EQ(heads_together("b1_n8192_h16_d128_window4096x0_bf16"), 2);
  EXPECT_EQ(heads_together("b2_n16384_hq64_hk8_d128_window4096x0_bf16"), 1);  // many tiles
}

const BackwardSm90Shape& backward_sm90(const BackwardConfig& config) {
  return dynamic_cast<const BackwardSm90&>(*config.shape).shape;
}

const BackwardSm80Shape& backward_sm80(const BackwardConfig& config) {
  return dynamic_cast<const BackwardSm80&>(*config.shape).shape;
}

TEST(KernelName, BackwardPartsReplaceThoseOfTheTable) {
  const BackwardConfig table = backward_chosen("b1_n2048_h16_d64_bf16", "");
  ASSERT_EQ(table.kernel->name, "backward_sm90");
  ASSERT_EQ(backward_sm90(table).score_groups, 2);
  const BackwardConfig one =
      backward_chosen("b1_n2048_h16_d64_bf16", "backward_sm90/c1_q3_o2_r40_x216");
  EXPECT_EQ(backward_sm90(one).score_groups, 1);
  EXPECT_EQ(one.tiling.stages, 3);
  EXPECT_EQ(backward_sm90(one).stages_o, 2);
  EXPECT_EQ(backward_sm90(one).stages_p, backward_sm90(table).stages_p);
  EXPECT_EQ(one.tiling.block_m, table.tiling.block_m);
  EXPECT_EQ(backward_sm90(one).producer_registers, 40);
  EXPECT_EQ(backward_sm90(one).score_registers, 216);
  EXPECT_EQ(backward_sm90(one).gradient_registers, 128);  // (512 - 40 - 216) / 2
}

TEST(KernelName, BackwardPartsOfThePortableKernel) {
  const BackwardConfig table = backward_chosen("b1_n2048_h16_d64_bf16", "backward_sm80");
  const BackwardConfig named =
      backward_chosen("b1_n2048_h16_d64_bf16", "backward_sm80/m64_s1_x2_q2_l40");
  EXPECT_EQ(named.kernel->name, "backward_sm80");
  EXPECT_EQ(named.tiling.block_n, 64);
  EXPECT_EQ(named.tiling.stages, 1);
  EXPECT_EQ(backward_sm80(named).score_warps, 2);
  EXPECT_EQ(backward_sm80(named).query_warps, 2);
  EXPECT_EQ(named.tiling.l2_megabytes, 40);
  EXPECT_EQ(named.tiling.block_m, table.tiling.block_m);
  EXPECT_EQ(backward_sm80(named).key_warps, backward_sm80(table).key_warps);
}

// Few tiles of keys and many in all: a pass in order is faster and is chosen, asked for or not.
TEST(KernelName, BackwardTakesTurnsWhereThatIsFaster) {
  const auto ordered = [](const char* descriptor) {
    return backward_chosen(descriptor, "backward_sm90").ordered;
  };
  for (const char* descriptor : {"b32_n512_h32_d64_bf16", "b32_n512_h16_d128_causal_bf16",
                                 "b32_n512_h8_d256_f16", "b128_sq2000_sk128_h16_d64_bf16"}) {
    EXPECT_TRUE(ordered(descriptor)) << descriptor;
  }
  for (const char* descriptor :
       {"b1_n512_h16_d128_bf16", "b16_n1024_h32_d64_bf16", "b32_n512_h8_d128_bf16",
        "b32_n512_hq32_hk4_d64_bf16", "b32_n512_h32_d64_dropout0.1_seed3_bf16",
        "b32_n512_h32_d64_packed_bf16", "b64_n512_h8_d192_bf16"}) {
    EXPECT_FALSE(ordered(descriptor)) << descriptor;
  }
  EXPECT_TRUE(backward_chosen("b1_n4096_h16_d128_bf16", "", true).ordered);
  // Named parts are as named.
  const BackwardConfig named = backward_chosen("b32_n512_h16_d128_bf16", "backward_sm90/w32_g4");
  EXPECT_FALSE(named.ordered);
  EXPECT_EQ(backward_sm90(named).piece_columns, 32);
}

// What a GPU's shared memory does not hold is left to the kernel of two passes; so is what is to
// give equal bits.
TEST(KernelName, BackwardFitsTheArchitecture) {
  const auto chosen = [](const char* descriptor, int arch, bool deterministic) {
    return choose_backward_kernel(parse_problem(descriptor), {}, {{arch, false}, {}, deterministic})
        .name;
  };
  for (const char* descriptor :
       {"b1_n512_h4_d64_bf16", "b1_n512_h4_d96_bf16", "b1_n512_h4_d128_bf16"}) {
    for (const int arch : {80, 86, 89, 100, 120}) {
      EXPECT_EQ(chosen(descriptor, arch, false), "backward_sm80") << descriptor << arch;
      EXPECT_EQ(chosen(descriptor, arch, true), "backward_sm80_deterministic");
      const Problem p = parse_problem(descriptor);
      const BackwardConfig config = backward_config(*find_backward_kernel("backward_sm80"), p, {},
                                                    device::Gradient::all, {{arch, false}});
      EXPECT_LE(config.tiling.shared_bytes, most_shared_bytes({arch, false})) << descriptor << arch;
    }
  }
  EXPECT_EQ(chosen("b1_n512_h4_d256_bf16", 80, false), "backward_sm80");
  EXPECT_EQ(chosen("b1_n512_h4_d256_bf16", 86, false), "backward_sm80_deterministic");
}

// Wider heads get blocks of as many queries as shared memory holds.
TEST(KernelName, BackwardOfWideHeads) {
  const auto queries = [](const char* descriptor, int arch) {
    const BackwardWish wish{{arch, false}};
    const Problem p = parse_problem(descriptor);
    const BackwardKernel& kernel = choose_backward_kernel(p, {}, wish);
    if (kernel.name == "backward_simt") return 0;
    const BackwardTiling tiling =
        backward_config(kernel, p, {}, device::Gradient::all, wish).tiling;
    EXPECT_EQ(kernel.name, "backward_sm80") << descriptor << arch;
    EXPECT_LE(tiling.shared_bytes, most_shared_bytes(wish.arch)) << descriptor << arch;
    return tiling.block_n;
  };
  for (const auto& [descriptor, arch, expected] : {std::tuple{"b1_n512_h4_d512_bf16", 90, 64},
                                                   {"b1_n512_h4_d576_dv512_f16", 90, 64},
                                                   {"b1_n512_h4_d512_bf16", 100, 64},
                                                   {"b1_n512_h4_d512_bf16", 80, 32},
                                                   {"b1_n512_h4_d264_bf16", 80, 64},
                                                   {"b1_n512_h4_d512_bf16", 120, 16},
                                                   {"b1_n512_h4_d576_dv512_bf16", 86, 0},
                                                   {"b1_n512_h4_d512_f32", 90, 0}}) {
    EXPECT_EQ(queries(descriptor, arch), expected) << descriptor << arch;
  }
  EXPECT_EQ(backward_chosen("b1_n512_h4_d512_bf16", "", true).kernel->name, "backward_simt");
}

TEST(KernelName, BackwardDealsGroupsOfOneSize) {
  EXPECT_EQ(backward_chosen("b1_n2048_h16_d64_bf16", "backward_sm90/l40").tiling.l2_megabytes, 40);
  for (const auto& [pairs, most, size] :
       {std::tuple{128, 9, 8}, {256, 19, 16}, {64, 4, 4}, {13, 6, 5}, {7, 100, 7}, {5, 0, 1}}) {
    EXPECT_EQ(even_group(pairs, most), size) << pairs << " by " << most;
  }
}

// Two score warpgroups, whose tiles have 64 keys where heads are wider than 64 columns.
TEST(KernelName, BackwardHasTwoScoreGroupsAt128Columns) {
  for (const char* descriptor : {"b1_n512_h4_d128_bf16", "b1_n512_h4_d72_dv128_bf16"}) {
    for (const bool deterministic : {false, true}) {
      const BackwardConfig two =
          backward_chosen(descriptor, "backward_sm90/c2_n64_q4_o2_w128_g2_r24_x160", deterministic);
      EXPECT_EQ(backward_sm90(two).score_groups, 2);
      EXPECT_EQ(two.tiling.block_m, 64);
      EXPECT_EQ(backward_sm90(two).gradient_registers, 168);  // 512 - 24 - 2 * 160
      EXPECT_LE(two.tiling.shared_bytes, most_shared_bytes(kHopper));
    }
  }
}

// Only where the head has two halves of two panels, in whichever order dQ is added.
TEST(KernelName, BackwardSharesTilesOfTheWidestHeads) {
  for (const bool deterministic : {false, true}) {
    const BackwardConfig pair = backward_chosen("b1_n512_h4_d256_bf16", "", deterministic);
    EXPECT_EQ(pair.tiling.cluster, 2);
    EXPECT_EQ(pair.tiling.block_m, 128);
    EXPECT_EQ(backward_sm90(pair).gradient_registers, 160);
    EXPECT_LE(pair.tiling.shared_bytes, most_shared_bytes(kHopper));
  }
  for (const BackwardConfig& alone :
       {backward_chosen("b1_n512_h4_d256_dv192_bf16", ""),
        backward_chosen("b1_n512_h4_d192_bf16", ""),
        backward_chosen("b1_n512_h4_d256_bf16", "backward_sm90/b1_n64_p2_w128_g1_r40_x152")}) {
    EXPECT_EQ(alone.tiling.cluster, 1);
    EXPECT_EQ(alone.tiling.block_m, 64);
    EXPECT_LE(alone.tiling.shared_bytes, most_shared_bytes(kHopper));
  }
}

TEST(KernelName, BackwardRefusesShapesThatCannotRun) {
  const std::string d64 = "b1_n512_h4_d64_bf16", d128 = "b1_n512_h4_d128_bf16",
                    d256 = "b1_n512_h4_d256_bf16";
  for (const auto& [descriptor, kernel, text] :
       {std::tuple{d64, "backward_sm90/q9", "'q9' is no part"},
        {d64, "backward_simt/q2", "kernel is 'backward_simt/q2'"},
        {d64, "backward_sm80/z2", "'z2' is no part"},
        {d64, "backward_flash_attention/n48", "'n48' is no part"},
        {d256, "backward_flash_attention/n64", "64 queries and keys at a time, take"},
        {d64, "backward_sm80/m64_x8", "16 rows of each product"},
        {d128, "backward_sm80/m128", "bytes of shared memory"},
        {d64, "backward_sm90/q3", "c2_n128_q3"},
        {d64, "backward_sm90/w32_g2", "c2_w32_g2"},
        {d64, "backward_sm90/x240", "registers for dV and dK"},
        {d128, "backward_sm90/c2_r24_x160", "up to 64 columns, or 128 with n64"},
        {"b1_n512_h4_d192_bf16", "backward_sm90/c2_n64_q2_o2_p2_r24_x160", "heads of 192 columns"},
        {d128, "backward_sm90/q4", "bytes of shared memory"},
        {d256, "backward_sm90/b1", "accepted there is n64"},
        {d256, "backward_sm90/n64", "the shape has b2_n64_c1"},
        {"b1_n512_h4_d256_dv192_bf16", "backward_sm90/b2_n128_o1_p1_w32_g2", "head_dim_v 192"},
        {d128, "backward_sm90/b2", "accepted with b2 are n128, c1, 256 and 256"}}) {
    try {
      backward_chosen(descriptor, kernel);
      ADD_FAILURE() << kernel << " is not refused";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << error.what();
    }
  }
}

// The kernel of the paper's order runs by name or algorithm only, and the two must agree.
TEST(KernelName, BackwardFollowsTheAlgorithm) {
  EXPECT_EQ(backward_kernel_name(Algorithm::automatic, ""), "");
  EXPECT_EQ(backward_kernel_name(Algorithm::flash_attention_2, "backward_sm80"), "backward_sm80");
  EXPECT_EQ(backward_kernel_name(Algorithm::flash_attention, ""), "backward_flash_attention");
  EXPECT_EQ(backward_kernel_name(Algorithm::standard, ""), "backward_standard");
  EXPECT_EQ(backward_kernel_name(Algorithm::block_sparse, ""), "backward_flash_attention/sparse");
  EXPECT_EQ(backward_kernel_name(Algorithm::block_sparse, "backward_flash_attention/n16"),
            "backward_flash_attention/n16_sparse");
  const auto refused = [](Algorithm algorithm, const char* kernel) {
    return refusal(ErrorCode::invalid_argument, [&] { backward_kernel_name(algorithm, kernel); });
  };
  for (const auto& [algorithm, kernel] :
       {std::pair{Algorithm::flash_attention_2, "backward_flash_attention"},
        {Algorithm::flash_attention_2, "backward_standard"},
        {Algorithm::standard, "backward_simt"},
        {Algorithm::standard, "backward_standard/n16"},
        {Algorithm::flash_attention, "backward_simt"},
        {Algorithm::flash_attention, "backward_flash_attention/n16_sparse"},
        {Algorithm::block_sparse, "backward_sm80"}}) {
    EXPECT_NE(refused(algorithm, kernel).find(kernel), std::string::npos);
  }
  const std::string memory_efficient = refusal(
      ErrorCode::unsupported, [] { backward_kernel_name(Algorithm::memory_efficient, ""); });
  EXPECT_NE(memory_efficient.find("algorithm is memory_efficient"), std::string::npos);
  for (const char* descriptor :
       {"b1_n512_h4_d64_f32", "b1_n512_h4_d128_bf16", "b1_n9_h1_d256_f16"}) {
    const BackwardConfig config = backward_chosen(descriptor, "backward_flash_attention");
    EXPECT_LE(config.tiling.shared_bytes, most_shared_bytes(kHopper));
  }
  EXPECT_EQ(backward_chosen("b1_n512_h4_d64_f32", "backward_flash_attention").tiling.block_m, 64);
  EXPECT_EQ(backward_chosen("b1_n512_h4_d256_f32", "backward_flash_attention").tiling.block_m, 32);
  EXPECT_TRUE(backward_chosen("b1_n9_h1_d8_f32", "backward_flash_attention/sparse").algorithm ==
              Algorithm::block_sparse);
}

// On architectures with less shared memory than its stages take, the next kernel is chosen.
TEST(KernelName, FewRowsNeedRoomForTheirStages) {
  const Problem wide = parse_problem("b1_sq1_sk8192_hq4_hk1_d256_bf16");
  const Problem narrow = parse_problem("b1_sq1_sk8192_hq4_hk1_d128_bf16");
  EXPECT_EQ(choose_forward(wide, Arch{90, true}, {}, 1, "").kernel->name, "forward_sm80_few_rows");
  EXPECT_EQ(choose_forward(wide, Arch{80, false}, {}, 1, "").kernel->name, "forward_sm80");
  EXPECT_EQ(choose_forward(wide, Arch{89, false}, {}, 1, "").kernel->name, "forward_sm80");
  EXPECT_EQ(choose_forward(narrow, Arch{89, false}, {}, 1, "").kernel->name,
            "forward_sm80_few_rows");
}

}  // namespace
}  // namespace attn::cuda
