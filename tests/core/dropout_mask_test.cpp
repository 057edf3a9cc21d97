// The mask of dropout, written down, against its definition and against what forward() does.
#include "attn/dropout_mask.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "attn/error.hpp"
#include "attn/run.hpp"
#include "core/philox.hpp"

namespace attn {
namespace {

std::string refusal(const Problem& problem, const Tensor& kept) {
  try {
    dropout_mask(problem, kept);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    return error.what();
  }
  return "(none)";
}

TEST(DropoutMask, IsTheDefinition) {
  for (const Dropout& dropout :
       {Dropout{0.3, 7, 0}, Dropout{0.9, ~std::uint64_t{0}, 4294967301}, Dropout{1.0 / 32768, 1, 2},
        Dropout{31.0 / 32, 3, 4}, Dropout{0.97, 5, 6}, Dropout{0.999, 8, 9}}) {
    Problem problem;
    problem.dropout = dropout;
    std::vector<std::uint8_t> bytes(std::size_t{2} * 3 * 5 * 77 * 2, 9);
    Tensor kept = tensor(bytes.data(), {2, 3, 5, 77});
    kept.strides = {3 * 5 * 77 * 2, 5 * 77 * 2, 2, 10};  // keys before queries, gaps between
    dropout_mask(problem, kept);
    std::size_t written = 0;
    for (std::int64_t b = 0; b < 2; ++b) {
      for (std::int64_t h = 0; h < 3; ++h) {
        for (std::int64_t i = 0; i < 5; ++i) {
          for (std::int64_t j = 0; j < 77; ++j, ++written) {
            const bool expected = core::dropout_keep(
                dropout.seed, dropout.offset, core::dropout_threshold(dropout.probability),
                static_cast<std::uint32_t>(b * 3 + h), static_cast<std::uint32_t>(i),
                static_cast<std::uint32_t>(j));
            ASSERT_EQ(bytes[static_cast<std::size_t>(kept.offset({b, h, i, j}))], expected ? 1 : 0)
                << b << ' ' << h << ' ' << i << ' ' << j;
          }
        }
      }
    }
    EXPECT_EQ(std::count(bytes.begin(), bytes.end(), 9),
              static_cast<std::ptrdiff_t>(bytes.size() - written));
  }
}

// With V the identity O is P with what is dropped zero, and with equal scores no other is zero.
void expect_what_forward_drops(double probability) {
  constexpr std::int64_t kRows = 40, kHeads = 2;
  Problem problem;
  problem.dropout = {probability, 99, 5};
  std::vector<float> q(kRows * kHeads * 8, 0), v(kRows * kHeads * kRows, 0),
      o(kRows * kHeads * kRows, -1);
  for (std::size_t i = 0; i < v.size(); ++i) v[i] = i / (kHeads * kRows) == i % kRows ? 1.0F : 0.0F;
  const Tensor rows = tensor(q.data(), {1, kRows, kHeads, 8});
  forward(problem, {.q = rows, .k = rows, .v = tensor(v.data(), {1, kRows, kHeads, kRows})},
          {.o = tensor(o.data(), {1, kRows, kHeads, kRows})});
  std::vector<std::uint8_t> kept(kHeads * kRows * kRows, 9);
  dropout_mask(problem, tensor(kept.data(), {1, kHeads, kRows, kRows}));
  for (std::size_t h = 0; h < kHeads; ++h) {
    for (std::size_t i = 0; i < kRows; ++i) {
      for (std::size_t j = 0; j < kRows; ++j) {
        ASSERT_EQ(o[(i * kHeads + h) * kRows + j] != 0, kept[(h * kRows + i) * kRows + j] == 1)
            << probability;
      }
    }
  }
}

TEST(DropoutMask, IsWhatForwardDrops) {
  for (const double probability : {1.0 / 32768, 0.4, 31.0 / 32, 0.97, 0.999}) {
    expect_what_forward_drops(probability);
  }
}

TEST(DropoutMask, WithoutDropoutAllAreKept) {
  std::vector<std::uint8_t> kept(30, 9);
  dropout_mask({}, tensor(kept.data(), {1, 2, 3, 5}));
  EXPECT_EQ(std::count(kept.begin(), kept.end(), 1), 30);
  dropout_mask({}, tensor(kept.data(), {1, 2, 0, 5}));
}

TEST(DropoutMask, StateOfATensor) {
  Problem problem;
  problem.dropout = {0.3, 7, 4294967301};
  std::vector<std::uint8_t> expected(6 * 5 * 77, 9), kept(6 * 5 * 77, 9);
  dropout_mask(problem, tensor(expected.data(), {2, 3, 5, 77}));
  problem.dropout = {0.3, 1, 2, true};
  std::vector<std::int64_t> state = {7, 4294967301};
  const Tensor words = tensor(state.data(), {2});
  dropout_mask(problem, tensor(kept.data(), {2, 3, 5, 77}), words, {});
  EXPECT_EQ(kept, expected);
  EXPECT_NE(refusal(problem, tensor(kept.data(), {2, 3, 5, 77})).find("rng_state is not given"),
            std::string::npos);
}

TEST(DropoutMask, RefusesByName) {
  std::vector<std::uint8_t> bytes(64);
  std::vector<float> floats(64);
  EXPECT_NE(refusal({}, tensor(bytes.data(), {2, 4, 8})).find("kept is u8[2, 4, 8]"),
            std::string::npos);
  EXPECT_NE(refusal({}, tensor(floats.data(), {1, 1, 8, 8})).find("accepted is u8"),
            std::string::npos);
  EXPECT_NE(refusal({.seqlen_q = 7}, tensor(bytes.data(), {1, 1, 8, 8})).find("accepted is u8[1"),
            std::string::npos);
  Tensor broadcast = tensor(bytes.data(), {1, 2, 4, 8});
  broadcast.strides[1] = 0;
  EXPECT_NE(refusal({}, broadcast), "(none)");
  Problem problem;
  problem.dropout.probability = 1;
  EXPECT_NE(refusal(problem, tensor(bytes.data(), {1, 1, 8, 8})).find("dropout.probability is 1"),
            std::string::npos);
}

}  // namespace
}  // namespace attn
