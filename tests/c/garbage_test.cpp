// Structures whose members are garbage: a call either runs or is refused, and then wrote nothing.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "attn/attn.h"
#include "c/c_call.hpp"

namespace attn::testing {
namespace {

// Numbers that programs have by mistake, and any.
std::uint64_t garbage(std::mt19937_64& random) {
  constexpr std::uint64_t kLikely[] = {0,           1,          2,           3,
                                       5,           8,          16,          64,
                                       ~0ULL,       1ULL << 63, 1ULL << 31,  0x7fffffffffffffffULL,
                                       0xfffffffeU, 1ULL << 40, 0xccccccccU, 4096};
  if (random() % 4 == 0) return random();
  return kLikely[random() % std::size(kLikely)];
}

// A part of a structure that is no pointer.
struct Member {
  void* at;
  std::size_t bytes;
};
template <class T>
Member member(T& value) {
  return {&value, sizeof(value)};
}

TEST(CGarbage, RunsOrIsRefused) {
  constexpr int kRounds = 20000;
  const std::uint64_t seed = std::random_device()();
  std::mt19937_64 random(seed);
  int taken = 0, refused = 0;
  // Shapes grow only where a stride of 0 or the tensor's room (Call::zeros) covers them: sizes that
  // pass q, k and v together are no larger than those here.
  for (int round = 0; round < kRounds; ++round) {
    Call call = random() % 2 == 0 ? packed_call() : paged_call();
    InC as;
    attn_inputs in = as.of(call.in);
    attn_outputs out = as.of(call.out);
    attn_tensor q = *in.q, o = *out.o, cu = *(in.cu_seqlens_q != nullptr ? in.cu_seqlens_q : in.q);
    in.q = &q;
    out.o = &o;
    if (in.cu_seqlens_q != nullptr) in.cu_seqlens_q = &cu;
    attn_problem problem = none<attn_problem>();
    problem.layout_q = call.problem.layout_q == Layout::packed ? ATTN_PACKED : ATTN_DENSE;
    problem.layout_k = call.problem.layout_k == Layout::packed ? ATTN_PACKED : ATTN_PAGED;
    attn_options options = none<attn_options>();
    attn_context context = none<attn_context>();
    attn_output_gradients d_out = as.of(call.d_o, call.d_lse);
    attn_gradients grad = as.of(call.grad);
    const Member members[] = {member(in.struct_size),
                              member(out.struct_size),
                              member(problem.struct_size),
                              member(options.struct_size),
                              member(context.struct_size),
                              member(q.device),
                              member(q.ndim),
                              member(q.dtype),
                              member(q.shape[0]),
                              member(q.shape[1]),
                              member(q.shape[2]),
                              member(o.ndim),
                              member(o.dtype),
                              member(o.device.device_type),
                              member(o.shape[1]),
                              member(cu.ndim),
                              member(cu.dtype),
                              member(problem.batch),
                              member(problem.seqlen_q),
                              member(problem.seqlen_k),
                              member(problem.heads_q),
                              member(problem.heads_k),
                              member(problem.head_dim),
                              member(problem.head_dim_v),
                              member(problem.dtype),
                              member(problem.layout_q),
                              member(problem.layout_k),
                              member(problem.page_size),
                              member(problem.paged_prefix),
                              member(problem.seqlen_prefix),
                              member(problem.key_list),
                              member(problem.softmax_scale),
                              member(problem.dropout),
                              member(problem.seed),
                              member(problem.offset),
                              member(problem.sink),
                              member(problem.rng_state),
                              member(options.device),
                              member(options.threads),
                              member(options.reserved),
                              member(options.deterministic),
                              member(options.batch_invariant),
                              member(d_out.struct_size),
                              member(grad.struct_size)};
    // A structure may be read as far as its size says.
    for (std::uint64_t spoilt = 1 + random() % 3; spoilt > 0; --spoilt) {
      const Member& one = members[random() % std::size(members)];
      const std::uint64_t value = garbage(random);
      std::memcpy(one.at, &value, one.bytes);
    }
    // Sizes past the structures' own read what lies behind them: that is a caller's promise.
    const auto keep = [](auto& structure) {
      if (structure.struct_size > sizeof(structure) && structure.struct_size <= 4096) {
        structure.struct_size = sizeof(structure) + 4096;
      }
    };
    keep(in), keep(out), keep(problem), keep(options), keep(context), keep(d_out), keep(grad);
    poison(call.out.o);
    poison(call.out.lse);
    const attn_status status = attn_forward(&problem, &in, &out, &options, &context);
    if (status == ATTN_OK) {
      ++taken;
      EXPECT_FALSE(is_poisoned(call.out.o)) << "seed " << seed << " round " << round;
    } else {
      ++refused;
      EXPECT_TRUE(is_poisoned(call.out.o) && is_poisoned(call.out.lse))
          << "seed " << seed << " round " << round << ": " << attn_last_error();
      EXPECT_GT(std::strlen(attn_last_error()), 10U);
      EXPECT_NE(status, ATTN_INTERNAL) << attn_last_error();
    }
    attn_backward(&problem, &in, &out, &d_out, &grad, &options, &context);
  }
  EXPECT_GT(taken, kRounds / 100) << "seed " << seed;
  EXPECT_GT(refused, kRounds / 4) << "seed " << seed;
}

// Texts of random words and bytes.
TEST(CGarbage, Texts) {
  const std::uint64_t seed = std::random_device()();
  std::mt19937_64 random(seed);
  const char* const words[] = {"b2",     "_",       "causal", "n8",     "mask(", "query",
                               ")",      "score(",  "h4_d8",  "scalar", "(",     "=",
                               "paged4", "softcap", "\xff",   "/"};
  for (int round = 0; round < 2000; ++round) {
    std::string text;
    for (std::uint64_t i = random() % 8; i > 0; --i) text += words[random() % std::size(words)];
    attn_problem problem = none<attn_problem>();
    problem.text = text.c_str();
    char printed[64];
    const attn_status status = attn_problem_text(&problem, printed, sizeof(printed), nullptr);
    EXPECT_TRUE(status == ATTN_OK || status == ATTN_INVALID_ARGUMENT)
        << text << " of seed " << seed;
    attn_expr* expr = nullptr;
    if (attn_expr_parse(text.c_str(), nullptr, 0, &expr) != ATTN_OK) {
      EXPECT_EQ(expr, nullptr);
    }
    attn_expr_free(expr);
  }
}

}  // namespace
}  // namespace attn::testing
