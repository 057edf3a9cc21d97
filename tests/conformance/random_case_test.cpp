// What random problems reach behind 4,096 keys. A fault of splits that only a mask, dropout, pages
// or a sink shows passes every listed case, so random problems must keep meeting them. They are
// drawn and planned here, not run.
#include <gtest/gtest.h>

#include <cstdint>
#include <iterator>

#include "attn/plan.hpp"
#include "verify/cases.hpp"

namespace attn::verify {
namespace {

constexpr std::uint64_t kDraws = 8000;
constexpr std::int64_t kFar = 4096;  // keys, or queries

struct Feature {
  const char* name;
  bool (*is_in)(const Problem& p);
  int at_least;  // problems of more than kFar keys, in splits: half of those that the seeds give
};

constexpr Feature kFeatures[] = {
    {"any", [](const Problem&) { return true; }, 170},
    {"mask", [](const Problem& p) { return !p.mask.empty(); }, 118},
    {"score", [](const Problem& p) { return !p.score.empty(); }, 70},
    {"dropout", [](const Problem& p) { return p.dropout.probability > 0; }, 42},
    {"dropout and mask",
     [](const Problem& p) { return p.dropout.probability > 0 && !p.mask.empty(); }, 31},
    {"pages", [](const Problem& p) { return p.layout_k == Layout::paged; }, 15},
    {"pages and mask",
     [](const Problem& p) { return p.layout_k == Layout::paged && !p.mask.empty(); }, 11},
    {"packed keys", [](const Problem& p) { return p.layout_k == Layout::packed; }, 35},
    {"sink", [](const Problem& p) { return p.sink; }, 37},
    {"prefix", [](const Problem& p) { return p.seqlen_prefix > 0; }, 11},
    {"type of K", [](const Problem& p) { return p.type_k != CacheType::as_q; }, 15},
};

TEST(RandomProblems, MeetEveryFeatureBehindManyKeys) {
  int found[std::size(kFeatures)] = {};
  int lists = 0, queries = 0;  // these are not split
  for (std::uint64_t seed = 1; seed <= kDraws; ++seed) {
    const Problem p = random_case(seed).problem;
    queries += p.seqlen_q > kFar ? 1 : 0;
    if (p.seqlen_k <= kFar) continue;
    lists += p.key_list > 0 ? 1 : 0;
    const Plan plan =
        make_plan(p, Phase::forward, {.backend = Backend::cpu}, {.isa = InstructionSet::portable});
    if (plan.num_splits == 1) continue;
    for (std::size_t i = 0; i < std::size(kFeatures); ++i) {
      found[i] += kFeatures[i].is_in(p) ? 1 : 0;
    }
  }
  for (std::size_t i = 0; i < std::size(kFeatures); ++i) {
    EXPECT_GE(found[i], kFeatures[i].at_least) << kFeatures[i].name;
  }
  EXPECT_GE(lists, 20);  // half of them, too
  EXPECT_GE(queries, 63);
}

}  // namespace
}  // namespace attn::verify
