#include "core/problem/rows.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

namespace attn::core {
namespace {

std::byte* at(const Tensor& t, std::initializer_list<std::int64_t> index) {
  return static_cast<std::byte*>(t.data) +
         t.offset(index) * static_cast<std::int64_t>(size_of(t.dtype));
}

TEST(Rows, Dense) {
  std::vector<bfloat16> q(4000), k(4000), v(4000);
  Problem p{.batch = 2, .seqlen_q = 5, .seqlen_k = 7, .heads_q = 4, .heads_k = 2};
  p.head_dim = 8;
  p.head_dim_v = 6;
  p.dtype = DType::bf16;
  Inputs in{.q = tensor(q.data(), {2, 5, 4, 8}),
            .k = tensor(k.data(), {2, 7, 2, 8}),
            .v = tensor(v.data(), {2, 7, 2, 6})};
  in.q.strides = {500, 9, 100, 1};  // heads outside rows
  in.k.strides = {0, 16, 8, 1};     // one sequence for the whole batch
  const std::int32_t used_q[] = {5, 0};
  in.seqused_q = tensor(used_q, {2});
  for (std::int64_t b = 0; b < 2; ++b) {
    const Sequence s = sequence(p, in, b);
    EXPECT_EQ(s.batch, b);
    EXPECT_EQ(s.length_q, used_q[b]);
    EXPECT_EQ(s.length_k, 7);
    EXPECT_EQ(s.capacity_q, 5);
    EXPECT_EQ(s.capacity_k, 7);
    for (std::int64_t i = 0; i < 5; ++i) {
      for (std::int64_t h = 0; h < 4; ++h) EXPECT_EQ(s.q.row(i, h), at(in.q, {b, i, h, 0}));
    }
    for (std::int64_t j = 0; j < 7; ++j) {
      for (std::int64_t h = 0; h < 2; ++h) {
        EXPECT_EQ(s.k.row(j, h), at(in.k, {b, j, h, 0}));
        EXPECT_EQ(s.v.row(j, h), at(in.v, {b, j, h, 0}));
        EXPECT_EQ(rows_like_k(p, in, in.v, b).row(j, h), at(in.v, {b, j, h, 0}));
      }
    }
  }
  std::vector<float> lse_data(100);
  Tensor lse = tensor(lse_data.data(), {2, 4, 5});
  lse.strides = {1, 2, 8};
  const LseRow row = lse_row(p, in, lse, 1, 2);
  for (std::int64_t i = 0; i < 5; ++i) EXPECT_EQ(row.base + i * row.stride, at(lse, {1, 2, i}));
}

TEST(Rows, Packed) {
  std::vector<float> q(1000), k(1000), v(1000);
  const std::int32_t starts_q[] = {0, 3, 3, 10}, starts_k[] = {0, 1, 6, 8}, used_k[] = {1, 2, 0};
  Problem p{.batch = 3, .seqlen_q = 7, .seqlen_k = 5, .heads_q = 2, .heads_k = 2};
  p.layout_q = p.layout_k = Layout::packed;
  Inputs in{.q = tensor(q.data(), {12, 2, 4}),
            .k = tensor(k.data(), {8, 2, 4}),
            .v = tensor(v.data(), {8, 2, 4})};
  in.cu_seqlens_q = tensor(starts_q, {4});
  in.cu_seqlens_k = tensor(starts_k, {4});
  in.seqused_k = tensor(used_k, {3});
  std::vector<float> lse_data(100);
  const Tensor lse = tensor(lse_data.data(), {2, 12});
  for (std::int64_t b = 0; b < 3; ++b) {
    const Sequence s = sequence(p, in, b);
    EXPECT_EQ(s.length_q, starts_q[b + 1] - starts_q[b]);
    EXPECT_EQ(s.capacity_q, s.length_q + (b == 2 ? 2 : 0));  // rows behind the last sequence too
    EXPECT_EQ(s.capacity_k, starts_k[b + 1] - starts_k[b]);
    EXPECT_EQ(s.length_k, used_k[b]);
    for (std::int64_t h = 0; h < 2; ++h) {
      for (std::int64_t i = 0; i < s.capacity_q; ++i) {
        EXPECT_EQ(s.q.row(i, h), at(in.q, {starts_q[b] + i, h, 0}));
        const LseRow row = lse_row(p, in, lse, b, h);
        EXPECT_EQ(row.base + i * row.stride, at(lse, {h, starts_q[b] + i}));
      }
      for (std::int64_t j = 0; j < s.capacity_k; ++j) {
        EXPECT_EQ(s.k.row(j, h), at(in.k, {starts_k[b] + j, h, 0}));
      }
    }
  }
}

TEST(Rows, Paged) {
  std::vector<float> q(1000), k(2000), v(2000);
  // Row 1 of the table is used; the table has a gap between its rows.
  const std::int32_t table[] = {-1, -1, -1, -1, 4, 0, 3, -1}, used_k[] = {0, 8};
  Problem p{.batch = 2, .seqlen_q = 1, .seqlen_k = 9, .heads_q = 2, .heads_k = 2};
  p.layout_k = Layout::paged;
  p.page_size = 3;
  Inputs in{.q = tensor(q.data(), {2, 1, 2, 4}),
            .k = tensor(k.data(), {5, 3, 2, 4}),
            .v = tensor(v.data(), {5, 3, 2, 6})};
  in.page_table = tensor(table, {2, 3});
  in.page_table.strides = {4, 1};
  in.seqused_k = tensor(used_k, {2});
  EXPECT_EQ(sequence(p, in, 0).length_k, 0);
  const Sequence s = sequence(p, in, 1);
  EXPECT_EQ(s.length_k, 8);
  EXPECT_EQ(s.capacity_k, 9);
  for (std::int64_t j = 0; j < 8; ++j) {
    for (std::int64_t h = 0; h < 2; ++h) {
      EXPECT_EQ(s.k.row(j, h), at(in.k, {table[4 + j / 3], j % 3, h, 0}));
      EXPECT_EQ(s.v.row(j, h), at(in.v, {table[4 + j / 3], j % 3, h, 0}));
    }
  }
}

TEST(Rows, TensorsWithoutMemory) {
  Problem p{.batch = 2, .seqlen_q = 0, .seqlen_k = 0, .heads_q = 1, .heads_k = 1};
  const Tensor none = tensor(static_cast<float*>(nullptr), {2, 0, 1, 4});
  const Inputs in{.q = none, .k = none, .v = none};
  const Sequence s = sequence(p, in, 1);
  EXPECT_EQ(s.q.base, nullptr);
  EXPECT_EQ(s.length_q, 0);
  EXPECT_EQ(s.length_k, 0);
}

}  // namespace
}  // namespace attn::core
