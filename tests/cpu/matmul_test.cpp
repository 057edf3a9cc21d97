// Matrix products on the CPU: every rung, instruction set, dtype and order against fp64.
#include "verify/matmul.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "attn/attn.hpp"
#include "matmul_checks.hpp"
#include "reference/matmul.hpp"

namespace attn {
namespace {

using verify::MatmulData;
using verify::varied_problem;
using namespace matmul_checks;  // NOLINT(google-build-using-namespace)

// Sizes around register tiles, blocks and vectors; k = 0 leaves bias and activation.
constexpr std::array<std::array<std::int64_t, 4>, 9> kShapes{{{1, 1, 1, 1},
                                                              {1, 37, 53, 17},
                                                              {2, 8, 48, 192},
                                                              {1, 258, 50, 20},
                                                              {1, 9, 485, 193},
                                                              {2, 33, 31, 513},
                                                              {1, 5, 100, 1},
                                                              {1, 100, 3, 70},
                                                              {2, 9, 20, 0}}};

TEST(Matmul, EveryRungIsRight) {
  std::uint64_t seed = 1;
  for (const std::string& rung : matmul_rungs(Backend::cpu)) {
    for (const InstructionSet isa : available()) {
      const bool once = rung == "naive" || rung == "blocked";  // the same on every one
      if (once && isa != InstructionSet::portable) continue;
      if (rung == "amx" && isa != InstructionSet::amx_bf16) continue;
      for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
        if (rung == "amx" && dtype != DType::bf16) continue;
        for (const auto& shape : kShapes) {
          for (int variant = static_cast<int>(seed % 2); variant < 8; variant += 2) {
            expect_right(varied_problem(shape, dtype, variant), rung, isa, ++seed);
          }
        }
      }
    }
  }
}

// Several blocks of rows and columns have operands that are packed once for all tasks; B of the
// last problem is packed in two parts, as it is larger than what a call may keep.
TEST(Matmul, OperandsThatTasksShareAreRight) {
  const InstructionSet best = available().back();
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const std::string rung =
        dtype == DType::bf16 && best == InstructionSet::amx_bf16 ? "amx" : "packed";
    for (int variant = 0; variant < 8; ++variant) {
      expect_right(varied_problem({2, 300, 530, 40}, dtype, variant), rung, best,
                   100 + static_cast<std::uint64_t>(variant));
    }
  }
  expect_right(varied_problem({1, 520, 1100, 4500}, DType::f32, 1), "packed", best, 99);
}

// Sizes of chance, none of them a multiple of a tile but by it; several blocks of each dimension.
TEST(Matmul, ShapesOfChanceAreRight) {
  Sizes draw(7);
  for (int i = 0; i < 24; ++i) {
    const DType dtype = i % 3 == 0 ? DType::f32 : i % 3 == 1 ? DType::bf16 : DType::f16;
    const std::array<std::int64_t, 4> shape{draw(2), draw(400), draw(1400), draw(900)};
    expect_right(varied_problem(shape, dtype, i % 8), "packed", available().back(),
                 300 + static_cast<std::uint64_t>(i));
  }
}

// Up to 20 rows, several pieces of k, columns that are no multiple of a vector; the rung that a
// call gets, and few_rows where that is another.
// Weights as they are stored beside activations of f32, and C that is added to.
TEST(Matmul, MixedTypesAndSumsThatGoOnAreRight) {
  std::uint64_t seed = 1;
  for (const std::string& rung : matmul_rungs(Backend::cpu)) {
    if (rung == "amx") continue;  // of bf16 alone
    for (const InstructionSet isa : available()) {
      for (const DType of_b : {DType::bf16, DType::f16, DType::f32}) {
        for (const auto& shape : kShapes) {
          const int variant = static_cast<int>(++seed % 8);
          if (quick() && seed % 5 != 0) continue;  // each shape and variant in its turn
          MatmulProblem p = varied_problem(shape, DType::f32, variant);
          if (of_b != DType::f32) p.dtype_b = of_b;
          p.accumulate = of_b == DType::f32 || seed % 3 == 0;
          expect_right(p, rung, isa, seed);
        }
      }
      for (const DType dtype : {DType::bf16, DType::f16}) {
        MatmulProblem p = varied_problem(kShapes[++seed % kShapes.size()], dtype, 2);
        p.accumulate = true;
        expect_right(p, rung, isa, seed);
        p.activation = Activation::none;
        expect_right(p, rung, isa, ++seed);
      }
    }
  }
}

