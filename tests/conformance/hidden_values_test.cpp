// Infinity and NaN stay with those who see them: a row takes nothing from the K and V of a key that
// the mask hides from it, a key nothing from the Q and dO of a row that does not see it. Every
// result that sees none of what was spoilt keeps its bits.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "conformance/isolation.hpp"
#include "conformance/support.hpp"
#include "core/problem/rows.hpp"
#include "reference/reference.hpp"
#include "verify/compare.hpp"
#include "verify/data.hpp"

namespace attn::verify {
namespace {

constexpr std::uint64_t kSeed = 11;

// Which rows see which keys of one sequence and query head.
class Visible {
 public:
  Visible(const CaseData& data, const core::Sequence& s, std::int64_t head)
      : keys_(s.length_k), seen_(static_cast<std::size_t>(std::int64_t{s.length_q} * s.length_k)) {
    for (std::int32_t i = 0; i < s.length_q; ++i) {
      for (std::int32_t j = 0; j < s.length_k; ++j) {
        const expr::Point at{.query = i,
                             .key = j,
                             .batch = s.batch,
                             .head = static_cast<std::int32_t>(head),
                             .seqlen_q = s.length_q,
                             .seqlen_k = s.length_k};
        seen_[index(i, j)] = data.problem.mask.empty() ||
                             expr::evaluate<float>(data.problem.mask, at, data.inputs.buffers) != 0;
      }
    }
  }
  bool operator()(std::int64_t query, std::int64_t key) const { return seen_[index(query, key)]; }

 private:
  std::size_t index(std::int64_t query, std::int64_t key) const {
    return static_cast<std::size_t>(query * keys_ + key);
  }
  std::int64_t keys_;
  std::vector<bool> seen_;
};

// [batch * heads_q]
std::vector<Visible> visible_elements(const CaseData& data) {
  std::vector<Visible> visible;
  for (std::int64_t b = 0; b < data.problem.batch; ++b) {
    const core::Sequence s = core::sequence(data.problem, data.inputs, b);
    for (std::int64_t h = 0; h < data.problem.heads_q; ++h) visible.emplace_back(data, s, h);
  }
  return visible;
}

// What was spoilt in each sequence.
struct Spoilt {
  float value = 0;
  std::vector<std::vector<std::int64_t>> keys, queries;  // [batch]
};

// The last key, which some row sees, and up to two that some row does not see.
std::vector<std::int64_t> choose_keys(const core::Sequence& s, const Visible& visible,
                                      std::mt19937_64& random) {
  std::vector<std::int64_t> chosen;
  if (s.length_k == 0) return chosen;
  chosen.push_back(s.length_k - 1);
  for (int turn = 0; turn < 100 && chosen.size() < 3; ++turn) {
    const auto key = static_cast<std::int64_t>(random() % static_cast<unsigned>(s.length_k));
    bool hidden = false;
    for (std::int64_t i = 0; i < s.length_q; ++i) hidden |= !visible(i, key);
    if (hidden) chosen.push_back(key);
  }
  return chosen;
}

// Not the last row, which sees every key of a causal mask.
std::vector<std::int64_t> choose_queries(const core::Sequence& s) {
  if (s.length_q < 2) return {};
  if (s.length_q < 4) return {0};
  return {s.length_q / 3, s.length_q / 2};
}

void spoil_row(const Tensor& tensor, std::byte* row, std::int64_t dim, float value,
               std::mt19937_64& random) {
  const auto d = static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(dim));
  Tensor view = tensor;
  view.data = row;
  store_element(view, d, value);
}

Spoilt spoil(CaseData& data, const std::vector<Visible>& visible, bool keys, bool queries,
             float value) {
  std::mt19937_64 random(kSeed);
  Spoilt spoilt;
  spoilt.value = value;
  const Problem& p = data.problem;
  for (std::int64_t b = 0; b < p.batch; ++b) {
    const core::Sequence s = core::sequence(p, data.inputs, b);
    const Visible& first_head = visible[static_cast<std::size_t>(b * p.heads_q)];
    spoilt.keys.push_back(keys ? choose_keys(s, first_head, random) : std::vector<std::int64_t>{});
    spoilt.queries.push_back(queries ? choose_queries(s) : std::vector<std::int64_t>{});
    const core::Rows d_o = core::rows_like_q(p, data.inputs, data.d_o, b);
    for (const std::int64_t j : spoilt.keys.back()) {
      for (std::int64_t h = 0; h < p.heads_k; ++h) {
        spoil_row(data.inputs.k, s.k.row(j, h), p.head_dim, value, random);
        spoil_row(data.inputs.v, s.v.row(j, h), p.head_dim_v, value, random);
      }
    }
    for (const std::int64_t i : spoilt.queries.back()) {
      for (std::int64_t h = 0; h < p.heads_q; ++h) {
        spoil_row(data.inputs.q, s.q.row(i, h), p.head_dim, value, random);
        if (p.layout_k == Layout::paged) continue;
        spoil_row(data.d_o, d_o.row(i, h), p.head_dim_v, value, random);
      }
    }
  }
  return spoilt;
}

bool is_finite_row(const core::Rows& rows, std::int64_t i, std::int64_t h, const Tensor& tensor,
                   std::int64_t dim) {
  Tensor view = tensor;
  view.data = rows.row(i, h);
  for (std::int64_t d = 0; d < dim; ++d) {
    if (!std::isfinite(load_element(view, d))) return false;
  }
  return true;
}

// Rows and keys that were compared, and rows that see something spoilt.
struct Counts {
  int rows = 0, keys = 0, spoilt_rows = 0;
};

class Comparer {
 public:
  Comparer(const CaseData& clean, const CaseData& got, const std::vector<Visible>& visible,
           const Spoilt& spoilt, std::string what)
      : clean_(clean), got_(got), visible_(visible), spoilt_(spoilt), what_(std::move(what)) {}

