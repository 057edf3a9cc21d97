// What append_kv wrote, held to its fp64 definition by the error rule, and the rest to what was
// there before.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "conformance/append_case.hpp"
#include "core/append/append.hpp"
#include "core/cached_rows.hpp"
#include "reference/append_kv.hpp"

namespace attn::testing {

// The largest error of a row's elements by themselves: half a step of the type, and what arithmetic
// in f32 adds. largest: of the row, or of the block that the element is in.
inline double allowed(CacheType type, double exact, double largest, double scale, double of_row) {
  const double arithmetic = of_row * 0x1p-18;
  const double size = std::abs(exact);
  switch (type) {
    case CacheType::as_q:
    case CacheType::f64:
    case CacheType::f32:
      break;
    case CacheType::bf16:
      return size * 0x1p-8 + arithmetic;
    case CacheType::f16:
      return size * 0x1p-11 + 0x1p-25 + arithmetic;
    case CacheType::e4m3:
      return std::max(size * 0x1p-4, scale * 0x1p-10) + std::max(0.0, size - 448 * scale) +
             arithmetic;
    case CacheType::e5m2:
      return std::max(size * 0x1p-3, scale * 0x1p-17) + std::max(0.0, size - 57344 * scale) +
             arithmetic;
    case CacheType::i8:
      return scale * 0.51 + std::max(0.0, size - 127 * scale) + arithmetic;
    case CacheType::q8_0:
      return largest / 127 * 0.57 + 0x1p-24 * 127 + arithmetic;
    case CacheType::q4_0:
      return largest / 8 * 1.02 + 0x1p-24 * 8 + arithmetic;
  }
  return arithmetic;
}

// The largest errors of a part of a call, beside those of the yardstick.
struct Errors {
  double got = 0, yardstick = 0, rounding = 0;
};

class Judge {
 public:
  Judge(AppendCase& c, const core::AppendCall& call, bool exactly)
      : case_(c), call_(call), exactly_(exactly) {}

  void judge(const core::AppendPart& part, Owned& to, Owned& scale) {
    std::vector<std::byte> rest(to.memory.size(), std::byte{0xa5});
    std::vector<std::byte> rest_of_scale(scale.memory.size(), std::byte{0xa5});
    const auto bytes = static_cast<std::size_t>(core::row_bytes(part.type, part.dim()));
    for (const ExpectedRow& r : case_.expected) {
      if (part.cached && r.block < 0) continue;
      for (std::int64_t head = 0; head < part.heads(); ++head) {
        std::byte* const at = place(part, to, r, head);
        std::memcpy(rest.data() + (at - to.memory.data()), at, bytes);
        float chosen = part.writes_scale ? 1 : core::given_scale(part, head);
        if (part.writes_scale) {
          std::byte* const at_scale = scale.at({r.block, r.in_block, head});
          std::memcpy(rest_of_scale.data() + (at_scale - scale.memory.data()), at_scale, 4);
          std::memcpy(&chosen, at_scale, 4);
        }
        judge_row(part, r, head, at, chosen);
      }
    }
    EXPECT_TRUE(rest == to.memory) << part.name << " was written where no row goes";
    if (part.writes_scale) {
      EXPECT_TRUE(rest_of_scale == scale.memory) << part.name;
    }
    EXPECT_LE(errors_.got, 2 * errors_.yardstick + errors_.rounding) << part.name;
    errors_ = {};
  }

 private:
  std::byte* place(const core::AppendPart& part, Owned& to, const ExpectedRow& r,
                   std::int64_t head) const {
    if (part.cached) return to.at({r.block, r.in_block, head, 0});
    return case_.packed ? to.at({r.row, head, 0}) : to.at({r.sequence, r.index, head, 0});
  }

  void judge_row(const core::AppendPart& part, const ExpectedRow& r, std::int64_t head,
                 const std::byte* got, float scale) {
    const core::AppendRow row{
        .row = case_.packed ? r.row : r.sequence * case_.in_seqlen() + r.index,
        .place = 0,
        .rope_position = r.rope_position};
    const std::vector<double> exact = reference::append_row(call_, part, row, head);
    std::vector<std::byte> stored(static_cast<std::size_t>(core::row_bytes(part.type, part.dim())));
    if (exactly_) {
      EXPECT_EQ(reference::store_appended_row(part, exact, head, stored.data()), scale);
      EXPECT_EQ(std::memcmp(stored.data(), got, stored.size()), 0) << part.name;
      return;
    }
    const std::vector<double> in_float =
        reference::append_row(call_, part, row, head, reference::Precision::f32);
    const double of_yardstick = reference::store_appended_row(part, in_float, head, stored.data());
    double of_row = 0;
    for (const double x : exact) of_row = std::max(of_row, std::abs(x));
    for (std::int64_t i = 0; i < part.dim(); ++i) {
      const double x = exact[static_cast<std::size_t>(i)];
      double largest = of_row;
      if (core::is_blocked(part.type)) {
        largest = 0;
        for (std::int64_t j = i / 32 * 32; j < i / 32 * 32 + 32; ++j) {
          largest = std::max(largest, std::abs(exact[static_cast<std::size_t>(j)]));
        }
      }
      const double value = core::cached_element(got, i, part.type) * double{scale};
      const double error = std::abs(value - x);
      const double most = allowed(part.type, x, largest, double{scale}, of_row);
      ASSERT_LE(error, most) << part.name << ' ' << name(part.type) << " element " << i << " is "
                             << value << ", exactly " << x;
      errors_.got = std::max(errors_.got, error);
      errors_.yardstick =
          std::max(errors_.yardstick,
                   std::abs(core::cached_element(stored.data(), i, part.type) * of_yardstick - x));
      errors_.rounding = std::max(errors_.rounding, most / 2);
    }
  }

  AppendCase& case_;
  const core::AppendCall& call_;
  bool exactly_;  // of the reference: the bits of the definition
  Errors errors_;
};

// exactly: of the reference, whose bits are those of the definition.
inline void judge(AppendCase& c, bool exactly) {
  const core::AppendCall call = core::check_append(c.problem, c.in, c.out);
  Judge judge(c, call, exactly);
  for (const core::AppendPart& part : call.parts()) {
    if (part.name == std::string("q")) judge.judge(part, c.to_q, c.to_q);
    if (part.name == std::string("k")) judge.judge(part, c.to_k, c.scale_k);
    if (part.name == std::string("v")) judge.judge(part, c.to_v, c.scale_v);
  }
}

}  // namespace attn::testing
