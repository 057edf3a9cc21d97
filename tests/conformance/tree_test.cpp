// Verify steps of speculative decoding: attention under a tree of draft tokens, against plain loops
// that walk up the tree.
#include <cmath>
#include <cstdint>
#include <vector>

#include "attn/mask.hpp"
#include "attn/run.hpp"
#include "conformance/support.hpp"
#include "core/problem/rows.hpp"
#include "reference/reference.hpp"
#include "verify/data.hpp"

namespace attn::verify {
namespace {

using Parents = std::vector<std::int32_t>;

// Draft trees of the lengths of a case, and the words of their buffer, bound in the case's place.
// What lies past the length of a draft is set: nothing may show it.
struct Trees {
  Trees(CaseData& data, std::uint64_t seed) {
    Random random(seed);
    const std::int64_t rows = data.problem.seqlen_q, width = (rows + 31) / 32;
    for (std::int64_t b = 0; b < data.problem.batch; ++b) {
      const std::int32_t drafts = core::sequence(data.problem, data.inputs, b).length_q;
      Parents& of_sequence = parents.emplace_back();
      for (std::int32_t i = 0; i < drafts; ++i) {
        of_sequence.push_back(
            static_cast<std::int32_t>(random() % static_cast<std::uint64_t>(i + 1)) - 1);
      }
      std::vector<std::int32_t> of_tree = tree_words(of_sequence, rows);
      for (std::int64_t i = 0; i < rows; ++i) {
        for (std::int64_t t = 0; t < 32 * width; ++t) {
          if (i < drafts && t < drafts) continue;
          of_tree[static_cast<std::size_t>(i * width + t / 32)] |=
              static_cast<std::int32_t>(1U << (t % 32));
        }
      }
      words.insert(words.end(), of_tree.begin(), of_tree.end());
    }
    data.inputs.buffers = {{"tree", tensor(words.data(), {data.problem.batch, rows, width})}};
  }
  bool sees(std::int64_t b, std::int32_t query, std::int32_t draft) const {
    const Parents& of = parents[static_cast<std::size_t>(b)];
    for (std::int32_t i = query; i >= 0; i = of[static_cast<std::size_t>(i)]) {
      if (i == draft) return true;
    }
    return false;
  }
  std::vector<Parents> parents;
  std::vector<std::int32_t> words;
};

// The row of Q and O, or of K and V, of a sequence, as an offset of its tensor.
std::int64_t row(const CaseData& data, const Tensor& t, bool of_q, std::int64_t b, std::int64_t i,
                 std::int64_t h) {
  const Problem& p = data.problem;
  const auto read = [](const Tensor& from, std::int64_t at) {
    return static_cast<std::int64_t>(load_element(from, at));
  };
  switch (of_q ? p.layout_q : p.layout_k) {
    case Layout::packed: {
      const Tensor& cu = of_q ? data.inputs.cu_seqlens_q : data.inputs.cu_seqlens_k;
      return t.offset({read(cu, b) + i, h, 0});
    }
    case Layout::paged: {
      const Tensor& table = data.inputs.page_table;
      return t.offset({read(table, table.offset({b, i / p.page_size})), i % p.page_size, h, 0});
    }
    case Layout::dense:
      break;
  }
  return t.offset({b, i, h, 0});
}

double dot(const Tensor& a, std::int64_t at_a, const Tensor& b, std::int64_t at_b, std::int64_t n) {
  double sum = 0;
  for (std::int64_t c = 0; c < n; ++c) sum += load_element(a, at_a + c) * load_element(b, at_b + c);
  return sum;
}

// The largest difference of O from the definition.
double error(const CaseData& data, const Trees& trees, const Tensor& o) {
  const Problem& p = data.problem;
  double largest = 0;
  for (std::int64_t b = 0; b < p.batch; ++b) {
    const core::Sequence sequence = core::sequence(p, data.inputs, b);
    const std::int32_t before = sequence.length_k - sequence.length_q;
    for (std::int32_t i = 0; i < sequence.length_q; ++i) {
      for (std::int64_t h = 0; h < p.heads_q; ++h) {
        const std::int64_t of_k = h / (p.heads_q / p.heads_k);
        const std::int64_t q = row(data, data.inputs.q, true, b, i, h);
        double sum = 0;
        std::vector<double> want(static_cast<std::size_t>(p.head_dim_v));
        for (std::int32_t j = 0; j < sequence.length_k; ++j) {
          if (j >= before && !trees.sees(b, i, j - before)) continue;
          const double weight =
              std::exp(p.scale() * dot(data.inputs.q, q, data.inputs.k,
                                       row(data, data.inputs.k, false, b, j, of_k), p.head_dim));
          sum += weight;
          const std::int64_t v = row(data, data.inputs.v, false, b, j, of_k);
          for (std::size_t c = 0; c < want.size(); ++c) {
            want[c] += weight * load_element(data.inputs.v, v + static_cast<std::int64_t>(c));
          }
        }
        const std::int64_t at = row(data, o, true, b, i, h);
        for (std::size_t c = 0; c < want.size(); ++c) {
          const double found = load_element(o, at + static_cast<std::int64_t>(c));
          const double difference = std::abs(found - (sum > 0 ? want[c] / sum : 0));
          // A NaN is no small difference.
          if (!(difference <= largest)) largest = difference;
        }
      }
    }
  }
  return largest;
}

TEST(TreeMask, VerifyStepsAreThoseOfTheDefinition) {
  for (const char* sizes :
       {"b3_sq9_sk100_hq8_hk2_d32_tree", "b2_sq40_sk50_h2_d16_tree/padded",
        "b3_sq40_sk200_hq4_hk2_d32_tree_packedq_paged16", "b4_sq70_sk90_h2_d16_tree_packed",
        "b2_sq33_sk33_h2_d16_tree", "b2_sq12_sk5_h2_d16_tree"}) {
    CaseData exact(parse_case(std::string(sizes).insert(std::string(sizes).find("_tree"), "_f64")),
                   36);
    const Trees of_exact(exact, 1);
    reference::forward(exact.problem, exact.inputs, exact.outputs);
    EXPECT_LT(error(exact, of_exact, exact.outputs.o), 1e-12) << sizes;
    for (const auto& [dtype, most] : {std::pair{"_f32", 1e-5}, {"_bf16", 0.03}}) {
      std::string text = sizes;
      CaseData data(parse_case(text.insert(text.find("_tree"), dtype)), 36);
      const Trees trees(data, 1);
      for (const Algorithm algorithm : algorithms(Phase::forward)) {
        data.poison();
        forward(data.problem, data.inputs, data.outputs,
                {.backend = Backend::cpu, .algorithm = algorithm}, {.log = nullptr});
        EXPECT_LT(error(data, trees, data.outputs.o), most) << text << ", " << name(algorithm);
        EXPECT_EQ(data.damage(), "");
      }
    }
  }
}

}  // namespace
}  // namespace attn::verify