  Counts compare() {
    for (std::int64_t b = 0; b < clean_.problem.batch; ++b) compare_sequence(b);
    return counts_;
  }

 private:
  void compare_sequence(std::int64_t b) {
    const Problem& p = clean_.problem;
    const core::Sequence s = core::sequence(p, clean_.inputs, b);
    const std::int64_t group = p.heads_q / p.heads_k;
    for (std::int64_t head_k = 0; head_k < p.heads_k; ++head_k) {
      std::vector<bool> key_spoilt(static_cast<std::size_t>(s.length_k));
      for (std::int64_t h = head_k * group; h < (head_k + 1) * group; ++h) {
        const Visible& visible = visible_[static_cast<std::size_t>(b * p.heads_q + h)];
        for (std::int64_t i = 0; i < s.length_q; ++i) {
          const bool spoilt = row_spoilt(visible, b, i);
          compare_row(b, h, i, spoilt);
          for (std::int64_t j = 0; spoilt && j < s.length_k; ++j) {
            if (visible(i, j)) key_spoilt[static_cast<std::size_t>(j)] = true;
          }
        }
      }
      if (p.layout_k == Layout::paged) continue;
      for (std::int64_t j = 0; j < s.length_k; ++j) {
        if (key_spoilt[static_cast<std::size_t>(j)]) continue;
        ++counts_.keys;
        compare_like_k("dk", clean_.gradients.dk, got_.gradients.dk, b, head_k, j, p.head_dim);
        compare_like_k("dv", clean_.gradients.dv, got_.gradients.dv, b, head_k, j, p.head_dim_v);
      }
    }
  }

  bool row_spoilt(const Visible& visible, std::int64_t b, std::int64_t i) const {
    const auto at = static_cast<std::size_t>(b);
    for (const std::int64_t query : spoilt_.queries[at]) {
      if (query == i) return true;
    }
    for (const std::int64_t key : spoilt_.keys[at]) {
      if (visible(i, key)) return true;
    }
    return false;
  }

