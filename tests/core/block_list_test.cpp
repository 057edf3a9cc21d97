// Lists of blocks of keys: the bytes that they become, and attention over what they name.
#include "attn/block_list.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "attn/error.hpp"
#include "attn/run.hpp"

namespace attn {
namespace {

std::string refusal(const auto& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    return error.what();
  }
  return "(none)";
}

TEST(BlockList, BytesSayWhatListsName) {
  // Two rows of each of two heads; strides of both leave gaps.
  std::vector<std::int32_t> numbers(2 * 2 * 2 * 5, 99);
  Tensor lists = tensor(numbers.data(), {1, 2, 2, 3});
  lists.strides = {20, 10, 5, 1};
  const std::vector<std::vector<std::int32_t>> named{
      {3, -1, 3}, {4, 2147483647, 0}, {-2147483647 - 1, 1, 2}, {-1, -1, -1}};
  for (std::size_t row = 0; row < named.size(); ++row) {
    std::copy(named[row].begin(), named[row].end(), numbers.begin() + static_cast<int>(5 * row));
  }
  std::vector<std::uint8_t> bytes(2 * 2 * 7, 77);
  Tensor blocks = tensor(bytes.data(), {1, 2, 2, 4});
  blocks.strides = {28, 14, 7, 1};
  write_block_mask(lists, blocks);
  const std::vector<std::uint8_t> expected{0, 0, 0, 1, 77, 77, 77, 1, 0, 0, 0, 77, 77, 77,
                                           0, 1, 1, 0, 77, 77, 77, 0, 0, 0, 0, 77, 77, 77};
  EXPECT_EQ(bytes, expected);
  // The same numbers as int64, and others whose low halves would be blocks.
  std::vector<std::int64_t> wide(numbers.begin(), numbers.end());
  wide[0] += std::int64_t{1} << 32;  // row 0 names block 3 twice
  wide[1] = (std::int64_t{1} << 32) + 1;
  lists.dtype = DType::i64;
  lists.data = wide.data();
  bytes.assign(bytes.size(), 77);
  write_block_mask(lists, blocks);
  EXPECT_EQ(bytes, expected);
}

// Query head 2 h and 2 h + 1 follow list h; O is computed once more from the lists alone.
TEST(BlockList, AttentionSeesTheBlocksThatAreNamed) {
  constexpr std::int64_t kBatch = 2, kHeads = 4, kLists = 2, kQueries = 10, kKeys = 11, kDim = 8;
  constexpr std::int32_t kBlockQ = 4, kBlockK = 3;
  constexpr std::int64_t kBlocksQ = 3, kBlocksK = 4, kEntries = 2;
  std::mt19937 random(5);
  std::vector<std::int32_t> numbers(kBatch * kLists * kBlocksQ * kEntries);
  for (std::int32_t& number : numbers) number = static_cast<std::int32_t>(random() % 6) - 1;
  std::vector<std::uint8_t> bytes(kBatch * kLists * kBlocksQ * kBlocksK, 9);
  const Tensor lists = tensor(numbers.data(), {kBatch, kLists, kBlocksQ, kEntries});
  const Tensor blocks = tensor(bytes.data(), {kBatch, kLists, kBlocksQ, kBlocksK});
  write_block_mask(lists, blocks);

  std::normal_distribution<float> normal;
  const auto values = [&](std::int64_t rows) {
    std::vector<float> x(static_cast<std::size_t>(kBatch * rows * kHeads * kDim));
    for (float& value : x) value = normal(random);
    return x;
  };
  std::vector<float> q = values(kQueries), k = values(kKeys), v = values(kKeys);
  std::vector<float> o(q.size(), std::nanf(""));
  Problem problem;
  problem.mask = block_mask(blocks, kBlockQ, kBlockK, 2);
  forward(problem,
          {.q = tensor(q.data(), {kBatch, kQueries, kHeads, kDim}),
           .k = tensor(k.data(), {kBatch, kKeys, kHeads, kDim}),
           .v = tensor(v.data(), {kBatch, kKeys, kHeads, kDim})},
          {.o = tensor(o.data(), {kBatch, kQueries, kHeads, kDim})});

  std::int64_t empty = 0;
  for (std::int64_t b = 0; b < kBatch; ++b) {
    for (std::int64_t h = 0; h < kHeads; ++h) {
      for (std::int64_t i = 0; i < kQueries; ++i) {
        const auto row = [&](std::vector<float>& x, std::int64_t length, std::int64_t at) {
          return x.data() + ((b * length + at) * kHeads + h) * kDim;
        };
        const std::int32_t* const list =
            numbers.data() + ((b * kLists + h / 2) * kBlocksQ + i / kBlockQ) * kEntries;
        std::set<std::int64_t> keys;
        for (std::int64_t e = 0; e < kEntries; ++e) {
          for (std::int64_t j = 0; j < kKeys; ++j) {
            if (j / kBlockK == list[e]) keys.insert(j);
          }
        }
        empty += keys.empty() ? 1 : 0;
        double sum = 0;
        std::vector<double> expected(kDim);
        for (const std::int64_t j : keys) {
          double s = 0;
          for (std::int64_t d = 0; d < kDim; ++d) {
            s += double{row(q, kQueries, i)[d]} * row(k, kKeys, j)[d];
          }
          const double p = std::exp(s / std::sqrt(double{kDim}));
          sum += p;
          for (std::int64_t d = 0; d < kDim; ++d) {
            expected[static_cast<std::size_t>(d)] += p * row(v, kKeys, j)[d];
          }
        }
        for (std::int64_t d = 0; d < kDim; ++d) {
          const double mean = keys.empty() ? 0 : expected[static_cast<std::size_t>(d)] / sum;
          ASSERT_NEAR(row(o, kQueries, i)[d], mean, 1e-5) << b << ' ' << h << ' ' << i << ' ' << d;
        }
      }
    }
  }
  EXPECT_GT(empty, 0);
}

// One hides what the other shows.
TEST(BlockList, TwoMasksMayHold) {
  std::vector<std::uint8_t> first{1, 1, 0}, second{0, 1, 1};
  const Tensor a = tensor(first.data(), {1, 1, 1, 3}), b = tensor(second.data(), {1, 1, 1, 3});
  std::vector<float> q(4, 1.F), k(std::size_t{3} * 4, 1.F), o(4, -1.F);
  std::vector<float> v{1, 1, 1, 1, 2, 2, 2, 2, 4, 4, 4, 4};
  Problem problem;
  problem.mask = block_mask(a, 1, 1) && block_mask(b, 1, 1, 1, "others");
  forward(problem,
          {.q = tensor(q.data(), {1, 1, 1, 4}),
           .k = tensor(k.data(), {1, 3, 1, 4}),
           .v = tensor(v.data(), {1, 3, 1, 4})},
          {.o = tensor(o.data(), {1, 1, 1, 4})});
  EXPECT_EQ(o, std::vector<float>(4, 2.F));
}

TEST(BlockList, RefusesWhatIsNoListAndWhatIsNoMask) {
  std::int32_t number = 0;
  std::uint8_t byte = 7;
  const Tensor lists = tensor(&number, {1, 1, 1, 1});
  const Tensor blocks = tensor(&byte, {1, 1, 1, 1});
  EXPECT_NE(refusal([&] { write_block_mask(blocks, blocks); }).find("lists is u8"),
            std::string::npos);
  EXPECT_NE(refusal([&] {
              write_block_mask(lists, tensor(&byte, {1, 1, 1}));
            }).find("accepted is u8 [batch, heads, blocks_q, blocks_k]"),
            std::string::npos);
  EXPECT_NE(refusal([&] {
              write_block_mask(lists, tensor(&byte, {1, 2, 1, 1}));
            }).find("lists"),
            std::string::npos);
  EXPECT_NE(refusal([&] { block_mask(blocks, 0, 64); }).find("block_q is 0"), std::string::npos);
  EXPECT_NE(refusal([&] { block_mask(blocks, 64, 64, -1); }).find("group is -1"),
            std::string::npos);
  EXPECT_NE(refusal([&] { block_mask(lists, 64, 64); }).find("blocks is i32"), std::string::npos);
  EXPECT_EQ(byte, 7);
}

}  // namespace
}  // namespace attn
