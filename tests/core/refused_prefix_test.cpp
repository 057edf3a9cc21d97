#include <limits>

#include "core/refusals.hpp"

namespace attn::testing {
namespace {

// dense_call behind 3 keys that its sequences share.
Call prefix_call() {
  Call c = dense_call();
  c.problem.score = {};
  c.problem.dropout = {};
  c.grad.buffers.clear();
  c.in.prefix_k = c.zeros(DType::f32, {3, 2, 8});
  c.in.prefix_v = c.zeros(DType::f32, {3, 2, 6});
  return c;
}

const Refusal kPrefixes[] = {
    {"PrefixOfAnotherSize",
     prefix_call,
     [](Call& c) { c.problem.seqlen_prefix = 4; },
     {"prefix_k is f32[3, 2, 8]", "accepted is f32[4, 2, 8]"},
     kForward},
    {"PrefixOfAnotherDtype",
     prefix_call,
     [](Call& c) {
       c.in.prefix_k = c.zeros(DType::f16, {3, 2, 8});
     },
     {"prefix_k is f16[3, 2, 8]"},
     kForward},
    {"PrefixWithABatch",
     prefix_call,
     [](Call& c) {
       c.in.prefix_k = c.zeros(DType::f32, {2, 3, 2, 8});
     },
     {"prefix_k is f32[2, 3, 2, 8]", "[seqlen_prefix, heads_k, head_dim]"}},
    {"PrefixAndItsOwnName",
     prefix_call,
     [](Call& c) {
       c.problem.mask =
           parse_problem("mask(prefix_own_lengths[key]>0)_buffer(prefix_own_lengths:i32:99)").mask;
       c.in.buffers.emplace_back("prefix_own_lengths", c.zeros(DType::i32, {99}));
     },
     {"a buffer is called prefix_own_lengths", "any name but"},
     kForward},
    {"PrefixWithoutV", prefix_call, [](Call& c) { c.in.prefix_v = {}; }, {"prefix_v"}, kForward},
    {"PrefixWithoutK",
     prefix_call,
     [](Call& c) { c.in.prefix_k = {}; },
     {"prefix_k is not given", "accepted is f32[3, 2, 8]"},
     kForward},
    {"PrefixTooLong",
     prefix_call,
     [](Call& c) {
       c.problem.seqlen_prefix = std::numeric_limits<std::int32_t>::max();
       c.problem.seqlen_k = 7;
     },
     {"seqlen_prefix is 2147483647", "0 to 2147483640"},
     kForward},
    {"PrefixInPagesWithoutPages",
     prefix_call,
     [](Call& c) { c.problem.paged_prefix = true; },
     {"paged_prefix is true", "layout_k is not paged"}},
    {"PrefixTableWithoutPages",
     prefix_call,
     [](Call& c) { c.in.prefix_page_table = c.zeros(DType::i32, {1}); },
     {"prefix_page_table", "paged_prefix is false"},
     kForward},
    {"PrefixAndDropout",
     prefix_call,
     [](Call& c) { c.problem.dropout.probability = 0.5; },
     {"dropout probability is 0.5", "seqlen_prefix is 3"},
     kBoth,
     ErrorCode::unsupported},
    {"PrefixBackward",
     prefix_call,
     [](Call&) {},
     {"seqlen_prefix is 3", "accepted by backward is 0"},
     kBackward,
     ErrorCode::unsupported},
};

INSTANTIATE_TEST_SUITE_P(Prefixes, Refusals, ::testing::ValuesIn(kPrefixes), title);

}  // namespace
}  // namespace attn::testing
