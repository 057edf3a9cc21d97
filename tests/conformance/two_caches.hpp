// Attention over two caches in one softmax: a call over a window's cache with the sink, a call over
// keys of a second cache by list, and attn::merge of both. They are judged by the error rule as one
// call over the keys of both caches.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "attn/expr.hpp"
#include "attn/run.hpp"
#include "verify/data.hpp"
#include "verify/expectation.hpp"

namespace attn::testing {

class TwoCaches {
 public:
  // type: as a descriptor ends, as "bf16".
  TwoCaches(const std::string& type, std::uint64_t seed)
      : window(verify::parse_case("b2_sq3_sk90_hq4_hk2_d64_window40x0_sink_" + type), seed),
        listed(verify::parse_case("b2_sq3_sk300_hq4_hk2_d64_list60_" + type), seed + 1) {
    std::memcpy(listed.inputs.q.data, window.inputs.q.data,
                static_cast<std::size_t>(window.inputs.q.size()) * size_of(window.problem.dtype));
    fill_lists(seed);
    merged.o = tensor(o_.data(), window.problem.dtype, {kBatch, kQueries, kHeads, kDim});
    merged.lse = tensor(lse_.data(), {kBatch, kHeads, kQueries});
  }

  verify::CaseData window, listed;
  Outputs merged;  // NaN

  // O and LSE that were merged, by the error rule.
  std::vector<verify::Comparison> judge(bool on_gpu) {
    Problem problem = window.problem;
    problem.seqlen_k = kWindow + kListed;
    const auto& s = expr::symbols();
    problem.mask = expr::Buffer("seen", seen())({s.batch, s.head, s.query, s.key}) != 0;
    Inputs in = window.inputs;
    const std::vector<std::byte> k = joined(window.inputs.k, listed.inputs.k);
    const std::vector<std::byte> v = joined(window.inputs.v, listed.inputs.v);
    for (auto [t, bytes] : {std::pair(&in.k, &k), std::pair(&in.v, &v)}) {
      *t = tensor(static_cast<const void*>(bytes->data()), problem.dtype,
                  {kBatch, problem.seqlen_k, kHeadsK, kDim});
    }
    std::vector<verify::Expected> expected = verify::expect_forward(problem, in, merged, 8);
    if (on_gpu) verify::measure_tensor_cores(problem, in, expected);
    const verify::Part part{expected};
    return verify::judge({&part, 1});
  }

 private:
  static constexpr std::int64_t kBatch = 2, kQueries = 3, kHeads = 4, kHeadsK = 2, kDim = 64;
  static constexpr std::int64_t kWindow = 90, kListed = 300, kList = 60, kLeft = 40;

  // Different keys, and some entries that are none; one row has no key.
  void fill_lists(std::uint64_t seed) const {
    std::mt19937_64 random(seed);
    const Tensor& lists = listed.inputs.key_list;
    std::vector<std::int32_t> keys(kListed);
    std::iota(keys.begin(), keys.end(), 0);
    for (std::int64_t row = 0; row < kBatch * lists.shape[1] * kQueries; ++row) {
      std::shuffle(keys.begin(), keys.end(), random);
      auto* const list = static_cast<std::int32_t*>(lists.data) + row * kList;
      std::copy_n(keys.begin(), kList, list);
      for (std::int64_t j = 0; j < kList; ++j) {
        if (row == 1 || random() % 4 == 0) list[j] = -1;
      }
    }
  }
  // Whether a row sees a key: those of the window, then those of the second cache.
  Tensor seen() {
    const Tensor& lists = listed.inputs.key_list;
    seen_.assign(kBatch * kHeads * kQueries * (kWindow + kListed), 0);
    const Tensor t = tensor(seen_.data(), {kBatch, kHeads, kQueries, kWindow + kListed});
    for (std::int64_t row = 0; row < kBatch * kHeads * kQueries; ++row) {
      const std::int64_t b = row / kQueries / kHeads, h = row / kQueries % kHeads;
      const std::int64_t i = row % kQueries, position = i + kWindow - kQueries;
      std::uint8_t* const of_row = seen_.data() + row * (kWindow + kListed);
      std::fill(of_row + position - kLeft, of_row + position + 1, std::uint8_t{1});
      const std::int64_t head = lists.shape[1] == 1 ? 0 : h / (kHeads / kHeadsK);
      const auto* const list =
          static_cast<const std::int32_t*>(lists.data) + lists.offset({b, head, i, 0});
      for (std::int64_t j = 0; j < kList; ++j) {
        if (list[j] >= 0) of_row[kWindow + list[j]] = 1;
      }
    }
    return t;
  }
  // Keys of `one`, then those of `other`, for each batch entry.
  static std::vector<std::byte> joined(const Tensor& one, const Tensor& other) {
    const std::size_t bytes = size_of(one.dtype) * kHeadsK * kDim;
    std::vector<std::byte> all(bytes * kBatch * (kWindow + kListed));
    std::byte* to = all.data();
    for (std::size_t b = 0; b < kBatch; ++b) {
      for (const Tensor* t : {&one, &other}) {
        const std::size_t rows = bytes * static_cast<std::size_t>(t->shape[1]);
        std::memcpy(to, static_cast<const std::byte*>(t->data) + b * rows, rows);
        to += rows;
      }
    }
    return all;
  }

  std::vector<std::byte> o_ =
      std::vector<std::byte>(4 * kBatch * kQueries * kHeads * kDim, verify::kPoison);
  std::vector<float> lse_ = std::vector<float>(kBatch * kHeads * kQueries, NAN);
  std::vector<std::uint8_t> seen_;
};

}  // namespace attn::testing
