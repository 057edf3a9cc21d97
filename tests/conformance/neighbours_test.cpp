// Sequences of a batch know nothing of each other: changing one changes no bit of the results of
// the others, in packed tensors, where its rows come right after theirs, as well.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "conformance/isolation.hpp"
#include "conformance/support.hpp"
#include "core/problem/rows.hpp"
#include "verify/data.hpp"

namespace attn::verify {
namespace {

constexpr std::uint64_t kSeed = 5;
constexpr std::int64_t kChanged = 1;  // of the batch

// Multiplies each element of the sequence's rows.
void scale_rows(const Tensor& tensor, const core::Rows& rows, std::int64_t length,
                std::int64_t heads, std::int64_t dim, double factor) {
  for (std::int64_t i = 0; i < length; ++i) {
    for (std::int64_t h = 0; h < heads; ++h) {
      Tensor row = tensor;
      row.data = rows.row(i, h);
      for (std::int64_t d = 0; d < dim; ++d) store_element(row, d, factor * load_element(row, d));
    }
  }
}

// Of some algorithm, a factor of 1000 makes maxima, rescaling and P of the sequence quite other.
void change_sequence(CaseData& data, double factor) {
  const Problem& p = data.problem;
  const core::Sequence s = core::sequence(p, data.inputs, kChanged);
  scale_rows(data.inputs.q, s.q, s.length_q, p.heads_q, p.head_dim, factor);
  scale_rows(data.inputs.k, s.k, s.length_k, p.heads_k, p.head_dim, -1);
  scale_rows(data.inputs.v, s.v, s.length_k, p.heads_k, p.head_dim_v, factor);
  if (p.layout_k == Layout::paged) return;
  scale_rows(data.d_o, core::rows_like_q(p, data.inputs, data.d_o, kChanged), s.length_q, p.heads_q,
             p.head_dim_v, factor);
}

bool rows_differ(const CaseData& a, const CaseData& b, std::int64_t batch) {
  const Problem& p = a.problem;
  const core::Sequence s = core::sequence(p, a.inputs, batch);
  for (std::int64_t i = 0; i < s.length_q; ++i) {
    if (!same_row(core::rows_like_q(p, a.inputs, a.outputs.o, batch),
                  core::rows_like_q(p, b.inputs, b.outputs.o, batch), i, 0, a.outputs.o,
                  p.head_dim_v)) {
      return true;
    }
  }
  return false;
}

void expect_same_sequence(const CaseData& a, const CaseData& b, std::int64_t batch,
                          const std::string& what) {
  const Problem& p = a.problem;
  const core::Sequence s = core::sequence(p, a.inputs, batch);
  const auto expect_same = [&](const char* name, const Tensor& x, const Tensor& y, bool like_q,
                               std::int64_t dim) {
    if (!x.given()) return;
    const auto rows = like_q ? core::rows_like_q : core::rows_like_k;
    const std::int64_t capacity = like_q ? s.capacity_q : s.capacity_k;
    for (std::int64_t i = 0; i < capacity; ++i) {
      for (std::int64_t h = 0; h < (like_q ? p.heads_q : p.heads_k); ++h) {
        ASSERT_TRUE(
            same_row(rows(p, a.inputs, x, batch), rows(p, b.inputs, y, batch), i, h, x, dim))
            << what << ": " << name << " of sequence " << batch << ", row " << i << ", head " << h;
      }
    }
  };
  expect_same("o", a.outputs.o, b.outputs.o, true, p.head_dim_v);
  for (std::int64_t i = 0; i < s.capacity_q; ++i) {
    for (std::int64_t h = 0; h < p.heads_q; ++h) {
      ASSERT_TRUE(same_lse(a, b, batch, h, i))
          << what << ": lse of sequence " << batch << ", row " << i << ", head " << h;
    }
  }
  if (p.layout_k == Layout::paged) return;
  expect_same("dq", a.gradients.dq, b.gradients.dq, true, p.head_dim);
  expect_same("dk", a.gradients.dk, b.gradients.dk, false, p.head_dim);
  expect_same("dv", a.gradients.dv, b.gradients.dv, false, p.head_dim_v);
}

class Neighbours : public ::testing::TestWithParam<const char*> {};

TEST_P(Neighbours, ChangeNoBitOfEachOther) {
  const Case c = parse_case(GetParam());
  const std::vector<Algorithm> backward = algorithms(Phase::backward);
  for (const double factor : {1.5, 1000.0}) {
    CaseData before(c, kSeed);
    CaseData after(c, kSeed);
    change_sequence(after, factor);
    std::size_t turn = 0;
    for (const InstructionSet isa : available_instruction_sets()) {
      for (const Algorithm algorithm : algorithms(Phase::forward)) {
        const Algorithms a{algorithm, backward[turn++ % backward.size()], isa};
        run(before, a);
        run(after, a);
        ASSERT_TRUE(rows_differ(before, after, kChanged)) << "the change changes nothing";
        for (std::int64_t b = 0; b < c.problem.batch; ++b) {
          if (b != kChanged) expect_same_sequence(before, after, b, describe(a));
        }
        if (HasFailure()) return;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Conformance, Neighbours,
    ::testing::Values("b3_sq40_sk70_hq4_hk2_d64_packed_bf16/cuq0,13,30,61_cuk0,17,60,115",
                      "b3_sq150_sk170_hq4_hk2_d40_causal_packed_f32/cuq0,1,150,169_cuk0,64,170,300",
                      "b3_sq9_sk200_h2_d64_window30x0_packed_f16",
                      "b3_n100_hq4_hk2_d64_causal_sink_f32/padded",
                      "b3_sq2_sk300_hq4_hk2_d64_bf16/padded",
                      "b3_sq4_sk130_h2_d64_causal_paged16_bf16",
                      "b4_n64_h2_d64_softcap5_alibi_packed_dropout0.3_seed2_bf16"),
    [](const ::testing::TestParamInfo<const char*>& info) { return test_name(info.param); });

}  // namespace
}  // namespace attn::verify
