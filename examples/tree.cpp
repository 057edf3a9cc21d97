// A verify step of speculative decoding: for each of two sequences a tree of draft tokens, whose
// rows of Q are packed, attends to a paged cache that ends with the draft's own keys.
#include <algorithm>
#include <attn/attn.hpp>
#include <cmath>
#include <cstdio>
#include <random>
#include <vector>

int main() {
  constexpr std::int64_t kHeadsQ = 8, kHeadsK = 2, kDim = 64, kPage = 16;
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  const auto make = [&](std::int64_t size) {
    std::vector<float> values(static_cast<std::size_t>(size));
    for (float& value : values) value = normal(random);
    return values;
  };
  // Parents of draft tokens: -1 is the last token before the draft.
  const std::vector<std::vector<std::int32_t>> trees{{-1, 0, 0, 1, 1, 2}, {-1, -1, 0, 1}};
  const std::vector<std::int32_t> cu_seqlens{0, 6, 10}, lengths{90, 41};  // the draft is counted
  const std::vector<std::int32_t> pages{7, 0, 3, 9, 5, 1, 2, 8, 4, 0, 0, 0};  // of 6 each, 3 unused
  const std::vector<float> q = make(10 * kHeadsQ * kDim);
  const std::vector<float> k = make(10 * kPage * kHeadsK * kDim);
  const std::vector<float> v = make(10 * kPage * kHeadsK * kDim);
  std::vector<float> o(q.size()), expected(q.size());
  attn::Inputs inputs{.q = attn::tensor(q.data(), {10, kHeadsQ, kDim}),
                      .k = attn::tensor(k.data(), {10, kPage, kHeadsK, kDim}),
                      .v = attn::tensor(v.data(), {10, kPage, kHeadsK, kDim}),
                      .cu_seqlens_q = attn::tensor(cu_seqlens.data(), {3}),
                      .seqused_k = attn::tensor(lengths.data(), {2}),
                      .page_table = attn::tensor(pages.data(), {2, 6})};

  constexpr std::int64_t kDrafts = 6;  // of the sequence that has most
  const attn::Tensor shape =
      attn::tensor(static_cast<const std::int32_t*>(nullptr), {2, kDrafts, 1});
  const attn::Problem problem{.seqlen_q = kDrafts,
                              .layout_q = attn::Layout::packed,
                              .layout_k = attn::Layout::paged,
                              .mask = attn::tree_mask(shape)};
  // At each step, where Q lies: the words of the trees that were drafted.
  std::vector<std::int32_t> words;
  for (const auto& parents : trees) {
    const std::vector<std::int32_t> of_one = attn::tree_words(parents, kDrafts);
    words.insert(words.end(), of_one.begin(), of_one.end());
  }
  inputs.buffers = {{"tree", attn::tensor(words.data(), {2, kDrafts, 1})}};
  attn::forward(problem, inputs, {.o = attn::tensor(o.data(), {10, kHeadsQ, kDim})});

  attn::forward(problem, inputs, {.o = attn::tensor(expected.data(), {10, kHeadsQ, kDim})},
                {.backend = attn::Backend::reference});
  float error = 0;
  for (std::size_t i = 0; i < o.size(); ++i) error = std::max(error, std::abs(o[i] - expected[i]));
  std::printf("largest difference from fp64: %g\n", error);
  return error < 1e-5F ? 0 : 1;
}
