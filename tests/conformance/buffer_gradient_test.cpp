// Gradients of buffers that a score reads by query, by key, by head, by batch, by several of them
// or by none: random problems against fp64, and what a mask hides.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "attn/plan.hpp"
#include "conformance/isolation.hpp"
#include "conformance/support.hpp"
#include "core/problem/rows.hpp"
#include "verify/compare.hpp"
#include "verify/conformance.hpp"

namespace attn::verify {
namespace {

// A random problem whose score has one to four terms with a buffer each.
class Generator {
 public:
  explicit Generator(std::uint64_t seed) : random_(seed) {}

  Case generate() {
    batch_ = 1 + below(3);
    const int heads_k = 1 + below(2);
    heads_ = heads_k * (1 + below(3));
    const bool long_keys = below(4) == 0;  // more than the 512 of a chunk
    queries_ = 1 + below(long_keys ? 8 : 70);
    keys_ = long_keys ? 500 + below(300) : 1 + below(150);
    std::string text = fmt::format("b{}_sq{}_sk{}_hq{}_hk{}_d{}", batch_, queries_, keys_, heads_,
                                   heads_k, pick({3, 16, 33}));
    text += pick<std::string_view>({"", "", "_causal", "_window9x4", "_mask((query+key)%3!=0)"});
    text += pick<std::string_view>({"", "", "_packed", "_packedq", "_packedk"});
    std::string score = "score", buffers;
    for (int i = 0, terms = 1 + below(4); i < terms; ++i) {
      const std::string name(1, static_cast<char>('a' + i));
      const auto [index, shape] = read();
      const std::string load = fmt::format("{}[{}]", name, index);
      score +=
          fmt::format(fmt::runtime(pick<std::string_view>(
                          {"+{0}", "-{0}", "+0.25*{0}", "+0.02*(query-key)*{0}", "+tanh({0}*score)",
                           "+{0}*{0}", "+{0}*sqrt(abs(0.01*(query-key)))"})),
                      load);
      // A second read of the buffer, by something else.
      if (below(4) == 0) score += fmt::format("-0.5*{}[{}]", name, other(shape));
      buffers += fmt::format("_buffer({}:f32:{})", name, shape);
    }
    text += fmt::format("_score({}){}", score, buffers);
    text += pick<std::string_view>({"", "", "_sink", "_dropout0.3_seed7"});
    text += pick<std::string_view>({"_f32", "_f32", "_bf16", "_f16"});
    text += pick<std::string_view>({"", "", "/padded", "/loose"});
    return parse_case(text);
  }

 private:
  struct Read {
    std::string index, shape;
  };

  int below(int limit) { return static_cast<int>(random_() % static_cast<unsigned>(limit)); }
  template <class T>
  T pick(std::initializer_list<T> list) {
    return *(list.begin() + below(static_cast<int>(list.size())));
  }

  Read read() {
    const Read reads[] = {
        {"query", fmt::format("{}", queries_)},
        {"query/3", fmt::format("{}", queries_ / 3 + 1)},
        {"key", fmt::format("{}", keys_)},
        {"key%5", "5"},
        {"key-7", fmt::format("{}", keys_)},  // outside the buffer for the first keys
        {"head", fmt::format("{}", heads_)},
        {"batch", fmt::format("{}", batch_)},
        {"seqlen_k%3", "3"},
        {"batch,head", fmt::format("{}x{}", batch_, heads_)},
        {"batch,key", fmt::format("{}x{}", batch_, keys_)},
        {"head,query", fmt::format("{}x{}", heads_, queries_)},
        {"head,query,key", fmt::format("1x{}x1", queries_)},
        {"head,query,key", fmt::format("1x1x{}", keys_)},
        {"query,key", fmt::format("{}x{}", queries_, keys_)},
        {"query-key+20", "40"},
    };
    return reads[below(static_cast<int>(std::size(reads)))];
  }
  // Indices of a buffer of this shape, by key or by query.
  std::string other(std::string_view shape) {
    std::string index = pick<std::string>({"key%3", "query%3"});
    for (const char c : shape) index += c == 'x' ? ",query%2" : "";
    return index;
  }

