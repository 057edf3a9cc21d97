// What is legal is accepted, and complete() fills in the sizes.
#include "core/validate/validate.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "attn/error.hpp"
#include "core/call.hpp"

namespace attn::testing {
namespace {

void validate_both(const Call& c) {
  const Problem p = complete(c.problem, c.in);
  core::validate_problem(p);
  core::validate_forward(p, c.in, c.out);
  if (p.layout_k != Layout::paged)
    core::validate_backward(p, c.in, c.out, {c.d_o, c.d_lse}, c.grad);
}

TEST(Complete, Dense) {
  const Call c = dense_call();
  const Problem p = complete(c.problem, c.in);
  EXPECT_EQ(p.batch, kBatch);
  EXPECT_EQ(p.seqlen_q, kSeqlenQ);
  EXPECT_EQ(p.seqlen_k, kSeqlenK);
  EXPECT_EQ(p.heads_q, kHeadsQ);
  EXPECT_EQ(p.heads_k, kHeadsK);
  EXPECT_EQ(p.head_dim, kHeadDim);
  EXPECT_EQ(p.head_dim_v, kHeadDimV);
  EXPECT_EQ(p.dtype, DType::f32);
  EXPECT_TRUE(p.sink);
  EXPECT_NO_THROW(validate_both(c));
}

TEST(Complete, Packed) {
  Call c = packed_call();
  const Problem p = complete(c.problem, c.in);
  EXPECT_EQ(p.batch, 3);
  EXPECT_EQ(p.seqlen_q, 5);
  EXPECT_EQ(p.seqlen_k, 7);
  EXPECT_NO_THROW(validate_both(c));
  c.problem.seqlen_q = 100;  // an upper bound
  EXPECT_EQ(complete(c.problem, c.in).seqlen_q, 100);
  EXPECT_NO_THROW(validate_both(c));
}

TEST(Complete, Paged) {
  Call c = paged_call();
  const Problem p = complete(c.problem, c.in);
  EXPECT_EQ(p.page_size, 4);
  EXPECT_EQ(p.seqlen_k, 12);
  EXPECT_NO_THROW(validate_both(c));
}

TEST(Complete, TakesTheDTypeOfTheTensors) {
  Call c = dense_call();
  for (Tensor* t :
       {&c.in.q, &c.in.k, &c.in.v, &c.out.o, &c.d_o, &c.grad.dq, &c.grad.dk, &c.grad.dv}) {
    t->dtype = DType::bf16;
  }
  for (const OptionalDType dtype : {OptionalDType(), OptionalDType(DType::bf16)}) {
    c.problem.dtype = dtype;
    EXPECT_EQ(complete(c.problem, c.in).dtype, DType::bf16);
    EXPECT_NO_THROW(validate_both(c));
  }
}

// What `call` is refused with.
template <class Callable>
std::string refusal(Callable&& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "(accepted)";
}

bool has(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

TEST(Plan, RefusesWhatItCannotMean) {
  const Problem p = parse_problem("b1_n8_h2_d8_f32");
  const auto plan = [&](const PlanOptions& options, Phase phase = Phase::forward) {
    return refusal([&] { make_plan(p, phase, options); });
  };
  EXPECT_EQ(plan({}), "(accepted)");
  EXPECT_TRUE(has(plan({.backend = static_cast<Backend>(9)}), "backend is 9"));
  EXPECT_TRUE(has(plan({.algorithm = static_cast<Algorithm>(77)}), "algorithm is 77"));
  EXPECT_TRUE(has(plan({}, static_cast<Phase>(3)), "phase is 3"));
  EXPECT_TRUE(has(plan({.device = {static_cast<DeviceType>(5), 0}}), "device is device type 5"));
  EXPECT_TRUE(has(plan({.device = {DeviceType::cpu, 1}}), "device is cpu:1; accepted are cpu and"));
  EXPECT_TRUE(has(plan({.kernel = "forward_sm90"}), "kernel is 'forward_sm90'"));
  Context context;
  context.isa = static_cast<InstructionSet>(99);
  for (const Backend backend : {Backend::reference, Backend::cpu}) {
    EXPECT_TRUE(has(plan({.backend = backend, .threads = -1}), "threads is -1")) << name(backend);
    EXPECT_TRUE(has(refusal([&] { make_plan(p, Phase::forward, {.backend = backend}, context); }),
                    "isa of the context is 99; accepted are the enumerators of InstructionSet"))
        << name(backend);
  }
  const Problem paged = parse_problem("b1_n8_h2_d8_paged4_f32");
  for (const Backend backend : {Backend::automatic, Backend::reference, Backend::cpu}) {
    const PlanOptions options{.backend = backend};
    EXPECT_NO_THROW(make_plan(paged, Phase::forward, options));
    EXPECT_TRUE(
        has(refusal([&] { make_plan(paged, Phase::backward, options); }), "layout_k is paged"));
  }
}

TEST(Plan, RunsInItsOwnPhase) {
  Call c = dense_call();
  const Problem p = complete(c.problem, c.in);
  const Plan to_forward = make_plan(p, Phase::forward), to_backward = make_plan(p, Phase::backward);
  EXPECT_TRUE(has(refusal([&] { forward(to_backward, c.in, c.out); }), "plan is of the backward"));
  EXPECT_TRUE(has(refusal([&] {
                    backward(to_forward, c.in, c.out, {c.d_o, c.d_lse}, c.grad);
                  }),
                  "plan is of the forward"));
  EXPECT_NO_THROW(forward(to_forward, c.in, c.out));
  EXPECT_NO_THROW(backward(to_backward, c.in, c.out, {c.d_o, c.d_lse}, c.grad));
}

TEST(Plan, BracesAreAProblem) {
  const Call c = packed_call();
  EXPECT_TRUE(has(refusal([&] { forward({}, c.in, c.out); }), "q is"));  // not packed by default
}

TEST(Complete, IsIdempotent) {
  for (const Call& c : {dense_call(), packed_call(), paged_call()}) {
    const Problem once = complete(c.problem, c.in);
    EXPECT_EQ(to_string(complete(once, c.in)), to_string(once));
  }
}

// Q, K, V are parts of one [batch, seqlen, 3, heads, head_dim] tensor, and their gradients too.
TEST(Validate, AcceptsInterleavedTensors) {
  Call c;
  const std::int64_t b = 2, s = 5, h = 3, d = 8;
  const auto parts = [&](bool poison, Tensor(&part)[3]) {
    const Tensor all =
        poison ? c.poisoned(DType::f32, {b, s, 3 * h, d}) : c.zeros(DType::f32, {b, s, 3 * h, d});
    for (int n = 0; n < 3; ++n) {
      part[n] = all;
      part[n].shape[2] = h;
      part[n].data = static_cast<float*>(all.data) + n * h * d;
    }
  };
  Tensor qkv[3], gradients[3];
  parts(false, qkv);
  parts(true, gradients);
  c.in = {.q = qkv[0], .k = qkv[1], .v = qkv[2]};
  c.out = {c.poisoned(DType::f32, {b, s, h, d}), c.poisoned(DType::f32, {b, h, s})};
  c.d_o = c.zeros(DType::f32, {b, s, h, d});
  c.grad = {.dq = gradients[0], .dk = gradients[1], .dv = gradients[2]};
  EXPECT_NO_THROW(validate_both(c));
  c.grad.dv.data = static_cast<float*>(c.grad.dv.data) - 1;
  EXPECT_THROW(validate_both(c), Error);
}

TEST(Validate, AcceptsInputsThatShareMemory) {
  Call c = dense_call();
  c.in.k.data = c.in.q.data;
  c.in.v.strides = {0, 0, 0, 1};
  c.in.q.strides[1] = 0;
  c.d_o.strides = {0, 0, 0, 1};
  EXPECT_NO_THROW(validate_both(c));
}

TEST(Validate, AcceptsAnyOrderOfOutputDimensions) {
  Call c = dense_call();
  c.out.o.strides = {kHeadsQ * kSeqlenQ * kHeadDimV, kHeadDimV, kSeqlenQ * kHeadDimV, 1};
  c.out.lse.strides = {1, kBatch, kBatch * kHeadsQ};
  EXPECT_NO_THROW(validate_both(c));
}

TEST(Validate, OptionalArgumentsMayBeMissing) {
  Call c = dense_call();
  c.grad = {};
  EXPECT_NO_THROW(validate_both(c));
  c.out.lse = {};
  EXPECT_NO_THROW(core::validate_forward(complete(c.problem, c.in), c.in, c.out));
}

// Without elements there need not be memory.
TEST(Validate, AcceptsEmptyTensors) {
  for (const int dimension : {0, 1}) {
    for (const bool of_q : {false, true}) {
      Call c = dense_call();
      c.in.seqused_q = c.in.seqused_k = {};
      const auto empty = [&](Tensor& t, int k) {
        t.shape[static_cast<std::size_t>(k)] = 0;
        t.data = nullptr;
      };
      if (dimension == 0 || of_q) {
        for (Tensor* t : {&c.in.q, &c.out.o, &c.d_o, &c.grad.dq}) empty(*t, dimension);
        for (Tensor* t : {&c.out.lse, &c.d_lse}) empty(*t, dimension == 0 ? 0 : 2);
      }
      if (dimension == 0 || !of_q) {
        for (Tensor* t : {&c.in.k, &c.in.v, &c.grad.dk, &c.grad.dv}) empty(*t, dimension);
      }
      const Tensor one = c.zeros(DType::f32, {1, kHeadsQ, 1, 1});
      c.problem.score = bias(one);
      c.grad.buffers = {{"bias", c.poisoned(DType::f32, {1, kHeadsQ, 1, 1})}};
      EXPECT_NO_THROW(validate_both(c)) << dimension << of_q;
    }
  }
}

TEST(Validate, BoundBuffersReplaceDeclaredOnes) {
  Call c = dense_call();
  c.in.buffers = {{"bias", c.zeros(DType::f32, {1, kHeadsQ, kSeqlenQ, kSeqlenK})}};
  for (const std::int64_t heads : {kHeadsQ, std::int64_t{0}}) {  // 0: taken from the tensor
    c.problem.score = bias(tensor(static_cast<float*>(nullptr), {1, heads, kSeqlenQ, kSeqlenK}));
    EXPECT_NO_THROW(validate_both(c));
  }
}

// A hand-written load reads 0 outside, whatever its index; a shorthand's name alone changes
// nothing.
TEST(Validate, HandWrittenLoadsMayBeOfAnyShape) {
  const auto& s = expr::symbols();
  Call c = dense_call();
  c.grad.buffers = {};
  const Tensor three = c.zeros(DType::f32, {3});
  for (const expr::Expr& score : {s.score + expr::Buffer("w", three)[s.head],
                                  s.score + expr::Buffer("bias", three)[s.key % 4],
                                  s.score + expr::Buffer("biased", three)[s.head]}) {
    c.problem.score = score;
    EXPECT_NO_THROW(validate_both(c)) << to_string(score);
  }
}

// Each shape that a shorthand's declaration says, and broadcast ones.
TEST(Validate, ShorthandsOfTheirShapes) {
  Call c = dense_call();
  c.grad.buffers = {};
  c.problem.score = {};
  for (const Alignment alignment : {Alignment::bottom_right, Alignment::top_left}) {
    const std::int64_t rows = alignment == Alignment::top_left ? kSeqlenQ : kSeqlenK;
    for (const expr::Expr& score :
         {alibi(c.zeros(DType::f32, {kHeadsQ}), alignment),
          bias(c.zeros(DType::f32, {kBatch, kHeadsQ, rows, kSeqlenK}), alignment),
          bias(c.zeros(DType::bf16, {kBatch, 1, 1, kSeqlenK}), alignment),
          bias(c.zeros(DType::f32, {rows, kSeqlenK}), alignment)}) {
      c.problem.score = score;
      EXPECT_NO_THROW(validate_both(c)) << to_string(score);
    }
    c.problem.score = {};
    for (const expr::Expr& mask : {documents(c.zeros(DType::i32, {kSeqlenK}), alignment),
                                   documents(c.zeros(DType::i32, {kBatch, kSeqlenK}), alignment),
                                   BlockMask::butterfly(rows, kSeqlenK, 2).mask(alignment)}) {
      c.problem.mask = mask;
      EXPECT_NO_THROW(validate_both(c)) << to_string(mask);
    }
  }
  for (const expr::Expr& mask :
       {documents(c.zeros(DType::i32, {kSeqlenQ}), c.zeros(DType::i32, {1, kSeqlenK})),
        tree_mask(c.zeros(DType::i32, {kBatch, kSeqlenQ, 1})),
        tree_mask(c.zeros(DType::i32, {1, kSeqlenQ, 1}))}) {
    c.problem.mask = mask;
    EXPECT_NO_THROW(validate_both(c)) << to_string(mask);
  }
}

TEST(Validate, DoublesHaveADoubleLse) {
  Call c = packed_call();
  for (Tensor* t :
       {&c.in.q, &c.in.k, &c.in.v, &c.out.o, &c.d_o, &c.grad.dq, &c.grad.dk, &c.grad.dv}) {
    *t = c.poisoned(DType::f64, {t->shape.begin(), t->shape.begin() + t->rank});
  }
  EXPECT_THROW(validate_both(c), Error);
  c.out.lse = c.poisoned(DType::f64, {kHeadsQ, 10});
  EXPECT_THROW(validate_both(c), Error);
  c.d_lse = c.poisoned(DType::f64, {kHeadsQ, 10});
  EXPECT_NO_THROW(validate_both(c));
}

}  // namespace
}  // namespace attn::testing
