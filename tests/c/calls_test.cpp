// Calls of the C interface give the bits that those of C++ give.
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <cstdint>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "attn/attn.hpp"
#include "c/c_call.hpp"
#include "c/handles.hpp"

namespace attn {
namespace {

using testing::bits;
using testing::Call;
using testing::InC;
using testing::none;
using testing::poison;

// Whoever fails says what attn_last_error() has.
#define EXPECT_OK(call) EXPECT_EQ(call, ATTN_OK) << attn_last_error()
#define ASSERT_OK(call) ASSERT_EQ(call, ATTN_OK) << attn_last_error()

std::vector<Tensor> results(const Call& c) {
  std::vector<Tensor> all{c.out.o,   c.out.lse, c.out.max_logit, c.grad.dq,
                          c.grad.dk, c.grad.dv, c.grad.dsink};
  for (const auto& [name, tensor] : c.grad.buffers) all.push_back(tensor);
  return all;
}
std::vector<std::vector<unsigned char>> all_bits(const Call& c) {
  std::vector<std::vector<unsigned char>> all;
  for (const Tensor& t : results(c)) all.push_back(bits(t));
  return all;
}
void poison_all(const Call& c) {
  for (const Tensor& t : results(c)) poison(t);
}

void fill(Call& c) {
  const std::uint32_t seed = std::random_device()();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  for (const Tensor& t : {c.in.q, c.in.k, c.in.v, c.in.sink, c.d_o, c.d_lse}) {
    if (t.given()) testing::draw(t, random);
  }
}

// The problem of dense_call(), whose bias has memory of the expression.
TEST(CCalls, DenseForwardAndBackward) {
  Call c = testing::dense_call();
  fill(c);
  c.forward();
  c.backward();
  const auto expected = all_bits(c);

  InC as;
  const attn_inputs in = as.of(c.in);
  const attn_outputs out = as.of(c.out);
  const Tensor bias = expr::buffers(c.problem.score)[0]->tensor();
  const attn_named_tensor buffers[] = {{"bias", as.of(bias)}};
  attn_expr* mask = nullptr;
  attn_expr* score = nullptr;
  ASSERT_OK(attn_expr_parse(to_string(c.problem.mask).c_str(), nullptr, 0, &mask));
  ASSERT_OK(attn_expr_parse(to_string(c.problem.score).c_str(), buffers, 1, &score));
  attn_problem problem = none<attn_problem>();
  problem.mask = mask;
  problem.score = score;
  problem.sink = 1;
  problem.dropout = 0.25;
  const attn_output_gradients d_out = as.of(c.d_o, c.d_lse);
  const attn_gradients grad = as.of(c.grad);
  poison_all(c);
  EXPECT_OK(attn_forward(&problem, &in, &out, nullptr, nullptr));
  EXPECT_OK(attn_backward(&problem, &in, &out, &d_out, &grad, nullptr, nullptr));
  EXPECT_EQ(all_bits(c), expected);

  // The same by plans, on threads of their own, with a workspace.
  attn_plan* forward = nullptr;
  attn_plan* backward = nullptr;
  ASSERT_OK(attn_plan_make(&problem, ATTN_FORWARD, &in, nullptr, nullptr, &forward));
  ASSERT_OK(attn_plan_make(&problem, ATTN_BACKWARD, &in, nullptr, nullptr, &backward));
  attn_expr_free(mask);
  attn_expr_free(score);
  attn_executor* executor = nullptr;
  ASSERT_OK(attn_executor_make(3, &executor));
  attn_plan_info info = none<attn_plan_info>();
  ASSERT_OK(attn_plan_get(backward, &info));
  EXPECT_EQ(info.phase, ATTN_BACKWARD);
  std::vector<std::uint8_t> memory(static_cast<std::size_t>(info.workspace_bytes) + 128);
  auto* const aligned = reinterpret_cast<std::uint8_t*>(
      (reinterpret_cast<std::uintptr_t>(memory.data()) + 127) / 128 * 128);
  attn_context context = none<attn_context>();
  context.executor = executor;
  context.workspace = as.of(tensor(aligned, {info.workspace_bytes}));
  poison_all(c);
  EXPECT_OK(attn_run_forward(forward, &in, &out, nullptr));
  EXPECT_OK(attn_run_backward(backward, &in, &out, &d_out, &grad, &context));
  EXPECT_EQ(all_bits(c), expected);
  EXPECT_EQ(attn_run_forward(backward, &in, &out, nullptr), ATTN_INVALID_ARGUMENT);
  attn_plan_free(forward);
  attn_plan_free(backward);
  attn_executor_free(executor);
}

TEST(CCalls, PackedAndPaged) {
  for (Call c : {testing::packed_call(), testing::paged_call()}) {
    fill(c);
    c.forward();
    const auto expected = all_bits(c);
    InC as;
    const attn_inputs in = as.of(c.in);
    const attn_outputs out = as.of(c.out);
    attn_problem problem = none<attn_problem>();
    problem.layout_q = c.problem.layout_q == Layout::packed ? ATTN_PACKED : ATTN_DENSE;
    problem.layout_k = c.problem.layout_k == Layout::packed ? ATTN_PACKED : ATTN_PAGED;
    poison_all(c);
    EXPECT_OK(attn_forward(&problem, &in, &out, nullptr, nullptr));
    EXPECT_EQ(all_bits(c), expected);
    // By text.
    attn_problem said = none<attn_problem>();
    said.text = c.problem.layout_q == Layout::packed ? "packed" : "paged4";
    poison_all(c);
    EXPECT_OK(attn_forward(&said, &in, &out, nullptr, nullptr));
    EXPECT_EQ(all_bits(c), expected);
  }
}

TEST(CCalls, CachesInTypesOfTheirOwn) {
  std::vector<float> q{1, -2, 0.5f, 3}, scale_k{0.02f}, scale_v{0.25f}, o(4, 9.0f), expected(4);
  std::vector<std::uint8_t> k{1, 200, 30, 7, 99, 5, 255, 0, 12, 13, 14, 15};
  std::vector<std::uint8_t> v{10, 20, 255, 128, 1, 2, 3, 4, 100, 127, 0, 200};
  const Inputs inputs{.q = tensor(q.data(), {1, 1, 1, 4}),
                      .k = tensor(k.data(), {1, 3, 1, 4}),
                      .v = tensor(v.data(), {1, 3, 1, 4}),
                      .scale_k = tensor(scale_k.data(), {1}),
                      .scale_v = tensor(scale_v.data(), {1})};
  forward(parse_problem("kv(i8)"), inputs, {.o = tensor(expected.data(), {1, 1, 1, 4})});
  InC as;
  const attn_inputs in = as.of(inputs);
  const attn_outputs out = as.of(Outputs{.o = tensor(o.data(), {1, 1, 1, 4})});
  attn_problem problem = none<attn_problem>();
  problem.text = "kv(i8)";
  EXPECT_OK(attn_forward(&problem, &in, &out, nullptr, nullptr));
  EXPECT_EQ(o, expected);
  EXPECT_NE(o[0], 9.0f);
}

TEST(CCalls, QueriesOf8BitsHaveAScale) {
  std::vector<std::uint8_t> q{0x38, 0xb8, 0x30, 0x40};  // 1, -1, 0.5, 2
  std::vector<float> k{1, 2, 3, 4, -1, 0, 2, 1}, scale_q{0.5f}, o(4, 9.0f), expected(4);
  const Inputs inputs{.q = tensor(q.data(), {1, 1, 1, 4}),
                      .k = tensor(k.data(), {1, 2, 1, 4}),
                      .v = tensor(k.data(), {1, 2, 1, 4}),
                      .scale_q = tensor(scale_q.data(), {1})};
  forward(parse_problem("q(e4m3)_f32"), inputs, {.o = tensor(expected.data(), {1, 1, 1, 4})});
  InC as;
  const attn_inputs in = as.of(inputs);
  const attn_outputs out = as.of(Outputs{.o = tensor(o.data(), {1, 1, 1, 4})});
  attn_problem problem = none<attn_problem>();
  problem.text = "q(e4m3)_f32";
  EXPECT_OK(attn_forward(&problem, &in, &out, nullptr, nullptr));
  EXPECT_EQ(o, expected);
  const float weight = 1 / (1 + std::exp(-0.25f * (8.5f - 2)));  // scores 0.5 * (8.5, 2) / 2
  EXPECT_NEAR(o[0], weight * 1 - (1 - weight), 1e-6f);
}

TEST(CCalls, OptionsChooseTheBackend) {
  Call c = testing::packed_call();
  fill(c);
  attn::forward(c.problem, c.in, c.out, {.backend = Backend::reference});
  const auto expected = all_bits(c);
  InC as;
  const attn_inputs in = as.of(c.in);
  const attn_outputs out = as.of(c.out);
  attn_problem problem = none<attn_problem>();
  problem.text = "packed";
  attn_options options = none<attn_options>();
  options.backend = "reference";
  poison_all(c);
  EXPECT_OK(attn_forward(&problem, &in, &out, &options, nullptr));
  EXPECT_EQ(all_bits(c), expected);
  attn_plan* plan = nullptr;
  ASSERT_OK(attn_plan_make(&problem, ATTN_FORWARD, &in, &options, nullptr, &plan));
  attn_plan_info info = none<attn_plan_info>();
  ASSERT_OK(attn_plan_get(plan, &info));
  EXPECT_STREQ(info.backend, "reference");
  attn_plan_free(plan);
}

// A plan of a text that has every size needs no tensor.
TEST(CCalls, PlansByText) {
  attn_problem problem = none<attn_problem>();
  problem.text = "b2_n64_h4_d32_causal_bf16";
  attn_plan* plan = nullptr;
  ASSERT_OK(attn_plan_make(&problem, ATTN_FORWARD, nullptr, nullptr, nullptr, &plan));
  const Plan expected = make_plan(parse_problem(problem.text), Phase::forward);
  attn_plan_info info = none<attn_plan_info>();
  ASSERT_OK(attn_plan_get(plan, &info));
  EXPECT_EQ(info.batch, 2);
  EXPECT_EQ(info.seqlen_q, 64);
  EXPECT_EQ(info.workspace_bytes, expected.workspace_bytes);
  EXPECT_EQ(info.block_q, expected.block_q);
  EXPECT_EQ(info.isa, name(expected.isa));
  double flops = 0;
  ASSERT_OK(attn_plan_flops(plan, &flops));
  EXPECT_EQ(flops, expected.flops());
  std::size_t length = 0;
  ASSERT_OK(attn_plan_text(plan, nullptr, 0, &length));
  std::string text(length + 1, '?');
  ASSERT_OK(attn_plan_text(plan, text.data(), text.size(), &length));
  EXPECT_EQ(text.c_str(), to_string(expected));
  attn_plan_free(plan);
}

// Of text and members together the descriptor tells what was understood.
TEST(CCalls, TextAndMembersAreOneProblem) {
  attn_expr* mask = nullptr;
  attn_expr* score = nullptr;
  ASSERT_OK(attn_expr_parse("key % 2 == 0", nullptr, 0, &mask));
  ASSERT_OK(attn_expr_parse("2.0 * score", nullptr, 0, &score));
  attn_problem problem = none<attn_problem>();
  problem.text = "n8_h2_causal_softcap5";
  problem.seqlen_q = 8;
  problem.batch = 3;
  problem.head_dim = problem.head_dim_v = 4;
  problem.dtype = {4, 16, 1};
  problem.softmax_scale = 0.25;
  problem.mask = mask;
  problem.score = score;
  problem.sink = 1;
  Problem expected = parse_problem("b3_n8_h2_d4_bf16_causal_softcap5_sink_scale0.25");
  const auto& s = expr::symbols();
  expected.mask = expected.mask && s.key % 2 == 0;
  expected.score = compose(2.0F * s.score, expected.score);
  std::string text(1000, '?');
  ASSERT_OK(attn_problem_text(&problem, text.data(), text.size(), nullptr));
  EXPECT_EQ(text.c_str(), to_string(expected));
  attn_expr_free(mask);
  attn_expr_free(score);
}

TEST(CCalls, Merge) {
  Call a = testing::packed_call(), b = testing::packed_call();
  fill(a);
  fill(b);
  b.in.q = a.in.q;
  a.forward();
  b.forward();
  Call into = testing::packed_call();
  merge({a.out, b.out}, into.out);
  const auto expected = all_bits(into);
  InC as;
  const attn_outputs parts[] = {as.of(a.out), as.of(b.out)};
  const attn_outputs* const pointers[] = {&parts[0], &parts[1]};
  const attn_outputs result = as.of(into.out);
  poison(into.out.o);
  poison(into.out.lse);
  EXPECT_OK(attn_merge(pointers, 2, &result, nullptr));
  EXPECT_EQ(all_bits(into), expected);
}

TEST(CCalls, AppendKv) {
  Call memory;
  std::mt19937 random(6);
  const Tensor q = memory.zeros(DType::f32, {5, 4, 32}), k = memory.zeros(DType::f32, {5, 2, 32});
  const Tensor v = memory.zeros(DType::f32, {5, 2, 32}), weight = memory.zeros(DType::f32, {32});
  const Tensor frequencies = memory.zeros(DType::f32, {16}),
               to_q = memory.zeros(DType::f32, {5, 4, 32});
  for (const Tensor& t : {q, k, v, weight, frequencies}) testing::draw(t, random);
  const Tensor cache_k = memory.zeros(DType::u8, {3, 4, 2, 34});
  const Tensor cache_v = memory.zeros(DType::u8, {3, 4, 2, 32});
  const Tensor scale_v = memory.zeros(DType::f32, {3, 4, 2});
  const std::vector<std::int32_t> starts{0, 3, 5};
  const std::vector<std::int64_t> lengths{6, 1}, table{2, 1, 0, -1}, used{3, 1};
  const AppendInputs inputs{.q = q,
                            .k = k,
                            .v = v,
                            .cu_seqlens = tensor(starts.data(), {3}),
                            .seqused = tensor(used.data(), {2}),
                            .cache_seqlens = tensor(lengths.data(), {2}),
                            .page_table = tensor(table.data(), {2, 2}),
                            .inv_freq = frequencies,
                            .norm_weight_q = weight,
                            .norm_weight_k = weight};
  const AppendOutputs outputs{.q = to_q, .k = cache_k, .v = cache_v, .scale_v = scale_v};
  const std::vector<Tensor> written{to_q, cache_k, cache_v, scale_v};
  const auto run = [&](const auto& call) {
    for (const Tensor& t : written) poison(t);
    call();
    std::vector<std::vector<unsigned char>> all;
    for (const Tensor& t : written) all.push_back(bits(t));
    return all;
  };
  AppendProblem problem{.type_k = CacheType::q8_0,
                        .type_v = CacheType::i8,
                        .ring = true,
                        .rope_pairs = RopePairs::interleaved,
                        .norm = true,
                        .norm_eps = 0.01,
                        .hadamard = true,
                        .hadamard_v = true};
  const auto expected = run([&] { append_kv(problem, inputs, outputs); });

  InC as;
  attn_append_inputs in = none<attn_append_inputs>();
  in.q = as.of(inputs.q);
  in.k = as.of(inputs.k);
  in.v = as.of(inputs.v);
  in.cu_seqlens = as.of(inputs.cu_seqlens);
  in.seqused = as.of(inputs.seqused);
  in.cache_seqlens = as.of(inputs.cache_seqlens);
  in.page_table = as.of(inputs.page_table);
  in.inv_freq = as.of(inputs.inv_freq);
  in.norm_weight_q = in.norm_weight_k = as.of(weight);
  attn_append_outputs out = none<attn_append_outputs>();
  out.q = as.of(outputs.q);
  out.k = as.of(outputs.k);
  out.v = as.of(outputs.v);
  out.scale_v = as.of(outputs.scale_v);
  attn_append_options options = none<attn_append_options>();
  options.type_k = "q8_0";
  options.type_v = "i8";
  options.rope_pairs = "interleaved";
  options.norm_eps = 0.01;
  options.ring = options.norm = options.hadamard = options.hadamard_v = 1;
  EXPECT_EQ(run([&] { EXPECT_OK(attn_append_kv(&in, &out, &options, nullptr)); }), expected);
  // Each member says something of its own.
  problem.backend = Backend::reference;
  const auto by_reference = run([&] { append_kv(problem, inputs, outputs); });
  options.backend = "reference";
  EXPECT_EQ(run([&] { EXPECT_OK(attn_append_kv(&in, &out, &options, nullptr)); }), by_reference);
  options.rope_pairs = nullptr;
  EXPECT_NE(run([&] { EXPECT_OK(attn_append_kv(&in, &out, &options, nullptr)); }), by_reference);
  options.rope_pairs = "interleaved";
  options.hadamard_v = 0;
  EXPECT_NE(run([&] { EXPECT_OK(attn_append_kv(&in, &out, &options, nullptr)); }), by_reference);
}

TEST(CCalls, Matmul) {
  Call memory;
  std::mt19937 random(5);
  const Tensor a = memory.zeros(DType::f32, {7, 40}), b = memory.zeros(DType::f32, {40, 24});
  const Tensor bias = memory.zeros(DType::f32, {24}), c = memory.zeros(DType::f32, {7, 24});
  for (const Tensor& t : {a, b, bias}) testing::draw(t, random);
  matmul({.a = a, .b = b, .bias = bias}, c, Activation::gelu);
  const auto expected = bits(c);
  MatmulProblem added = describe({.a = a, .b = b}, c, Activation::none);
  added.accumulate = true;
  matmul(attn::make_plan(added), {.a = a, .b = b}, c);
  const auto expected_sum = bits(c);

  InC as;
  attn_matmul_inputs in = none<attn_matmul_inputs>();
  in.a = as.of(a);
  in.b = as.of(b);
  in.bias = as.of(bias);
  attn_matmul_options options = none<attn_matmul_options>();
  options.activation = "gelu";
  poison(c);
  EXPECT_OK(attn_matmul(&in, as.of(c), &options, nullptr));
  EXPECT_EQ(bits(c), expected);
  attn_matmul_plan* plan = nullptr;
  ASSERT_OK(attn_matmul_plan_make(&in, as.of(c), &options, nullptr, &plan));
  poison(c);
  EXPECT_OK(attn_run_matmul(plan, &in, as.of(c), nullptr));
  EXPECT_EQ(bits(c), expected);
  std::int64_t workspace = -1;
  EXPECT_OK(attn_matmul_plan_workspace_bytes(plan, &workspace));
  EXPECT_GE(workspace, 0);
  std::size_t length = 0;
  EXPECT_OK(attn_matmul_plan_text(plan, nullptr, 0, &length));
  EXPECT_GT(length, 20U);
  attn_matmul_plan_free(plan);
  in.bias = nullptr;
  options.activation = nullptr;
  options.accumulate = 1;
  EXPECT_OK(attn_matmul(&in, as.of(c), &options, nullptr));
  EXPECT_EQ(bits(c), expected_sum);
}

TEST(CCalls, MatmulOfBlocks) {
  Call memory;
  std::mt19937 random(6);
  const Tensor a = memory.zeros(DType::f32, {7, 64}), wide = memory.zeros(DType::f32, {24, 64});
  const Tensor weights = memory.zeros(DType::u8, {24, row_size(BlockFormat::q4_0, 64)});
  const Tensor c = memory.zeros(DType::f32, {7, 24});
  for (const Tensor& t : {a, wide}) testing::draw(t, random);
  quantize(wide, CacheType::q4_0, weights);
  const Tensor b = transposed(weights);
  MatmulProblem problem = describe({.a = a, .b = b}, c);
  problem.format_b = BlockFormat::q4_0;
  matmul(attn::make_plan(problem), {.a = a, .b = b}, c);
  const auto expected = bits(c);

  InC as;
  attn_matmul_inputs in = none<attn_matmul_inputs>();
  in.a = as.of(a);
  in.b = as.of(b);
  attn_matmul_options options = none<attn_matmul_options>();
  options.format_b = "q4_0";
  poison(c);
  EXPECT_OK(attn_matmul(&in, as.of(c), &options, nullptr));
  EXPECT_EQ(bits(c), expected);
}

// Two threads of a caller, who counts what it ran.
struct Threads {
  std::atomic<std::int64_t> ran{0};

