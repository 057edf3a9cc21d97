// Lengths, page tables and lists of keys of int64: the same results as of int32, bit for bit, for
// each tensor alone and for all; and no number is cut to 32 bits before it is looked at.
#include "core/tensor/integers.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <list>
#include <string>
#include <vector>

#include "attn/attn.hpp"
#include "core/tensor/overlap.hpp"
#include "verify/data.hpp"

namespace attn::verify {
namespace {

constexpr std::int64_t kHigh = std::int64_t{1} << 32;

struct Member {
  const char* name;
  Tensor Inputs::*tensor;
};
constexpr Member kMembers[] = {
    {"cu_seqlens_q", &Inputs::cu_seqlens_q}, {"cu_seqlens_k", &Inputs::cu_seqlens_k},
    {"seqused_q", &Inputs::seqused_q},       {"seqused_k", &Inputs::seqused_k},
    {"page_table", &Inputs::page_table},     {"prefix_page_table", &Inputs::prefix_page_table},
    {"key_list", &Inputs::key_list}};

// Together they have every tensor of kMembers.
constexpr const char* kCases[] = {
    "b3_sq20_sk40_hq4_hk2_d32_causal_packed_f32/padded",
    "b2_sq9_sk70_hq4_hk2_d40_causal_bf16/padded",
    "b3_sq6_sk90_sp50_hq4_hk2_d32_packedq_paged16_pagedprefix_causal_f32/padded",
    "b3_sq6_sk90_sp260_hq4_hk2_d32_packed_causal_f32",
    "b2_sq5_sk90_hq4_hk2_d32_packedq_paged7_list30_f16/strided",
    "b2_sq5_sk40_hq2_hk1_d16_paged4_causal_f64",
};

class WideCall {
 public:
  WideCall(const char* text, Backend backend)
      : data_(parse_case(text), 7), in_(data_.inputs), backend_(backend) {}

  const Inputs& inputs() const { return data_.inputs; }
  // The member with numbers of int64, which the caller may change.
  std::vector<std::int64_t>& widen(const Member& member) {
    Tensor& t = in_.*member.tensor;
    std::int64_t extent = 1;
    for (std::int32_t d = 0; d < t.rank; ++d) extent += (t.shape[d] - 1) * t.strides[d];
    std::vector<std::int64_t>& wide = wide_.emplace_back();
    for (std::int64_t i = 0; i < extent; ++i) wide.push_back(core::Integers(t)[i]);
    t.dtype = DType::i64;
    t.data = wide.data();
    return wide;
  }
  // The bytes of all results.
  std::vector<std::byte> results() {
    data_.poison();
    const PlanOptions options{.backend = backend_};
    forward(data_.problem, in_, data_.outputs, options);
    if (has_backward(data_.problem)) {
      backward(data_.problem, in_, data_.outputs, data_.d_o, data_.gradients, options);
    }
    std::vector<std::byte> all;
    for (const Tensor* t : {&data_.outputs.o, &data_.outputs.lse, &data_.gradients.dq,
                            &data_.gradients.dk, &data_.gradients.dv}) {
      if (!t->given()) continue;
      const core::Bytes bytes = core::bytes_of(*t);
      const auto* const first = reinterpret_cast<const std::byte*>(bytes.first);
      all.insert(all.end(), first, first + (bytes.last - bytes.first + 1));
    }
    return all;
  }
  // What the call is refused with; nothing is written.
  std::string refusal() {
    data_.poison();
    const auto* const o = static_cast<const std::byte*>(data_.outputs.o.data);
    const std::vector<std::byte> before(o, o + size_of(data_.outputs.o.dtype));
    try {
      forward(data_.problem, in_, data_.outputs, {.backend = backend_});
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
      EXPECT_EQ(std::memcmp(o, before.data(), before.size()), 0) << "something was written";
      return error.what();
    }
    return "(none)";
  }

 private:
  CaseData data_;
  Inputs in_;
  Backend backend_;
  std::list<std::vector<std::int64_t>> wide_;
};

TEST(Integers, OfInt64GiveTheSameBits) {
  std::vector<int> seen(std::size(kMembers));
  for (const Backend backend : {Backend::cpu, Backend::reference}) {
    for (const char* text : kCases) {
      const std::vector<std::byte> expected = WideCall(text, backend).results();
      WideCall all(text, backend);
      for (std::size_t i = 0; i < std::size(kMembers); ++i) {
        const Member& member = kMembers[i];
        if (!(all.inputs().*member.tensor).given()) continue;
        ++seen[i];
        WideCall one(text, backend);
        one.widen(member);
        EXPECT_EQ(one.results(), expected) << text << ", " << member.name;
        all.widen(member);
      }
      EXPECT_EQ(all.results(), expected) << text;
    }
  }
  for (std::size_t i = 0; i < seen.size(); ++i) EXPECT_GT(seen[i], 0) << kMembers[i].name;
}

// The low half of each number is one that is accepted.
TEST(Integers, PastInt32AreRefused) {
  for (const Backend backend : {Backend::cpu, Backend::reference}) {
    for (const char* text : kCases) {
      for (const Member& member : kMembers) {
        const WideCall given(text, backend);
        const Tensor& t = given.inputs().*member.tensor;
        if (!t.given() || std::string_view(member.name) == "key_list") continue;
        for (const std::int64_t high : {kHigh, -kHigh, kHigh << 20}) {
          WideCall run(text, backend);
          std::vector<std::int64_t>& numbers = run.widen(member);
          for (std::int64_t& number : numbers) number += high;
          const std::string words = run.refusal();
          EXPECT_EQ(words.find(std::string(member.name) + "["), 0U) << text << ": " << words;
          EXPECT_TRUE(std::ranges::any_of(numbers,
                                          [&](std::int64_t number) {
                                            return words.find("] is " + std::to_string(number)) !=
                                                   std::string::npos;
                                          }))
              << text << ": " << words;
        }
      }
    }
  }
}

// As -1, which stands for no key.
TEST(Integers, OfAListPastInt32AreNoKeys) {
  constexpr const char* kCase = "b2_sq5_sk90_hq4_hk2_d32_packedq_paged7_list30_f16/strided";
  const Member list{"key_list", &Inputs::key_list};
  for (const Backend backend : {Backend::cpu, Backend::reference}) {
    WideCall none(kCase, backend), far(kCase, backend), whole(kCase, backend);
    std::vector<std::int64_t>& of_none = none.widen(list);
    std::vector<std::int64_t>& of_far = far.widen(list);
    for (std::size_t i = 0; i < of_none.size(); i += 3) {
      of_none[i] = -1;
      of_far[i] += i % 2 == 0 ? kHigh : -kHigh;
    }
    const std::vector<std::byte> expected = none.results();
    EXPECT_EQ(far.results(), expected);
    EXPECT_NE(whole.results(), expected);
  }
}

}  // namespace
}  // namespace attn::verify
