// What the kernel ahead of the forward kernel says of blocks of keys, bit by bit: too careful an
// answer would give right results and take longer.
#include <cstring>

#include "cuda/device/params.cuh"
#include "cuda/forward/parameters.hpp"
#include "cuda/gpu.hpp"
#include "cuda/plan/choose_forward.hpp"
#include "verify/data.hpp"

namespace attn::cuda {
namespace {

using verify::CaseData;

constexpr const char* kCase =
    "b2_sq300_sk700_h2_d64_mask(blocks[head,query/32,key/32]!=0)_buffer(blocks:u8:2x10x22)_bf16";

// What a run leaves in its workspace, which was poisoned before.
std::vector<std::byte> workspace_after_run(const Plan& plan, const verify::DeviceData& on) {
  DeviceBuffer workspace(kGpu.index, static_cast<std::size_t>(plan.workspace_bytes));
  workspace.fill(0x5a);
  synchronize(kGpu.index);
  const Stream stream(kGpu.index);
  Context context;
  context.stream = stream.handle();
  context.workspace = tensor(workspace.data(), DType::u8, {plan.workspace_bytes}, kGpu);
  forward(plan, on.inputs, on.outputs, context);
  stream.synchronize();
  std::vector<std::byte> bytes(static_cast<std::size_t>(plan.workspace_bytes));
  workspace.download(bytes.data(), bytes.size());
  return bytes;
}

class CudaKeyWords : public ::testing::TestWithParam<const char*> {};

TEST_P(CudaKeyWords, SayWhatTheMaskSays) {
  ATTN_NEEDS_GPU();
  CaseData data(verify::parse_case(kCase), 3);
  const Problem& p = data.problem;
  const PlanOptions options{.device = kGpu, .kernel = GetParam()};
  const Arch arch = arch_of_capability(device_info(kGpu.index).arch);
  if (arch.number != 90 && options.kernel.starts_with("forward_sm90")) {
    GTEST_SKIP() << "skipped: the GPU is " << to_string(arch);
  }
  const verify::DeviceData on(data, Phase::forward, kGpu);
  const Plan plan = make_plan(p, Phase::forward, options);
  const ForwardConfig config = choose_forward(p, arch, {}, plan.num_splits, options.kernel);
  const auto count = num_key_words(p, config).bytes();
  const int rows = config.tiling.rows / config.tiling.parts;
  const std::int64_t parts =
      (p.seqlen_q + config.tiling.rows - 1) / config.tiling.rows * config.tiling.parts;
  const std::int64_t windows =
      (p.seqlen_k + 32 * config.tiling.keys - 1) / (32 * config.tiling.keys);
  ASSERT_EQ(count, static_cast<std::size_t>(p.heads_q * parts * windows));  // of both batch entries

  std::vector<device::KeyWord> words(count);
  const std::vector<std::byte> bytes = workspace_after_run(plan, on);
  // There are splits where there are many multiprocessors; words do not depend on them.
  std::memcpy(words.data(), bytes.data() + key_words_offset(p, plan.num_splits).bytes(),
              count * sizeof(words[0]));

  const auto* blocks = static_cast<const std::uint8_t*>(data.inputs.buffers.at(0).second.data);
  int full = 0, empty = 0;
  std::size_t at = 0;
  for (std::int64_t head = 0; head < p.heads_q; ++head) {
    for (std::int64_t m_block = 0; m_block * config.tiling.rows < p.seqlen_q; ++m_block) {
      for (std::int64_t window = 0; window < windows; ++window) {
        for (std::int64_t part = 0; part < config.tiling.parts; ++part) {
          const std::int64_t first = m_block * config.tiling.rows + part * rows;
          const device::KeyWord word = words[at++];
          for (std::int64_t bit = 0; bit < 32; ++bit) {
            const std::int64_t key0 = (window * 32 + bit) * config.tiling.keys;
            bool some = false;
            // Rows past the length are nobody's; keys past it must be masked.
            bool all = key0 + config.tiling.keys <= p.seqlen_k && first < p.seqlen_q;
            for (std::int64_t q = first; q < std::min(first + rows, p.seqlen_q); ++q) {
              for (std::int64_t k = key0; k < std::min(key0 + config.tiling.keys, p.seqlen_k);
                   ++k) {
                const bool visible = blocks[(head * 10 + q / 32) * 22 + k / 32] != 0;
                some = some || visible;
                all = all && visible;
              }
            }
            ASSERT_EQ(word.mixed >> bit & 1, all ? 0U : 1U) << head << ' ' << first << ' ' << key0;
            ASSERT_EQ(word.empty >> bit & 1, some ? 0U : 1U) << head << ' ' << first << ' ' << key0;
            full += all ? 1 : 0;
            empty += !some && key0 < p.seqlen_k && first < p.seqlen_q ? 1 : 0;
          }
        }
      }
    }
  }
  EXPECT_GT(full, 0);
  EXPECT_GT(empty, 0);
}

INSTANTIATE_TEST_SUITE_P(Cuda, CudaKeyWords,
                         ::testing::Values("forward_sm90/n32_s2", "forward_sm90/n16_s2",
                                           "forward_sm80", "forward_simt"),
                         [](const ::testing::TestParamInfo<const char*>& info) {
                           return verify::test_name(info.param);
                         });

// A block of a list (device/schedule/gathered_blocks.cuh): its number, whether the two warpgroups
// see less than all of it, and whether they see nothing.
std::int32_t listed(std::int64_t number, const bool (&mixed)[2], const bool (&empty)[2]) {
  constexpr int kNumberBits = 25, kParts = 3;
  auto bits = static_cast<std::uint32_t>(number);
  for (int part = 0; part < 2; ++part) {
    bits |= (mixed[part] ? 1U : 0U) << (kNumberBits + part);
    bits |= (empty[part] ? 1U : 0U) << (kNumberBits + kParts + part);
  }
  return static_cast<std::int32_t>(bits);
}

TEST(CudaGatheredBlocks, AreThoseThatTheMaskShows) {
  ATTN_NEEDS_GPU();
  const Arch arch = arch_of_capability(device_info(kGpu.index).arch);
  if (arch.number != 90) GTEST_SKIP() << "skipped: the GPU is " << to_string(arch);
  // More blocks than the 256 that a block of threads takes at a time; the last has 21 keys.
  constexpr const char* kGathered =
      "b2_sq300_sk20053_h2_d64_mask(blocks[head,query/64,key/"
      "64]!=0)_buffer(blocks:u8:2x5x314)_bf16";
  CaseData data(verify::parse_case(kGathered), 3);
  const Problem& p = data.problem;
  const PlanOptions options{.algorithm = Algorithm::flash_attention_2, .device = kGpu};
  const verify::DeviceData on(data, Phase::forward, kGpu);
  const Plan plan = make_plan(p, Phase::forward, options);
  const ForwardConfig config = choose_forward(p, arch, {}, plan.num_splits, {});
  ASSERT_EQ(config.tiling.gathered_keys, 64);
  ASSERT_EQ(config.tiling.rows, 128);
  constexpr std::int64_t kTiles = 3, kBlocks = 314, kWords = kBlocks / 2 + 1;
  ASSERT_EQ(num_key_words(p, config).value(), 2 * kTiles * kWords);  // of both batch entries

  const std::vector<std::byte> bytes = workspace_after_run(plan, on);

  const auto* blocks = static_cast<const std::uint8_t*>(data.inputs.buffers.at(0).second.data);
  std::int64_t odd = 0;
  for (std::int64_t list = 0; list < 2 * kTiles; ++list) {
    const std::int64_t head = list / kTiles, tile = list % kTiles;
    std::vector<std::int32_t> expected;
    for (std::int64_t block = 0; block < kBlocks; ++block) {
      bool mixed[2], empty[2];
      for (std::int64_t part = 0; part < 2; ++part) {
        const std::int64_t row = 2 * tile + part;  // of blocks of 64 queries, of which there are 5
        empty[part] = row >= 5 || blocks[(head * 5 + row) * kBlocks + block] == 0;
        mixed[part] = empty[part] || block == kBlocks - 1;
      }
      if (!empty[0] || !empty[1]) expected.push_back(listed(block, mixed, empty));
    }
    const std::size_t pairs = (expected.size() + 1) / 2;
    if (expected.size() % 2 != 0) {
      ++odd;
      expected.push_back(0x7fffffff);
    }
    std::vector<std::int32_t> got(2 + expected.size());
    std::memcpy(got.data(),
                bytes.data() + key_words_offset(p, plan.num_splits).bytes() +
                    static_cast<std::size_t>(list * kWords) * sizeof(device::KeyWord),
                got.size() * sizeof(got[0]));
    EXPECT_EQ(static_cast<std::size_t>(got[0]), pairs);
    got.erase(got.begin(), got.begin() + 2);
    EXPECT_EQ(got, expected) << list;
  }
  EXPECT_GT(odd, 0);
}

}  // namespace
}  // namespace attn::cuda