  void compare_row(std::int64_t b, std::int64_t h, std::int64_t i, bool spoilt) {
    const Problem& p = clean_.problem;
    const core::Rows o = core::rows_like_q(p, got_.inputs, got_.outputs.o, b);
    if (spoilt) {
      ++counts_.spoilt_rows;
      // What is seen is not hidden either. Dropout may drop it, and a score of -inf, from an
      // infinite K, is a weight of 0.
      const bool keys_spoilt = !spoilt_.keys[static_cast<std::size_t>(b)].empty();
      if (keys_spoilt && std::isnan(spoilt_.value) && p.dropout.probability == 0) {
        EXPECT_FALSE(is_finite_row(o, i, h, got_.outputs.o, p.head_dim_v))
            << what_ << ": o of " << b << ", " << h << ", " << i;
      }
      return;
    }
    ++counts_.rows;
    const core::Rows clean_o = core::rows_like_q(p, clean_.inputs, clean_.outputs.o, b);
    EXPECT_TRUE(same_row(clean_o, o, i, h, got_.outputs.o, p.head_dim_v))
        << what_ << ": o of batch " << b << ", head " << h << ", query " << i;
    EXPECT_TRUE(same_lse(clean_, got_, b, h, i))
        << what_ << ": lse of batch " << b << ", head " << h << ", query " << i;
    if (p.layout_k == Layout::paged) return;
    EXPECT_TRUE(same_row(core::rows_like_q(p, clean_.inputs, clean_.gradients.dq, b),
                         core::rows_like_q(p, got_.inputs, got_.gradients.dq, b), i, h,
                         got_.gradients.dq, p.head_dim))
        << what_ << ": dq of batch " << b << ", head " << h << ", query " << i;
  }

  void compare_like_k(const char* name, const Tensor& clean, const Tensor& got, std::int64_t b,
                      std::int64_t head, std::int64_t key, std::int64_t dim) {
    EXPECT_TRUE(same_row(core::rows_like_k(clean_.problem, clean_.inputs, clean, b),
                         core::rows_like_k(got_.problem, got_.inputs, got, b), key, head, got, dim))
        << what_ << ": " << name << " of batch " << b << ", head " << head << ", key " << key;
  }