TEST(Matmul, ACallWithMixedTypesNeedsNoProblem) {
  MatmulProblem p{.m = 3, .n = 40, .k = 70, .order_b = MatrixOrder::column_major};
  p.dtype_b = DType::bf16;
  MatmulData data(p, 5, 0);
  EXPECT_EQ(describe(data.inputs, data.c), p);
  matmul(data.inputs, data.c);
  EXPECT_TRUE(check_matmul(data).passed());
}

TEST(Matmul, FewRowsAreRight) {
  Sizes draw(8);
  std::uint64_t seed = 400;
  for (const InstructionSet isa : available()) {
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
      for (int variant = 0; variant < 8; ++variant) {
        const std::int64_t rows = draw(20), depth = draw(variant % 4 == 0 ? 6000 : 300);
        MatmulProblem p = varied_problem({draw(2), rows, draw(300), depth}, dtype, variant);
        if (p.order_c == MatrixOrder::column_major) std::swap(p.m, p.n);
        expect_right(p, rows > 16 ? "few_rows" : "", isa, ++seed);
      }
    }
  }
}

// Tiles of AMX: one to four of rows, strips and pieces of k, columns and steps that end within a
// tile; the rung of a call below 64 rows, and few_rows beyond.
TEST(Matmul, FewRowsOfTilesAreRight) {
  Sizes draw(9);
  constexpr InstructionSet kAmx = InstructionSet::amx_bf16;
  if (available().back() != kAmx) GTEST_SKIP() << "no AMX";
  std::uint64_t seed = 500;
  const int variants = quick() ? 16 : 48;
  for (int variant = 0; variant < variants; ++variant) {
    const std::int64_t rows = draw(variant % 2 == 0 ? 64 : 150);
    MatmulProblem p = varied_problem({draw(2), rows, draw(700), draw(variant % 4 < 2 ? 2500 : 300)},
                                     DType::bf16, variant % 8);
    if (p.order_c == MatrixOrder::column_major) std::swap(p.m, p.n);
    expect_right(p, rows > 64 ? "few_rows" : "", kAmx, ++seed);
  }
}

// Masks of B and C, with blocks that are not those of the caches and ragged last ones.
TEST(Matmul, OnlyBlocksOfTheMaskAreMultiplied) {
  std::uint64_t seed = 200;
  for (const char* rung : {"naive", "few_rows", "packed", "amx"}) {
    for (const InstructionSet isa : available()) {
      if (std::string(rung) == "amx" && isa != InstructionSet::amx_bf16) continue;
      for (const MaskedMatrix masked : {MaskedMatrix::b, MaskedMatrix::c}) {
        const int step = quick() ? 6 : 2;
        for (int variant = static_cast<int>(seed % 2); variant < 8; variant += step) {
          MatmulProblem p = varied_problem({2, 70, 110, 90}, DType::bf16, variant);
          p.masked = masked;
          p.block = std::array{16, 48, 33, 200}[static_cast<std::size_t>(variant % 4)];
          expect_right(p, rung, isa, ++seed);
        }
      }
    }
  }
  // Several blocks of the caches in one of the mask, and the other way about.
  const InstructionSet best = available().back();
  MatmulProblem layer{.m = 1024, .n = 512, .k = 512, .masked = MaskedMatrix::b, .block = 256};
  EXPECT_EQ(make_plan(layer).block_k, 256);
  layer.block = 260;
  EXPECT_EQ(make_plan(layer).block_k, 144);
  for (const MaskedMatrix masked : {MaskedMatrix::b, MaskedMatrix::c}) {
    for (int variant = 0; variant < 8; variant += 3) {
      MatmulProblem p = varied_problem({1, 610, 1220, 620}, DType::f32, variant);
      p.masked = masked;
      p.block = std::array{500, 64, 250}[static_cast<std::size_t>(variant / 3)];
      expect_right(p, "packed", best, ++seed);
    }
    // One block, whose side is the largest that there is.
    MatmulProblem p = varied_problem({1, 60, 50, 40}, DType::f32, 0);
    p.masked = masked;
    p.block = std::numeric_limits<std::int64_t>::max();
    expect_right(p, "packed", best, ++seed);
  }
}

