// The deal by area against numbers of a table that was made apart from this code: mean over largest
// area, and how many chunks of K and V move.
#include <gtest/gtest.h>

#include <vector>

#include "attn/dist.hpp"
#include "attn/mask.hpp"

namespace attn::dist {
namespace {

constexpr std::int64_t kRows = 32768;
constexpr int kRanks = 4;

Problem problem_of(const expr::Expr& mask) {
  Problem p{.batch = 1, .seqlen_q = kRows, .seqlen_k = kRows, .heads_q = 64, .heads_k = 8};
  p.head_dim = p.head_dim_v = 128;
  p.dtype = DType::bf16;
  p.mask = mask;
  return p;
}

Plan dealt(const expr::Expr& mask, std::int64_t chunk, Deal deal,
           const expr::Bindings& buffers = {}) {
  return make_plan(problem_of(mask), kRanks,
                   {.deal = deal,
                    .chunk = chunk,
                    .buffers = buffers,
                    .rates = {.flops = 600e12, .bytes = 300e9}});
}

double moved_chunks(const Plan& plan, std::int64_t chunk) {
  double bytes = 0;
  for (int from = 0; from < kRanks; ++from) {
    for (int to = 0; to < kRanks; ++to) bytes += plan.bytes(from, to, Phase::forward);
  }
  return bytes / static_cast<double>(chunk * 8 * 2 * 128 * 2);
}

// Documents of 20,480 and 12,288 rows.
class TwoDocuments {
 public:
  TwoDocuments() : ids_(kRows, 0) { std::fill(ids_.begin() + 20480, ids_.end(), 1); }
  expr::Expr mask() { return documents(tensor(ids_.data(), {kRows})) && causal(); }

 private:
  std::vector<std::int32_t> ids_;
};

// The table counts mixed tiles of 128 as full, so shares are of some thousandths.
constexpr double kShare = 0.012;

TEST(Deal, CausalZigzagIsEvenAndFound) {
  const Plan zigzag = dealt(causal(), 4096, Deal::zigzag);
  EXPECT_NEAR(zigzag.balance(), 1, kShare);
  EXPECT_EQ(moved_chunks(zigzag, 4096), 18);
  const Plan contiguous = dealt(causal(), 4096, Deal::contiguous);
  EXPECT_NEAR(contiguous.balance(), 0.57, kShare);
  EXPECT_EQ(moved_chunks(contiguous, 4096), 12);
  const Plan found = dealt(causal(), 4096, Deal::by_area);
  EXPECT_NEAR(found.balance(), 1, kShare);
  EXPECT_LE(moved_chunks(found, 4096), 18);
}

TEST(Deal, DocumentsAreEvenWhereZigzagIsNot) {
  TwoDocuments two;
  for (const auto& [chunk, zigzag, moved, share] :
       {std::tuple{4096, 9, 8, 0.85}, {2048, 18, 35, 0.99}, {1024, 36, 65, 0.97}}) {
    const Plan plain = dealt(two.mask(), chunk, Deal::zigzag);
    EXPECT_NEAR(plain.balance(), 0.53, kShare) << chunk;
    EXPECT_EQ(moved_chunks(plain, chunk), zigzag);
    const Plan found = dealt(two.mask(), chunk, Deal::by_area);
    EXPECT_GE(found.balance(), share - kShare) << chunk;
    EXPECT_LE(moved_chunks(found, chunk), moved) << chunk;
  }
}

TEST(Deal, WindowStaysWithNeighbours) {
  const Plan found = dealt(window(4095, 0), 2048, Deal::by_area);
  EXPECT_NEAR(found.balance(), 0.94, 0.02);
  EXPECT_LE(moved_chunks(found, 2048), 6);
}

TEST(Deal, PrefixIsEven) {
  EXPECT_NEAR(dealt(prefix(8192), 2048, Deal::contiguous).balance(), 0.61, kShare);
  EXPECT_NEAR(dealt(prefix(8192), 2048, Deal::zigzag).balance(), 0.90, kShare);
  const Plan found = dealt(prefix(8192), 2048, Deal::by_area);
  EXPECT_GE(found.balance(), 0.99 - kShare);
  EXPECT_LE(moved_chunks(found, 2048), 42);
}

// Every row has one owner, whatever the sizes.
TEST(Deal, EveryRowHasOneOwner) {
  for (const std::int64_t rows : {1, 5, 100, 1000, 5000}) {
    for (const int ranks : {1, 2, 3, 7, 64}) {
      for (const Deal deal : {Deal::by_area, Deal::contiguous, Deal::zigzag, Deal::striped}) {
        Problem p{.batch = 2, .seqlen_q = rows, .seqlen_k = rows, .heads_q = 2, .heads_k = 1};
        p.head_dim = p.head_dim_v = 8;
        p.mask = causal();
        const Plan plan = make_plan(p, ranks, {.deal = deal});
        std::vector<int> owners(static_cast<std::size_t>(rows), 0);
        for (int r = 0; r < ranks; ++r) {
          for (const Rows& range : plan.rows(r)) {
            for (std::int64_t i = range.begin; i < range.end; ++i) {
              ++owners[static_cast<std::size_t>(i)];
            }
          }
          EXPECT_EQ(plan.rows(r), plan.keys(r));
        }
        EXPECT_EQ(owners, std::vector<int>(static_cast<std::size_t>(rows), 1))
            << rows << " rows, " << ranks << " ranks, " << name(deal);
      }
    }
  }
}

}  // namespace
}  // namespace attn::dist
