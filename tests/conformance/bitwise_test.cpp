// The same inputs give the same bits, whatever the number of threads.
#include <gtest/gtest.h>

#include <limits>

#include "attn/context.hpp"
#include "attn/run.hpp"
#include "conformance/support.hpp"
#include "verify/cases.hpp"
#include "verify/compare.hpp"
#include "verify/data.hpp"

namespace attn::verify {
namespace {

constexpr std::uint64_t kSeed = 7;

// On all threads, however little there is to do.
void run(CaseData& data, Algorithm forward_algorithm, Algorithm backward_algorithm,
         InstructionSet isa, int threads) {
  const Context context{.executor = make_thread_pool(threads), .isa = isa, .log = nullptr};
  data.poison();
  forward(data.problem, data.inputs, data.outputs,
          {.backend = Backend::cpu, .algorithm = forward_algorithm, .threads = threads}, context);
  if (!has_backward(data.problem)) return;
  backward(data.problem, data.inputs, data.outputs, data.d_o, data.gradients,
           {.backend = Backend::cpu, .algorithm = backward_algorithm, .threads = threads}, context);
}

void expect_same_bits(const CaseData& a, const CaseData& b, const std::string& what) {
  const auto expect_same = [&](const char* name, const Tensor& x, const Tensor& y) {
    if (!x.given()) return;
    const std::vector<std::int64_t> where = first_difference(x, y);
    EXPECT_TRUE(where.empty()) << what << ": " << name << " differs at "
                               << ::testing::PrintToString(where);
  };
  expect_same("o", a.outputs.o, b.outputs.o);
  expect_same("lse", a.outputs.lse, b.outputs.lse);
  expect_same("dq", a.gradients.dq, b.gradients.dq);
  expect_same("dk", a.gradients.dk, b.gradients.dk);
  expect_same("dv", a.gradients.dv, b.gradients.dv);
  expect_same("dsink", a.gradients.dsink, b.gradients.dsink);
  for (std::size_t i = 0; i < a.gradients.buffers.size(); ++i) {
    expect_same(a.gradients.buffers[i].first.c_str(), a.gradients.buffers[i].second,
                b.gradients.buffers[i].second);
  }
}

// Under a sanitizer each algorithm runs on one instruction set, in turn, and on one number of
// threads beside one thread.
bool left_out(std::size_t algorithm, std::size_t set, std::size_t sets) {
  return quick() && algorithm % sets != set;
}

std::vector<int> numbers_of_threads(std::vector<int> numbers) {
  if (quick()) numbers = {numbers.back()};
  return numbers;
}

class Bitwise : public ::testing::TestWithParam<const char*> {};

TEST_P(Bitwise, DoesNotDependOnTheNumberOfThreads) {
  const Case c = parse_case(GetParam());
  CaseData one(c, kSeed);
  CaseData many(c, kSeed);
  const std::vector<Algorithm> backward = algorithms_for(c.problem, Phase::backward);
  std::size_t turn = 0;
  const std::vector<InstructionSet> sets = available_instruction_sets();
  std::vector<Algorithm> forward_algorithms = algorithms_for(c.problem, Phase::forward);
  forward_algorithms.push_back(Algorithm::automatic);  // which may be several, by length
  for (std::size_t set = 0; set < sets.size(); ++set) {
    for (std::size_t i = 0; i < forward_algorithms.size(); ++i) {
      const Algorithm backward_algorithm = backward[turn++ % backward.size()];
      if (left_out(i, set, sets.size())) continue;
      const InstructionSet isa = sets[set];
      const Algorithm algorithm = forward_algorithms[i];
      run(one, algorithm, backward_algorithm, isa, 1);
      for (const int threads : numbers_of_threads({2, 3, 5})) {
        run(many, algorithm, backward_algorithm, isa, threads);
        expect_same_bits(one, many,
                         std::string(name(algorithm)) + ", " +
                             std::string(name(backward_algorithm)) + ", " + std::string(name(isa)) +
                             ", " + std::to_string(threads) + " threads");
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Conformance, Bitwise,
    ::testing::Values(
        "b1_sq333_sk700_h1_d64_causal_f32", "b2_sq200_sk300_hq6_hk2_d40_bf16",
        "b1_sq1_sk2000_hq8_hk2_d64_bf16", "b1_sq1_sk2000_hq16_hk2_d64_kv(q8_0)_bf16",
        "b1_sq3_sk1500_h2_d64_paged16_f16", "b3_sq150_sk170_hq4_hk2_d64_causal_packed_f16",
        "b6_sq100_sk1100_hq8_hk2_d64_packedq_paged16_causal_dropout0.1_seed4_bf16/"
        "cuq0,1,2,6,106,108,108",
        "b5_sq3_sk170_sp700_hq4_hk2_d64_causal_sink_bf16", "b4_sq40_sk60_sp300_h2_d40_f64",
        "b2_n150_h4_d64_softcap10_alibi_bias_sink_dropout0.2_seed3_f32/padded",
        "b2_sq90_sk700_hq4_hk2_d16_causal_score(score-a[query]-b[key]+c[head]+e[batch,"
        "key])_buffer(a:f32:90)_buffer(b:f32:700)_buffer(c:f32:4)_buffer(e:f32:2x700)_"
        "f32",
        "b1_n512_h1_d32_window64x0_bf16", "b1_sq3_sk500_hq40_hk1_d72_dv64_list200_bf16/vink",
        "b3_sq9_sk300_hq6_hk2_d40_causal_packedq_paged16_list70_f32",
        "b1_sq2_sk900_hq40_hk1_d72_dv64_causal_list1100_bf16/vink",
        "b2_sq4_sk1300_hq36_hk9_d40_mask(head%2==0||key<=query+900)_bf16",
        "b1_sq333_sk1100_h1_d64_causal_f64",
        "b2_n150_hq4_hk2_d40_softcap10_alibi_bias_sink_dropout0.2_seed3_f64/padded"),
    [](const ::testing::TestParamInfo<const char*>& info) { return test_name(info.param); });

// A V block that holds an infinity is multiplied without that row where the mask hides it: decided
// for each Q block, not for the rows of a task, which fewer threads make longer.
TEST(BitwiseInfinities, InVDoNotDependOnTheNumberOfThreads) {
  for (const char* text : {"b1_n700_h1_d32_causal_f32", "b1_n700_h1_d64_causal_bf16"}) {
    const Case c = parse_case(text);
    CaseData one(c, kSeed);
    CaseData many(c, kSeed);
    for (const CaseData* data : {&one, &many}) {
      for (const std::int64_t key : {10, 75, 300, 301}) {
        store_element(data->inputs.v, key * data->problem.head_dim_v + key % 8,
                      std::numeric_limits<double>::infinity());
      }
    }
    const std::vector<InstructionSet> sets = available_instruction_sets();
    const std::vector<Algorithm> forward_algorithms = algorithms(Phase::forward);
    for (std::size_t set = 0; set < sets.size(); ++set) {
      for (std::size_t i = 0; i < forward_algorithms.size(); ++i) {
        if (left_out(i, set, sets.size())) continue;
        const InstructionSet isa = sets[set];
        const Algorithm algorithm = forward_algorithms[i];
        run(one, algorithm, Algorithm::automatic, isa, 1);
        for (const int threads : numbers_of_threads({3, 8})) {
          run(many, algorithm, Algorithm::automatic, isa, threads);
          expect_same_bits(one, many,
                           std::string(text) + ", " + std::string(name(algorithm)) + ", " +
                               std::string(name(isa)) + ", " + std::to_string(threads) +
                               " threads");
        }
      }
    }
  }
}

// The backward pass takes heads in waves of four tasks a thread at least, and no more where they
// are over 12 MiB (src/cpu/budgets.hpp): of these ten, of 4 MiB and a task each, four, four and two
// with one thread, all together with five.
TEST(BitwiseWaves, DoNotDependOnTheNumberOfThreads) {
  const Case c = parse_case("b1_sq2048_sk520_h10_d128_causal_f32");
  CaseData one(c, kSeed);
  CaseData many(c, kSeed);
  const InstructionSet isa = available_instruction_sets().front();
  run(one, Algorithm::automatic, Algorithm::flash_attention_2, isa, 1);
  run(many, Algorithm::automatic, Algorithm::flash_attention_2, isa, 5);
  expect_same_bits(one, many, std::string(name(isa)));
}

// Seed and offset in a tensor give the bits that the same numbers in the problem give; what the
// problem says beside a tensor is not read. A plan serves every state.
class RngState : public ::testing::TestWithParam<Backend> {};

TEST_P(RngState, IsReadFromTheTensor) {
  const PlanOptions options{.backend = GetParam()};
  const std::string problem = "b2_sq40_sk70_hq4_hk2_d16_causal_dropout0.3_seed5_offset6";
  CaseData numbers(parse_case(problem + "_f32"), kSeed);
  CaseData state(parse_case(problem + "_rngstate_f32"), kSeed);
  const Plan forward_plan = make_plan(state.problem, Phase::forward, options);
  const Plan backward_plan = make_plan(state.problem, Phase::backward, options);
  auto* const words = static_cast<std::int64_t*>(state.inputs.rng_state.data);
  ASSERT_EQ(words[0], 5);
  ASSERT_NE(state.problem.dropout.seed, 5u);
  std::vector<double> first;
  for (const std::int64_t seed : {std::int64_t{5}, std::int64_t{-3}}) {
    words[0] = seed;
    words[1] = seed == 5 ? 6 : std::int64_t{1} << 40;
    numbers.problem.dropout.seed = static_cast<std::uint64_t>(words[0]);
    numbers.problem.dropout.offset = static_cast<std::uint64_t>(words[1]);
    for (CaseData* data : {&numbers, &state}) {
      data->poison();
      forward(data->problem, data->inputs, data->outputs, options);
      backward(data->problem, data->inputs, data->outputs, data->d_o, data->gradients, options);
    }
    expect_same_bits(numbers, state, "by problem");
    state.poison();
    forward(forward_plan, state.inputs, state.outputs);
    backward(backward_plan, state.inputs, state.outputs, state.d_o, state.gradients);
    expect_same_bits(numbers, state, "by plan");
    std::vector<double> o;
    for (std::int64_t i = 0; i < state.outputs.o.size(); ++i) {
      o.push_back(load_element(state.outputs.o, i));
    }
    EXPECT_NE(o, first);
    first = o;
  }
}

INSTANTIATE_TEST_SUITE_P(Conformance, RngState, ::testing::Values(Backend::cpu, Backend::reference),
                         [](const ::testing::TestParamInfo<Backend>& info) {
                           return std::string(name(info.param));
                         });

}  // namespace
}  // namespace attn::verify