// Where C has few blocks each task packs its operands, which all share where it has more.
TEST(Matmul, FewBlocksOfCAreMultiplied) {
  for (const double density : {0.1, 0.25}) {
    for (int variant = 0; variant < 8; ++variant) {
      MatmulProblem p = varied_problem({2, 590, 610, 420}, DType::bf16, variant);
      p.masked = MaskedMatrix::c;
      p.block = std::array{64, 100, 256}[static_cast<std::size_t>(variant % 3)];
      MatmulData data(p, 300 + static_cast<std::uint64_t>(variant), 0, density);
      matmul(make_plan(p, {.rung = "packed"}), data.inputs, data.c);
      const verify::MatmulCheck check = check_matmul(data);
      EXPECT_TRUE(check.passed()) << to_string(p) << ", density " << density << ": " << check.worst
                                  << " of the allowed error at " << check.where;
    }
  }
}

// The mask of a transposed matrix is the transposed mask; one without a block leaves the bias.
TEST(Matmul, MasksHaveStridesAndMayBeEmpty) {
  MatmulProblem p{.m = 40, .n = 60, .k = 90, .masked = MaskedMatrix::b, .block = 20};
  MatmulData data(p, 7);
  p.order_b = MatrixOrder::column_major;
  MatmulData other(p, 7);  // the same numbers, B and the mask transposed in memory
  std::vector<std::uint8_t> mask(15);
  for (std::size_t i = 0; i < 5; ++i) {
    for (std::size_t j = 0; j < 3; ++j) {
      mask[j * 5 + i] = std::to_integer<std::uint8_t>(
          data.bytes_mask[i * static_cast<std::size_t>(data.inputs.block_mask.strides[0]) + j]);
    }
  }
  other.inputs.block_mask.data = mask.data();
  other.inputs.block_mask.strides = {1, 5};
  matmul(make_plan(data.problem), data.inputs, data.c);
  matmul(make_plan(p), other.inputs, other.c);
  EXPECT_TRUE(check_matmul(data).passed()) << check_matmul(data).where;
  EXPECT_EQ(data.bytes_c, other.bytes_c);

  p.bias = true;
  MatmulData empty(p, 8, 0, 0.0);
  matmul(make_plan(p), empty.inputs, empty.c);
  for (std::int64_t j = 0; j < p.n; ++j) {
    EXPECT_EQ(static_cast<const float*>(empty.c.data)[39 * 60 + j],
              static_cast<const float*>(empty.inputs.bias.data)[j]);
  }
}

