// Where q.k is -infinity, as of an infinite element of K, the key is hidden without any mask: its
// V, and in the backward pass K, Q and dO, reach nothing, whatever they hold. Every path of the CPU
// against the reference, which says the same by leaving out keys whose P is 0.
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "attn/run.hpp"
#include "conformance/support.hpp"
#include "core/cached_rows.hpp"
#include "core/problem/rows.hpp"
#include "reference/reference.hpp"
#include "verify/compare.hpp"
#include "verify/data.hpp"

namespace attn::verify {
namespace {

constexpr std::uint64_t kSeed = 5;
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// Columns in which K of a key, and Q of a row, is -infinity.
constexpr std::int64_t kColumnOfK = 1, kColumnOfQ = 2;

void store(std::byte* row, CacheType type, std::int64_t column, float value) {
  if (type == CacheType::e5m2) {
    row[column] = std::byte(std::isnan(value) ? 0x7f : value < 0 ? 0xfc : 0x34);
    return;
  }
  Tensor view{.dtype = storage_dtype(type)};
  view.data = row;
  store_element(view, column, value);
}

// Keys 0, in the middle and last are hidden from all rows by an infinite K, and the middle row of
// Q sees nothing for an infinite Q. Of all these V and dO hold NaN or infinity.
void spoil(CaseData& data, const Problem& p) {
  const CacheType type_q = core::type_of_q(p), type_k = core::type_of_k(p),
                  type_v = core::type_of_v(p);
  for (std::int64_t b = 0; b < p.batch; ++b) {
    const core::Sequence s = core::sequence(p, data.inputs, b);
    for (std::int64_t h = 0; h < p.heads_k; ++h) {
      for (std::int64_t j = 0; j < s.length_k; ++j) {
        const bool hidden = j == 0 || j == s.length_k / 2 || j + 1 == s.length_k;
        store(s.k.row(j, h), type_k, kColumnOfQ, 0.25f);
        if (!hidden) continue;
        store(s.k.row(j, h), type_k, kColumnOfK, -kInfinity);
        store(s.v.row(j, h), type_v, (j + h) % p.head_dim_v, j == 0 ? -kInfinity : kNaN);
      }
    }
    const core::Rows d_o = core::rows_like_q(p, data.inputs, data.d_o, b);
    for (std::int64_t h = 0; h < p.heads_q; ++h) {
      for (std::int64_t i = 0; i < s.length_q; ++i) {
        store(s.q.row(i, h), type_q, kColumnOfK, 0.25f);
        if (i != s.length_q / 2 || s.length_q < 3) continue;
        store(s.q.row(i, h), type_q, kColumnOfQ, -kInfinity);
        if (data.d_o.given()) store(d_o.row(i, h), core::cache_type(p.dtype), h, kNaN);
      }
    }
  }
}

class InfiniteScores : public ::testing::TestWithParam<const char*> {};

TEST_P(InfiniteScores, HideTheirKeys) {
  const Case c = parse_case(GetParam());
  CaseData data(c, kSeed);
  const Problem& p = data.problem;
  ASSERT_TRUE(p.mask.empty() && p.score.empty());
  spoil(data, p);
  const bool has_backward = p.layout_k != Layout::paged && p.type_k == CacheType::as_q &&
                            p.key_list == 0 && p.seqlen_prefix == 0;
  const Outputs outputs = data.f64_outputs();
  reference::forward(p, data.inputs, outputs);
  const Gradients gradients = data.f64_gradients();
  if (has_backward) reference::backward(p, data.inputs, outputs, data.d_o, gradients);
  const auto compare = [](const std::string& what, const Tensor& got, const Tensor& want) {
    const Elements x = read_elements(got), y = read_elements(want);
    ASSERT_EQ(x.values.size(), y.values.size());
    for (std::size_t i = 0; i < x.values.size(); ++i) {
      if (x.values[i] == y.values[i]) continue;  // infinities
      ASSERT_TRUE(std::isfinite(y.values[i])) << what << ", element " << i;
      ASSERT_NEAR(x.values[i], y.values[i], 0.05) << what << ", element " << i;
    }
  };
  const std::vector<Algorithm> forward_all = algorithms_for(p, Phase::forward);
  const std::vector<Algorithm> backward_all = algorithms_for(p, Phase::backward);
  std::size_t turn = 0;
  for (const InstructionSet isa : available_instruction_sets()) {
    for (const Algorithm algorithm : forward_all) {
      const Context context{.executor = make_thread_pool(2), .isa = isa, .log = nullptr};
      const std::string what = std::string(name(algorithm)) + ", " + std::string(name(isa)) + ": ";
      data.poison();
      forward(p, data.inputs, data.outputs, {.backend = Backend::cpu, .algorithm = algorithm},
              context);
      compare(what + "o", data.outputs.o, outputs.o);
      compare(what + "lse", data.outputs.lse, outputs.lse);
      if (has_backward) {
        backward(p, data.inputs, data.outputs, data.d_o, data.gradients,
                 {.backend = Backend::cpu, .algorithm = backward_all[turn++ % backward_all.size()]},
                 context);
        compare(what + "dq", data.gradients.dq, gradients.dq);
        compare(what + "dk", data.gradients.dk, gradients.dk);
        compare(what + "dv", data.gradients.dv, gradients.dv);
      }
      if (HasFatalFailure()) return;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Conformance, InfiniteScores,
    ::testing::Values("b2_sq70_sk200_h2_d64_f32", "b2_sq70_sk200_hq4_hk2_d64_bf16",
                      "b1_sq40_sk90_h2_d40_f16", "b1_sq40_sk90_h2_d40_f64",
                      "b2_sq1_sk300_hq4_hk2_d64_bf16", "b2_sq3_sk300_h2_d64_f32",
                      "b1_sq1_sk2000_hq4_hk2_d40_f16", "b2_sq2_sk200_h1_d64_f64",
                      "b2_sq30_sk90_h2_d32_dropout0.2_seed3_f32",
                      "b2_sq1_sk200_hq4_hk2_d64_paged16_bf16", "b2_sq70_sk200_h2_d64_paged16_f32",
                      "b2_sq3_sk200_h2_d64_kv(e5m2)_bf16", "b1_sq70_sk200_h2_d64_kv(e5m2)_f32",
                      "b2_sq3_sk200_h2_d64_kv(f16)_f32", "b2_sq3_sk90_hq6_hk2_d32_list40_f32",
                      "b2_sq3_sk90_hq6_hk2_d32_list40_f64", "b2_sq9_sk150_sp130_hq6_hk2_d96_bf16"),
    [](const ::testing::TestParamInfo<const char*>& info) { return test_name(info.param); });

}  // namespace
}  // namespace attn::verify