  std::mt19937_64 random_;
  int batch_ = 1, heads_ = 1, queries_ = 1, keys_ = 1;
};

class BufferGradients : public ::testing::TestWithParam<std::uint64_t> {};

TEST_P(BufferGradients, AgreeWithTheReference) {
  constexpr std::uint64_t kSeedsPerTest = 8;
  const std::vector<InstructionSet> sets = available_instruction_sets();
  const std::uint64_t first = GetParam() * kSeedsPerTest;
  for (std::uint64_t seed = first; seed < first + (quick() ? 1 : kSeedsPerTest); ++seed) {
    const Case c = Generator(seed).generate();
    Conformance conformance(c, seed, true);
    std::uint64_t turn = seed;
    for (const InstructionSet isa : sets) {
      const std::vector<Algorithm> all = algorithms(Phase::backward);
      const Report report = conformance.check({.phase = Phase::backward,
                                               .backend = Backend::cpu,
                                               .algorithm = all[turn++ % all.size()],
                                               .isa = isa});
      EXPECT_EQ(report.status, Status::passed) << to_string(report);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Conformance, BufferGradients, ::testing::Range<std::uint64_t>(0, 10));

// Reads by query, by key, by head, by batch and by query and key at once.
constexpr std::string_view kReads =
    "_score(score+a[query]*{0}-b[key]*{0}+c[head]*{0}+d[batch]*{0}+e[query,key]*{0})"
    "_buffer(a:f32:70)_buffer(b:f32:90)_buffer(c:f32:6)_buffer(d:f32:2)_buffer(e:f32:70x90)_f32";

// A derivative by a load is not finite where the mask hides a key: the root of a negative number.
TEST(HiddenByMask, ADerivativeThatIsNotFiniteReachesNoSum) {
  const Case c = parse_case("b2_sq70_sk90_hq6_hk2_d16_causaltl" +
                            fmt::format(fmt::runtime(kReads), "sqrt(0.1*(query-key))"));
  Conformance conformance(c, 3, true);
  for (const InstructionSet isa : available_instruction_sets()) {
    for (const Algorithm algorithm : algorithms(Phase::backward)) {
      const Report report = conformance.check(
          {.phase = Phase::backward, .backend = Backend::cpu, .algorithm = algorithm, .isa = isa});
      EXPECT_EQ(report.status, Status::passed) << to_string(report);
    }
  }
}

// Q and dO of queries that see nothing, K and V of keys that nobody sees, all beside others that
// do.
TEST(HiddenByMask, RowsThatAreNotFiniteReachNoBuffer) {
  for (const float value :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    const Case c = parse_case("b2_sq70_sk90_hq6_hk2_d16_mask(query%7!=3&&key%5!=2)" +
                              fmt::format(fmt::runtime(kReads), "0.5"));
    CaseData clean(c, 4);
    CaseData got(c, 4);
    const Problem& p = got.problem;
    const auto spoil = [&](const core::Rows& rows, std::int64_t i, std::int64_t heads) {
      for (std::int64_t h = 0; h < heads; ++h) {
        std::memcpy(rows.row(i, h), &value, sizeof(value));
      }
    };
    for (std::int64_t b = 0; b < p.batch; ++b) {
      const core::Sequence s = core::sequence(p, got.inputs, b);
      for (std::int64_t i = 3; i < p.seqlen_q; i += 7) {
        spoil(s.q, i, p.heads_q);
        spoil(core::rows_like_q(p, got.inputs, got.d_o, b), i, p.heads_q);
      }
      for (std::int64_t j = 2; j < p.seqlen_k; j += 5) {
        spoil(s.k, j, p.heads_k);
        spoil(s.v, j, p.heads_k);
      }
    }
    for (const InstructionSet isa : available_instruction_sets()) {
      for (const Algorithm algorithm : algorithms(Phase::backward)) {
        const Algorithms a{Algorithm::automatic, algorithm, isa};
        run(clean, a);
        run(got, a);
        for (std::size_t i = 0; i < got.gradients.buffers.size(); ++i) {
          const auto& [name, gradient] = got.gradients.buffers[i];
          EXPECT_TRUE(first_difference(clean.gradients.buffers[i].second, gradient).empty())
              << name << ", " << describe(a) << ", " << value;
          EXPECT_TRUE(std::isfinite(load_element(gradient, 0))) << name << ", " << describe(a);
        }
      }
    }
  }
}

}  // namespace
}  // namespace attn::verify