  const CaseData& clean_;
  const CaseData& got_;
  const std::vector<Visible>& visible_;
  const Spoilt& spoilt_;
  std::string what_;
  Counts counts_;
};

class HiddenValues : public ::testing::TestWithParam<const char*> {
 protected:
  void check(bool keys, bool queries) {
    const Case c = parse_case(GetParam());
    const DType dtype = c.problem.dtype;
    const std::vector<Algorithm> backward = algorithms_for(dtype, Phase::backward);
    // A sanitizer looks at addresses: there each run is with one of the three values, in turn,
    // which begins at another algorithm with each instruction set.
    std::size_t first = 0;
    for (const float value :
         {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
          -std::numeric_limits<float>::infinity()}) {
      CaseData clean(c, kSeed);
      CaseData got(c, kSeed);
      const std::vector<Visible> visible = visible_elements(clean);
      const Spoilt spoilt = spoil(got, visible, keys, queries, value);
      std::size_t turn = 0, at = first++;
      for (const InstructionSet isa : available_instruction_sets()) {
        for (const Algorithm algorithm : algorithms_for(dtype, Phase::forward)) {
          const Algorithms a{algorithm, backward[turn++ % backward.size()], isa};
          if (quick() && at++ % 3 != 0) continue;
          run(clean, a);
          run(got, a);
          const Counts counts =
              Comparer(clean, got, visible, spoilt, describe(a) + ", " + std::to_string(value))
                  .compare();
          ASSERT_GT(counts.rows, 0) << "every row sees something spoilt";
          ASSERT_GT(counts.spoilt_rows, 0) << "no row sees anything spoilt";
          // The rows that see a key of a causal mask see all keys before it.
          if (queries && got.problem.layout_k != Layout::paged) {
            ASSERT_GT(counts.keys, 0) << "every key is seen by a spoilt row";
          }
          if (HasFailure()) return;
        }
        ++at;
      }
    }
  }
};

TEST_P(HiddenValues, OfKeysReachNoRowThatDoesNotSeeThem) { check(true, false); }
TEST_P(HiddenValues, OfRowsReachNoKeyThatTheyDoNotSee) { check(false, true); }

INSTANTIATE_TEST_SUITE_P(
    Conformance, HiddenValues,
    ::testing::Values(
        "b1_n150_h2_d40_causal_f32", "b2_sq2_sk150_hq4_hk2_d36_window40x0_f64",
        "b2_sq70_sk150_hq4_hk2_d64_causal_bf16", "b1_sq130_sk200_hq2_hk1_d64_window30x20_f16",
        "b1_n200_h1_d32_window9x5_bf16", "b2_n96_h2_d16_butterfly4_f32/padded",
        "b2_sq3_sk300_hq4_hk2_d64_window40x0_bf16", "b1_sq4_sk260_hq2_hk1_d72_causal_f32",
        "b2_sq2_sk200_h2_d64_window50x0_paged16_f16",
        "b2_sq60_sk150_hq4_hk2_d64_window20x0_paged16_bf16",
        "b3_sq90_sk100_hq4_hk2_d32_causal_packed_f32",
        "b2_n130_h2_d64_softcap10_alibi_bias_window40x0_sink_dropout0.2_seed3_f32",
        "b2_n130_h2_d64_window40x0_dropout0.5_seed9_bf16", "b1_n600_h1_d64_window70x0_f32",
        "b2_sq70_sk150_hq4_hk2_d40_causal_f64", "b2_n130_h2_d64_window40x0_dropout0.5_seed9_f64"),
    [](const ::testing::TestParamInfo<const char*>& info) { return test_name(info.param); });

// A key with a score of -inf takes nothing of the row and gives it nothing, as the reference has
// it: K and V are NaN where no row has another score, Q and dO of one row. The rest is finite.
TEST(HiddenByScore, IsAnsweredAsByTheReference) {
  constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
  for (const char* text :
       {"b1_sq70_sk200_h2_d64_score(select(t[query,key]<-1.5,-inf,score))_buffer(t:f32:70x200)_f32",
        "b1_sq5_sk300_hq4_hk2_d40_score(select(t[query,key]<-1.5,-inf,score))_buffer(t:f32:5x300)_"
        "bf16",
        "b1_sq4_sk300_hq4_hk2_d40_score(select(t[query,key]<-1.5,-inf,score))_buffer(t:f32:4x300)_"
        "bf16",
        "b1_sq130_sk100_h1_d64_score(select(t[query,key]<-1.5,-inf,score))_buffer(t:f32:130x100)_"
        "f16"}) {
    CaseData data(parse_case(text), kSeed);
    const Problem& p = data.problem;
    const Tensor& t = data.inputs.buffers.at(0).second;
    const core::Sequence s = core::sequence(p, data.inputs, 0);
    std::mt19937_64 random(kSeed);
    for (const std::int64_t key : {p.seqlen_k - 1, p.seqlen_k / 2, p.seqlen_k / 3}) {
      for (std::int64_t i = 0; i < p.seqlen_q; ++i) store_element(t, i * p.seqlen_k + key, -2);
      for (std::int64_t h = 0; h < p.heads_k; ++h) {
        spoil_row(data.inputs.k, s.k.row(key, h), p.head_dim, kNaN, random);
        spoil_row(data.inputs.v, s.v.row(key, h), p.head_dim_v, kNaN, random);
      }
    }
    spoil_row(data.inputs.q, s.q.row(3, 0), p.head_dim, kNaN, random);
    spoil_row(data.d_o, core::rows_like_q(p, data.inputs, data.d_o, 0).row(3, 0), p.head_dim_v,
              kNaN, random);
    const Outputs outputs = data.f64_outputs();
    const Gradients gradients = data.f64_gradients();
    reference::forward(p, data.inputs, outputs);
    reference::backward(p, data.inputs, outputs, data.d_o, gradients);
    int not_finite = 0;
    const auto compare = [&](const std::string& what, const Tensor& got, const Tensor& want) {
      const Elements x = read_elements(got), y = read_elements(want);
      for (std::size_t i = 0; i < x.values.size(); ++i) {
        not_finite += std::isfinite(y.values[i]) ? 0 : 1;
        if (std::isfinite(y.values[i])) {
          ASSERT_NEAR(x.values[i], y.values[i], 0.05) << what << ", element " << i;
        } else {
          ASSERT_FALSE(std::isfinite(x.values[i])) << what << ", element " << i;
        }
      }
    };
    std::size_t turn = 0;
    const std::vector<Algorithm> backward = algorithms(Phase::backward);
    for (const InstructionSet isa : available_instruction_sets()) {
      for (const Algorithm algorithm : algorithms(Phase::forward)) {
        const Algorithms a{algorithm, backward[turn++ % backward.size()], isa};
        run(data, a);
        const std::string what = std::string(text) + ", " + describe(a) + ": ";
        compare(what + "o", data.outputs.o, outputs.o);
        compare(what + "lse", data.outputs.lse, outputs.lse);
        compare(what + "dq", data.gradients.dq, gradients.dq);
        compare(what + "dk", data.gradients.dk, gradients.dk);
        compare(what + "dv", data.gradients.dv, gradients.dv);
        if (HasFatalFailure()) return;
      }
    }
    EXPECT_GT(not_finite, 0) << text;
  }
}

// Entries of the page table whose pages no row sees hold anything.
TEST(HiddenPages, AreNotLookedUp) {
  for (const char* text : {"b2_sq1_sk300_hq4_hk2_d64_window40x0_paged16_f32",
                           "b2_sq40_sk300_h2_d64_window20x0_paged16_bf16",
                           "b3_sq3_sk400_hq2_hk1_d40_window20x0_paged1_f16"}) {
    const Case c = parse_case(text);
    CaseData clean(c, kSeed);
    CaseData got(c, kSeed);
    const std::vector<Visible> visible = visible_elements(clean);
    const Problem& p = got.problem;
    int replaced = 0;
    for (std::int64_t b = 0; b < p.batch; ++b) {
      const core::Sequence s = core::sequence(p, got.inputs, b);
      for (std::int64_t page = 0; page * p.page_size < s.length_k; ++page) {
        bool seen = false;
        for (std::int64_t j = page * p.page_size;
             j < std::min<std::int64_t>((page + 1) * p.page_size, s.length_k); ++j) {
          for (std::int64_t i = 0; i < s.length_q; ++i) {
            seen |= visible[static_cast<std::size_t>(b * p.heads_q)](i, j);
          }
        }
        if (seen) continue;
        const Tensor& table = got.inputs.page_table;
        static_cast<std::int32_t*>(table.data)[table.offset({b, page})] =
            replaced++ % 2 == 0 ? -1 : std::numeric_limits<std::int32_t>::max();
      }
    }
    ASSERT_GT(replaced, 0) << text;
    for (const InstructionSet isa : available_instruction_sets()) {
      for (const Algorithm algorithm : algorithms(Phase::forward)) {
        const Algorithms a{algorithm, Algorithm::standard, isa};
        run(clean, a);
        run(got, a);
        const std::string what = std::string(text) + ", " + describe(a);
        EXPECT_TRUE(first_difference(clean.outputs.o, got.outputs.o).empty()) << what;
        EXPECT_TRUE(first_difference(clean.outputs.lse, got.outputs.lse).empty()) << what;
      }
    }
    forward(p, got.inputs, got.outputs, {.backend = Backend::reference});
  }
}

}  // namespace
}  // namespace attn::verify