  static void parallel_for(void* data, std::int64_t count,
                           void (*body)(void*, std::int64_t, std::int32_t), void* body_data) {
    auto* const self = static_cast<Threads*>(data);
    std::atomic<std::int64_t> next{0};
    const auto work = [&](std::int32_t worker) {
      for (std::int64_t i = next++; i < count; i = next++) {
        body(body_data, i, worker);
        ++self->ran;
      }
    };
    std::thread other(work, 1);
    work(0);
    other.join();
  }
  attn_executor* executor() {
    attn_executor_functions functions = none<attn_executor_functions>();
    functions.data = this;
    functions.concurrency = 2;
    functions.parallel_for = &parallel_for;
    attn_executor* made = nullptr;
    EXPECT_OK(attn_executor_wrap(&functions, &made));
    return made;
  }
};

TEST(CCalls, ThreadsOfTheCaller) {
  Call c = testing::dense_call();
  fill(c);
  c.problem.mask = {};
  c.problem.score = {};
  c.problem.sink = false;
  c.problem.dropout = {};
  c.in.sink = {};
  c.forward();
  const auto expected = all_bits(c);
  InC as;
  const attn_inputs in = as.of(c.in);
  const attn_outputs out = as.of(c.out);
  Threads threads;
  attn_context context = none<attn_context>();
  context.executor = threads.executor();
  poison(c.out.o);
  poison(c.out.lse);
  EXPECT_OK(attn_forward(nullptr, &in, &out, nullptr, &context));
  EXPECT_EQ(all_bits(c), expected);
  EXPECT_GT(threads.ran, 0);
  attn_executor_free(const_cast<attn_executor*>(context.executor));
}

// What a body throws does not pass through the caller's functions, and arrives.
TEST(CCalls, ExceptionsOfBodies) {
  Threads threads;
  attn_executor* const made = threads.executor();
  std::atomic<int> thrown{0};
  EXPECT_THROW(made->executor->parallel_for(100,
                                            [&](std::int64_t index, int) {
                                              if (index % 10 != 3) return;
                                              ++thrown;
                                              throw std::runtime_error("three");
                                            }),
               std::runtime_error);
  EXPECT_GE(thrown, 1);
  EXPECT_EQ(threads.ran, 100);
  attn_executor_free(made);
}

TEST(CCalls, NumberOfThreads) {
  std::int32_t before = 0, now = 0;
  ASSERT_OK(attn_get_num_threads(&before));
  EXPECT_EQ(before, get_num_threads());
  ASSERT_OK(attn_set_num_threads(3));
  ASSERT_OK(attn_get_num_threads(&now));
  EXPECT_EQ(now, 3);
  ASSERT_OK(attn_set_num_threads(0));
  ASSERT_OK(attn_get_num_threads(&now));
  EXPECT_EQ(now, before);
}

}  // namespace
}  // namespace attn