TEST(Matmul, TheFastRungTakesTheProblem) {
  const InstructionSet best = available().back();
  const MatmulPlan f32 = make_plan({.m = 64, .n = 64, .k = 64});
  EXPECT_EQ(f32.rung, "packed");
  const MatmulPlan bf16 = make_plan({.m = 64, .n = 64, .k = 64, .dtype = DType::bf16});
  const bool amx = best == InstructionSet::amx_bf16;
  EXPECT_EQ(bf16.rung, amx ? "few_rows" : "packed");
  MatmulProblem rows{.m = 65, .n = 64, .k = 64, .dtype = DType::bf16};
  EXPECT_EQ(make_plan(rows).rung, amx ? "amx" : "packed");
  rows.order_b = MatrixOrder::column_major;
  EXPECT_EQ(make_plan(rows).rung, amx ? "few_rows" : "packed");
  rows.m = 129;
  EXPECT_EQ(make_plan(rows).rung, amx ? "amx" : "packed");
  EXPECT_EQ(make_plan({.m = 16, .n = 64, .k = 64}).rung, "few_rows");
  EXPECT_EQ(make_plan({.m = 17, .n = 64, .k = 64}).rung, "packed");
  MatmulProblem turned{.m = 64, .n = 16, .k = 64};
  EXPECT_EQ(make_plan(turned).rung, "packed");
  turned.order_c = MatrixOrder::column_major;
  EXPECT_EQ(make_plan(turned).rung, "few_rows");
  EXPECT_EQ(bf16.bytes, 2.0 * 64 * 64 * 2 + 64.0 * 64 * 4);
  EXPECT_EQ(bf16.problem.flops(), 2.0 * 64 * 64 * 64);
  for (const InstructionSet isa : available()) {
    Context context;
    context.isa = isa;
    const bool multiplies_bf16 = isa == InstructionSet::avx512_bf16 ||
                                 isa == InstructionSet::amx_bf16 ||
                                 isa == InstructionSet::neon_bf16;
    const MatmulPlan plan =
        make_plan({.m = 64, .n = 64, .k = 64, .dtype = DType::bf16}, {}, context);
    EXPECT_EQ(plan.compute, multiplies_bf16 ? DType::bf16 : DType::f32) << name(isa);
  }
}

TEST(Matmul, F64IsTheReference) {
  MatmulProblem p{.m = 7, .n = 5, .k = 3, .dtype = DType::f64, .output = DType::f64, .bias = true};
  MatmulData data(p, 1);
  EXPECT_EQ(make_plan(p).backend, Backend::reference);
  matmul(data.inputs, data.c);
  const auto* a = static_cast<const double*>(data.inputs.a.data);
  const auto* b = static_cast<const double*>(data.inputs.b.data);
  const auto* bias = static_cast<const double*>(data.inputs.bias.data);
  const auto* c = static_cast<const double*>(data.c.data);
  for (int i = 0; i < 7; ++i) {
    for (int j = 0; j < 5; ++j) {
      double sum = bias[j];
      for (int l = 0; l < 3; ++l) sum += a[i * 3 + l] * b[l * 5 + j];
      EXPECT_NEAR(c[i * 5 + j], sum, 1e-13);
    }
  }
}

// What tensor cores keep of sums of 8-bit floats is accepted, and nothing between it and fp64.
TEST(Matmul, Of8BitFloatsIsExactOrAsTensorCoresAdd) {
  MatmulProblem p{.m = 4, .n = 5, .k = 300, .dtype = DType::u8};
  p.float8 = Float8::e4m3;
  MatmulData data(p, 1);
  matmul(make_plan(p), data.inputs, data.c);
  EXPECT_TRUE(check_matmul(data).passed()) << check_matmul(data).where;
  const auto set = [&](double share_of_exact) {
    for (std::int64_t i = 0; i < p.m; ++i) {
      for (std::int64_t j = 0; j < p.n; ++j) {
        const double exact = reference::matmul_element(p, data.inputs, 0, i, j).value;
        const double cores = reference::matmul_element_float8(p, data.inputs, 0, i, j);
        static_cast<float*>(data.c.data)[data.c.offset({0, i, j})] =
            static_cast<float>(share_of_exact * exact + (1 - share_of_exact) * cores);
      }
    }
  };
  set(0);
  EXPECT_TRUE(check_matmul(data).passed()) << check_matmul(data).where;
  set(0.5);
  EXPECT_FALSE(check_matmul(data).passed());
}

TEST(Matmul, ABatchStrideOfZeroSharesAMatrix) {
  const MatmulProblem p{.batch = 3, .m = 20, .n = 30, .k = 40};
  MatmulData data(p, 5);
  data.inputs.b.strides[0] = 0;
  matmul(data.inputs, data.c);
  EXPECT_TRUE(check_matmul(data).passed()) << check_matmul(data).where;
}

