// What the C interface refuses: nothing is written, and the text names the argument.
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "attn/attn.h"
#include "c/c_call.hpp"

namespace attn::testing {
namespace {

// A whole call of C, to be spoilt.
class CRefusals : public ::testing::Test {
 protected:
  void SetUp() override {
    problem.text = "causal_softcap20";
    q = *as.of(call.in.q);
    in.q = &q;
  }

  // The call is refused with this status and a text that has all words.
  void expect(attn_status status, const std::vector<std::string>& words) {
    poison(call.out.o);
    poison(call.out.lse);
    expect_told(attn_forward(&problem, &in, &out, &options, &context), status, words);
    EXPECT_TRUE(is_poisoned(call.out.o) && is_poisoned(call.out.lse));
  }
  static void expect_told(attn_status got, attn_status status,
                          const std::vector<std::string>& words) {
    ASSERT_EQ(got, status) << attn_last_error();
    const std::string message = attn_last_error();
    for (const std::string& word : words) {
      EXPECT_NE(message.find(word), std::string::npos) << word << " is not in: " << message;
    }
  }
  void expect_taken() {
    EXPECT_EQ(attn_forward(&problem, &in, &out, &options, &context), ATTN_OK) << attn_last_error();
  }

  Call call = packed_call();
  InC as;
  attn_inputs in = as.of(call.in);
  attn_outputs out = as.of(call.out);
  attn_problem problem = none<attn_problem>();
  attn_options options = none<attn_options>();
  attn_context context = none<attn_context>();
  attn_tensor q{};
};

TEST_F(CRefusals, TheWholeCallIsTaken) {
  problem.layout_q = problem.layout_k = ATTN_PACKED;
  expect_taken();
}

TEST_F(CRefusals, Tensors) {
  problem.layout_q = problem.layout_k = ATTN_PACKED;
  const attn_tensor whole = q;
  const auto spoilt = [&](const std::function<void()>& spoil, std::vector<std::string> words) {
    q = whole;
    spoil();
    words.emplace_back("q");
    expect(ATTN_INVALID_ARGUMENT, words);
    q = whole;
  };
  spoilt([&] { q.data = nullptr; }, {"data"});
  spoilt([&] { q.ndim = 5; }, {"5 dimensions", "0 to 4"});
  spoilt([&] { q.ndim = -1; }, {"-1 dimensions"});
  spoilt([&] { q.ndim = 0; }, {});
  spoilt([&] { q.shape = nullptr; }, {"shape", "null"});
  spoilt([&] { q.dtype = {2, 8, 1}; }, {"dtype", "8 bits"});
  spoilt([&] { q.dtype = {2, 32, 2}; }, {"2 lanes"});
  spoilt([&] { q.dtype = {9, 32, 1}; }, {"code 9"});
  spoilt([&] { q.dtype = {0, 32, 1}; }, {"i32"});
  spoilt([&] { q.device = {4, 0}; }, {"device", "type 4"});
  spoilt([&] { q.device = {0, 0}; }, {"device", "type 0"});
  spoilt([&] { q.byte_offset = 2; }, {"address", "multiples of 4"});
  std::int64_t shape[] = {10, kHeadsQ, kHeadDim}, strides[] = {kHeadsQ * kHeadDim, kHeadDim, 1};
  q.shape = shape;
  q.strides = strides;
  expect_taken();
  q.strides = nullptr;  // row-major, as they are
  expect_taken();
  shape[0] = -10;
  expect(ATTN_INVALID_ARGUMENT, {"q", "-10"});
  shape[0] = INT64_MAX;
  expect(ATTN_INVALID_ARGUMENT, {"q"});
}

TEST_F(CRefusals, NullPointers) {
  problem.layout_q = problem.layout_k = ATTN_PACKED;
  in.q = nullptr;
  expect(ATTN_INVALID_ARGUMENT, {"q"});
  in.q = &q;
  in.num_buffers = 1;
  in.buffers = nullptr;
  expect(ATTN_INVALID_ARGUMENT, {"buffers", "null"});
  attn_named_tensor buffer = {nullptr, &q};
  in.buffers = &buffer;
  expect(ATTN_INVALID_ARGUMENT, {"name", "null"});
  buffer = {"bias", nullptr};
  expect(ATTN_INVALID_ARGUMENT, {"bias", "null"});
  in.num_buffers = 0;
  const attn_status refused = ATTN_INVALID_ARGUMENT;
  expect_told(attn_forward(&problem, nullptr, &out, nullptr, nullptr), refused, {"inputs"});
  expect_told(attn_forward(&problem, &in, nullptr, nullptr, nullptr), refused, {"outputs"});
  const attn_gradients grad = as.of(call.grad);
  const attn_output_gradients d_out = as.of(call.d_o, call.d_lse);
  const auto backward = [&](const attn_output_gradients* d, const attn_gradients* g) {
    return attn_backward(&problem, &in, &out, d, g, nullptr, nullptr);
  };
  expect_told(backward(nullptr, &grad), refused, {"d_outputs"});
  expect_told(backward(&d_out, nullptr), refused, {"gradients"});
  expect_told(attn_plan_make(&problem, 0, &in, nullptr, nullptr, nullptr), refused, {"plan"});
  expect_told(attn_run_forward(nullptr, &in, &out, nullptr), refused, {"plan"});
  expect_told(attn_run_backward(nullptr, &in, &out, &d_out, &grad, nullptr), refused, {"plan"});
  expect_told(attn_plan_get(nullptr, nullptr), refused, {"plan"});
  expect_told(attn_plan_text(nullptr, nullptr, 0, nullptr), refused, {"plan"});
  expect_told(attn_plan_flops(nullptr, nullptr), refused, {"plan"});
  expect_told(attn_merge(nullptr, 2, &out, nullptr), refused, {"parts"});
  expect_told(attn_merge(nullptr, 0, &out, nullptr), refused, {"parts"});
  expect_told(attn_expr_parse(nullptr, nullptr, 0, nullptr), refused, {"expr"});
  attn_expr* expr = nullptr;
  expect_told(attn_expr_parse(nullptr, nullptr, 0, &expr), refused, {"text"});
  expect_told(attn_expr_text(nullptr, nullptr, 0, nullptr), refused, {"expr"});
  expect_told(attn_executor_make(1, nullptr), refused, {"executor"});
  expect_told(attn_executor_wrap(nullptr, nullptr), refused, {"executor"});
  attn_executor* executor = nullptr;
  expect_told(attn_executor_wrap(nullptr, &executor), refused, {"functions"});
  expect_told(attn_get_num_threads(nullptr), refused, {"threads"});
  expect_told(attn_describe_machine(nullptr), refused, {"machine"});
  const attn_append_inputs rows = none<attn_append_inputs>();
  expect_told(attn_append_kv(nullptr, nullptr, nullptr, nullptr), refused, {"inputs"});
  expect_told(attn_append_kv(&rows, nullptr, nullptr, nullptr), refused, {"outputs"});
  expect_told(attn_matmul(nullptr, &q, nullptr, nullptr), refused, {"inputs"});
  const attn_matmul_inputs product = none<attn_matmul_inputs>();
  expect_told(attn_matmul(&product, nullptr, nullptr, nullptr), refused, {"c"});
  expect_told(attn_matmul(&product, &q, nullptr, nullptr), refused, {"a"});
  expect_told(attn_matmul_plan_make(&product, &q, nullptr, nullptr, nullptr), refused, {"plan"});
  expect_told(attn_run_matmul(nullptr, &product, &q, nullptr), refused, {"plan"});
  expect_told(attn_matmul_plan_text(nullptr, nullptr, 0, nullptr), refused, {"plan"});
  expect_told(attn_matmul_plan_workspace_bytes(nullptr, nullptr), refused, {"plan"});
}

TEST_F(CRefusals, Members) {
  problem.layout_q = problem.layout_k = ATTN_PACKED;
  const auto spoilt = [&](auto& member, auto value, const std::vector<std::string>& words) {
    const auto before = member;
    member = value;
    expect(ATTN_INVALID_ARGUMENT, words);
    member = before;
  };
  spoilt(problem.struct_size, 8, {"struct_size of problem is 8"});
  spoilt(in.struct_size, 0, {"struct_size of inputs"});
  spoilt(out.struct_size, 1U << 20, {"struct_size of outputs"});
  spoilt(options.struct_size, 55, {"struct_size of options"});
  spoilt(context.struct_size, 1, {"struct_size of context"});
  spoilt(problem.text, "causal_n", {"n"});
  spoilt(problem.layout_q, 3, {"layout_q", "3"});
  spoilt(problem.layout_k, -1, {"layout_k", "-1"});
  spoilt(problem.layout_q, ATTN_PAGED, {"q is", "paged"});
  spoilt(problem.paged_prefix, 2, {"paged_prefix", "2"});
  spoilt(problem.sink, 7, {"sink", "7"});
  spoilt(problem.rng_state, -3, {"rng_state", "-3"});
  spoilt(problem.batch, 17, {"17"});
  spoilt(problem.head_dim, -8, {"-8"});
  spoilt(problem.dtype, attn_dtype{4, 16, 1}, {"bf16"});
  spoilt(problem.dtype, attn_dtype{4, 17, 1}, {"17 bits"});
  spoilt(problem.dropout, 1.5, {"1.5"});
  spoilt(problem.softmax_scale, INFINITY, {"inf"});
  spoilt(options.backend, "gpu", {"gpu", "cuda"});
  spoilt(options.backend, "cuda", {"backend", "cuda"});
  spoilt(options.algorithm, "flash", {"flash", "flash_attention_2"});
  spoilt(options.kernel, "forward_sm90", {"kernel"});
  spoilt(options.threads, -1, {"threads", "-1"});
  spoilt(options.deterministic, 2, {"deterministic"});
  spoilt(options.batch_invariant, 2, {"batch_invariant"});
  spoilt(options.reserved, 1, {"reserved"});
  spoilt(context.isa, "sse2", {"sse2", "avx2"});
  spoilt(context.workspace, &q, {"workspace"});
  expect_taken();
}

TEST_F(CRefusals, ContradictionsOfTextAndMembers) {
  const auto contradicts = [&](const char* text, auto& member, auto value, const char* word) {
    attn_problem before = problem;
    problem.text = text;
    member = value;
    expect(ATTN_INVALID_ARGUMENT, {word, "text of the problem"});
    problem = before;
  };
  contradicts("packed_b4", problem.batch, 3, "batch");
  contradicts("packed_sk4", problem.seqlen_k, 3, "seqlen_k");
  contradicts("packed_f32", problem.dtype, attn_dtype{2, 16, 1}, "dtype");
  contradicts("packed", problem.layout_k, ATTN_PAGED, "layout_k");
  contradicts("packed_scale2", problem.softmax_scale, 3.0, "softmax_scale");
  contradicts("packed_dropout0.5", problem.dropout, 0.5, "dropout");
}

TEST_F(CRefusals, OtherStatuses) {
  problem.layout_q = problem.layout_k = ATTN_PACKED;
  // A GPU that no machine has, and a GPU at all in a plan.
  options.device = {2, 1000};
  attn_problem small = none<attn_problem>();
  small.text = "b1_n8_h1_d8_f16";
  attn_plan* plan = nullptr;
  expect_told(attn_plan_make(&small, ATTN_FORWARD, nullptr, &options, nullptr, &plan),
              ATTN_UNAVAILABLE, {});
  EXPECT_EQ(plan, nullptr);
  options.device = {0, 0};
  expect_told(attn_plan_make(&small, 2, nullptr, nullptr, nullptr, &plan), ATTN_INVALID_ARGUMENT,
              {"phase", "2"});
  small.text = "b1_n8_h1_d8_paged4";
  expect_told(attn_plan_make(&small, ATTN_BACKWARD, nullptr, nullptr, nullptr, &plan),
              ATTN_UNSUPPORTED, {});
  EXPECT_EQ(plan, nullptr);
  options.algorithm = "block_sparse";
  options.batch_invariant = 1;
  small.text = "b1_n8_h1_d8";
  expect_told(attn_plan_make(&small, ATTN_BACKWARD, nullptr, &options, nullptr, &plan),
              ATTN_UNSUPPORTED, {"batch_invariant"});
}

TEST_F(CRefusals, Caches) {
  Call memory;
  const Tensor k = memory.zeros(DType::f32, {1, 2, 1, 8});
  const Tensor cache = memory.poisoned(DType::f32, {1, 4, 1, 8});
  std::int32_t length = 1;
  attn_append_inputs rows = none<attn_append_inputs>();
  rows.k = as.of(k);
  rows.cache_seqlens = as.of(tensor(&length, {1}));
  attn_append_outputs caches = none<attn_append_outputs>();
  caches.k = as.of(cache);
  attn_append_options of_rows = none<attn_append_options>();
  const auto spoilt = [&](auto& member, auto value, const std::vector<std::string>& words) {
    const auto before = member;
    member = value;
    expect_told(attn_append_kv(&rows, &caches, &of_rows, nullptr), ATTN_INVALID_ARGUMENT, words);
    EXPECT_TRUE(is_poisoned(cache));
    member = before;
  };
  spoilt(of_rows.type_k, "q9", {"cache type", "q9", "q8_0"});
  spoilt(of_rows.type_v, "", {"cache type"});
  spoilt(of_rows.rope_pairs, "quarters", {"rope_pairs", "quarters", "interleaved"});
  spoilt(of_rows.backend, "tpu", {"tpu"});
  spoilt(of_rows.norm_eps, -1.0, {"norm_eps is -1"});
  spoilt(of_rows.ring, 2, {"ring"});
  spoilt(of_rows.norm, -1, {"norm"});
  spoilt(of_rows.hadamard, 7, {"hadamard"});
  spoilt(of_rows.hadamard_v, 7, {"hadamard_v"});
  spoilt(of_rows.struct_size, 9, {"struct_size of options"});
  spoilt(rows.struct_size, 9, {"struct_size of inputs"});
  spoilt(caches.struct_size, 9, {"struct_size of outputs"});
  spoilt(rows.k, nullptr, {"q, k and v are not given"});
  spoilt(caches.k, nullptr, {"k of the outputs"});
  spoilt(length, 3, {"position of new row 1", "is 4"});
  std::int64_t used = 3;
  spoilt(rows.seqused, as.of(tensor(&used, {1})), {"seqused[0] is 3", "0 to 2"});
  EXPECT_EQ(attn_append_kv(&rows, &caches, &of_rows, nullptr), ATTN_OK) << attn_last_error();
}

TEST_F(CRefusals, Products) {
  Call memory;
  const Tensor a = memory.zeros(DType::f32, {4, 8}), b = memory.zeros(DType::f32, {8, 4});
  const Tensor c = memory.poisoned(DType::f32, {4, 4});
  attn_matmul_inputs product = none<attn_matmul_inputs>();
  product.a = as.of(a);
  product.b = as.of(b);
  attn_matmul_options of_product = none<attn_matmul_options>();
  const auto spoilt = [&](auto& member, auto value, attn_status status,
                          const std::vector<std::string>& words) {
    const auto before = member;
    member = value;
    expect_told(attn_matmul(&product, as.of(c), &of_product, nullptr), status, words);
    EXPECT_TRUE(is_poisoned(c));
    member = before;
  };
  spoilt(of_product.activation, "tanh", ATTN_INVALID_ARGUMENT, {"tanh", "gelu"});
  spoilt(of_product.float8, "e3m4", ATTN_INVALID_ARGUMENT, {"e3m4", "e5m2"});
  spoilt(of_product.masked, "a", ATTN_INVALID_ARGUMENT, {"masked", "b, c"});
  spoilt(of_product.format_b, "q5_0", ATTN_INVALID_ARGUMENT, {"format_b", "q8_0, q4_0, q4_1"});
  spoilt(of_product.format_b, "q8_0", ATTN_INVALID_ARGUMENT, {"format_b is q8_0", "dtype_b"});
  spoilt(of_product.rung, "fast", ATTN_INVALID_ARGUMENT, {"fast"});
  spoilt(of_product.accumulate, 2, ATTN_INVALID_ARGUMENT, {"accumulate"});
  spoilt(of_product.struct_size, 9, ATTN_INVALID_ARGUMENT, {"struct_size of options"});
  spoilt(product.struct_size, 9, ATTN_INVALID_ARGUMENT, {"struct_size of inputs"});
  spoilt(product.b, product.a, ATTN_INVALID_ARGUMENT, {"b"});
  EXPECT_EQ(attn_matmul(&product, as.of(c), &of_product, nullptr), ATTN_OK) << attn_last_error();
}

}  // namespace
}  // namespace attn::testing