// Of columns, and of the rows that a column-major C is computed as.
TEST(Matmul, ABiasMayHaveAnyStride) {
  for (const std::string& rung : matmul_rungs(Backend::cpu)) {
    for (const MatrixOrder order : {MatrixOrder::row_major, MatrixOrder::column_major}) {
      if (rung == "amx") continue;  // the same verb
      MatmulData data({.m = 20, .n = 70, .k = 40, .order_c = order, .bias = true}, 6);
      std::vector<float> apart(3 * 70, NAN);
      for (std::size_t i = 0; i < 70; ++i)
        apart[3 * i] = static_cast<const float*>(data.inputs.bias.data)[i];
      data.inputs.bias = tensor(apart.data(), {70});
      data.inputs.bias.strides[0] = 3;
      matmul(data.inputs, data.c, Activation::none, {.rung = rung});
      EXPECT_TRUE(check_matmul(data).passed()) << rung << " " << name(order);
    }
  }
}

// The cut into tasks and the order of sums are the same for every number of threads.
TEST(Matmul, ThreadsDoNotChangeABit) {
  std::vector<MatmulProblem> problems;
  for (const DType dtype : {DType::f32, DType::bf16}) {
    problems.push_back({.m = 300, .n = 700, .k = 500, .dtype = dtype});
    problems.push_back({.m = 300, .n = 700, .k = 1000, .dtype = dtype});
    problems.back().order_b = MatrixOrder::column_major;
    problems.push_back({.m = 1, .n = 150, .k = 9000, .dtype = dtype});
    problems.push_back({.m = 13, .n = 170, .k = 2500, .dtype = dtype});
    problems.push_back(problems.back());
    problems.back().order_b = MatrixOrder::column_major;
  }
  for (const MatmulProblem& p : problems) {
    MatmulData one(p, 9);
    Context context;
    context.executor = make_thread_pool(1);
    matmul(one.inputs, one.c, Activation::none, {}, context);
    for (const int threads : {2, 4, 16}) {
      MatmulData several(p, 9);
      context.executor = make_thread_pool(threads);
      matmul(several.inputs, several.c, Activation::none, {}, context);
      EXPECT_EQ(one.bytes_c, several.bytes_c) << to_string(p) << ", " << threads << " threads";
    }
  }
}

TEST(Matmul, InfinityAndNanComeThrough) {
  MatmulData data({.m = 20, .n = 20, .k = 40}, 3);
  auto* a = static_cast<float*>(data.inputs.a.data);
  a[3 * 40 + 7] = INFINITY;
  a[5 * 40 + 9] = NAN;
  matmul(data.inputs, data.c, Activation::relu);
  const auto* c = static_cast<const float*>(data.c.data);
  for (int j = 0; j < 20; ++j) {
    EXPECT_TRUE(std::isinf(c[3 * 20 + j]) || c[3 * 20 + j] == 0) << j;
    EXPECT_TRUE(std::isnan(c[5 * 20 + j])) << j;
    EXPECT_TRUE(std::isfinite(c[4 * 20 + j])) << j;
  }
}

TEST(Matmul, ARefusalNamesTheArgumentItsValueAndWhatIsAccepted) {
  MatmulData data({.m = 4, .n = 6, .k = 8}, 1);
  const auto contains = [](const std::string& text, const std::string& part) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  MatmulInputs inputs = data.inputs;
  inputs.b.shape[1] = 9;
  contains(refusal([&] { matmul(inputs, data.c); }), "accepted is f32[8, 6]");
  inputs = data.inputs;
  inputs.a.strides[2] = 2;
  contains(refusal([&] { matmul(inputs, data.c); }), "stride 1 in one of the last two dimensions");
  inputs = data.inputs;
  inputs.a.dtype = DType::i32;
  contains(refusal([&] { matmul(inputs, data.c); }), "dtype is i32");
  contains(refusal([&] { matmul(data.inputs, data.inputs.a); }), "accepted is f32[8, 8]");
  contains(refusal([&] { make_plan({.m = -1, .n = 1, .k = 1}); }), "m is -1");
  contains(refusal([&] {
             make_plan({.m = 1, .n = 1, .k = 1, .dtype = DType::bf16, .output = DType::f16});
           }),
           "output is f16; accepted are bf16 and f32");
  MatmulOptions options;
  options.rung = "fast";
  contains(refusal([&] { make_plan({.m = 1, .n = 1, .k = 1}, options); }),
           "rung is fast; accepted on the cpu backend are naive, blocked, few_rows, packed, amx");
  options.rung = "amx";
  contains(refusal([&] { make_plan({.m = 1, .n = 1, .k = 1}, options); }), "dtype is f32");
  MatmulProblem with_bias{.m = 4, .n = 6, .k = 8, .bias = true};
  contains(refusal([&] { matmul(make_plan(with_bias), data.inputs, data.c); }),
           "bias is not given");
  MatmulProblem masked{.m = 4, .n = 6, .k = 8, .masked = MaskedMatrix::b};
  contains(refusal([&] { make_plan(masked); }), "block is 0; accepted is 1 and up");
  contains(refusal([&] { make_plan({.m = 1, .n = 1, .k = 1, .block = 16}); }),
           "block is 16; accepted is 0 where no matrix is masked");
  masked.block = 3;
  contains(refusal([&] { matmul(make_plan(masked), data.inputs, data.c); }),
           "block_mask is not given, masked is b");
  const std::vector<std::uint8_t> blocks(6, 1);
  inputs = data.inputs;
  inputs.block_mask = tensor(blocks.data(), {2, 3});
  contains(refusal([&] { matmul(make_plan(masked), inputs, data.c); }), "accepted is u8[3, 2]");
  contains(refusal([&] { matmul(inputs, data.c); }), "block_mask is given, masked is none");
  options.rung = "blocked";
  contains(refusal([&] { make_plan(masked, options); }), "rung blocked: masked is b");
  options.rung = "amx";
  const MatmulProblem square{.m = 8, .n = 8, .k = 8};
  MatmulData whole(square, 1);
  contains(refusal([&] { matmul(whole.inputs, whole.inputs.a); }), "overlaps");
  contains(refusal([&] { parse_activation("swish"); }), "'swish'; accepted are none, relu");
}

TEST(Matmul, NumbersThatAreNoEnumeratorsAreRefused) {
  MatmulData data({.m = 4, .n = 6, .k = 8}, 1);
  const auto expect = [](const std::string& text, const std::string& sentence) {
    EXPECT_NE(text.find(sentence), std::string::npos) << text;
  };
  expect(refusal([&] { matmul(data.inputs, data.c, static_cast<Activation>(33)); }),
         "activation is 33; accepted are the enumerators of Activation");
  const MatmulProblem square{.m = 8, .n = 8, .k = 8};
  MatmulProblem spoilt = square;
  spoilt.order_a = static_cast<MatrixOrder>(4);
  expect(refusal([&] { make_plan(spoilt); }), "order_a is 4; accepted are");
  spoilt = square;
  spoilt.float8 = static_cast<Float8>(5);
  expect(refusal([&] { make_plan(spoilt); }), "float8 is 5; accepted are");
  spoilt = square;
  spoilt.masked = static_cast<MaskedMatrix>(6);
  expect(refusal([&] { make_plan(spoilt); }), "masked is 6; accepted are");
  expect(refusal([&] {
           make_plan(square, {.device = {DeviceType::cpu, 1}});
         }),
         "device is cpu:1; accepted are");
  for (const Backend backend : {static_cast<Backend>(9), Backend::reference, Backend::cpu}) {
    Context context;
    context.isa = static_cast<InstructionSet>(99);
    expect(refusal([&] { make_plan(square, {.backend = backend}, context); }),
           name(backend) == "unknown" ? "backend is 9; accepted are"
                                      : "isa of the context is 99; accepted are");
  }
}

}  // namespace
}  // namespace attn
