// How much stack is taken by the deepest text and the deepest trees that are accepted: threads may
// have as little as 128 KB, which also hold their thread-local storage and what the dynamic linker
// saves.
#include <gtest/gtest.h>
#include <pthread.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "attn/error.hpp"
#include "attn/expr.hpp"
#include "attn/problem.hpp"
#include "core/expr/bounds.hpp"
#include "core/expr/build.hpp"
#include "core/expr/identity.hpp"
#include "core/expr/program.hpp"
#include "core/problem/prefix_expressions.hpp"
#include "core/text/shorthands.hpp"
#include "cuda/codegen/expression_gradients.hpp"
#include "cuda/codegen/mask_bounds.hpp"
#include "cuda/codegen/mask_buffers.hpp"
#include "dist/rewrite.hpp"

namespace attn::expr {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kIsSanitized = true;  // they add to each function's stack, and look at its bytes
#else
constexpr bool kIsSanitized = false;
#endif
#if defined(__OPTIMIZE__)
constexpr std::size_t kMostStack = std::size_t{80} << 10;
#else
constexpr std::size_t kMostStack = std::size_t{512} << 10;  // functions take more
#endif

// The bytes of stack that the body takes.
std::size_t stack_of(const std::function<void()>& body) {
  constexpr std::size_t kBytes = std::size_t{1} << 20;
  constexpr std::size_t kPage = 4096;
  constexpr auto kUntouched = static_cast<unsigned char>(0xa5);
  std::vector<unsigned char> memory(kBytes + kPage);
  void* aligned = memory.data();
  std::size_t space = memory.size();
  auto* const stack = static_cast<unsigned char*>(std::align(kPage, kBytes, aligned, space));
  std::memset(stack, kUntouched, kBytes);
  struct Start {
    const std::function<void()>* body;
    const unsigned char* top;
  } start{&body, nullptr};
  const auto run = [](void* argument) -> void* {
    auto* const s = static_cast<Start*>(argument);
    s->top = static_cast<const unsigned char*>(__builtin_frame_address(0));
    (*s->body)();
    return nullptr;
  };
  pthread_attr_t attributes;
  pthread_t thread{};
  EXPECT_EQ(pthread_attr_init(&attributes), 0);
  EXPECT_EQ(pthread_attr_setstack(&attributes, stack, kBytes), 0);
  EXPECT_EQ(pthread_create(&thread, &attributes, run, &start), 0);
  EXPECT_EQ(pthread_join(thread, nullptr), 0);
  pthread_attr_destroy(&attributes);
  const unsigned char* const lowest =
      std::find_if(stack, stack + kBytes, [](unsigned char byte) { return byte != kUntouched; });
  return static_cast<std::size_t>(start.top - lowest);
}

std::string repeat(const std::string& text, int times) {
  std::string all;
  for (int i = 0; i < times; ++i) all += text;
  return all;
}

TEST(SmallStack, NestedTextIsReadOrRefused) {
  if (kIsSanitized) GTEST_SKIP() << "the stack is not that of other builds";
  struct Nested {
    const char *open, *inside, *close;
  };
  for (const Nested& text :
       {Nested{"(", "score", ")"}, Nested{"-(", "score", ")"}, Nested{"!", "(key<3)", ""},
        Nested{"exp(", "score", ")"}, Nested{"exp((", "score", "))"}, Nested{"(key*", "query", ")"},
        Nested{"min(key,", "query", ")"}}) {
    for (const int levels : {100, 250, 300, 600, 100'000}) {
      bool refused = false, read = false;
      const std::size_t stack = stack_of([&] {
        try {
          const Expr e =
              parse(repeat(text.open, levels) + text.inside + repeat(text.close, levels));
          read = !e.empty() && !to_string(e).empty();
        } catch (const Error& error) {
          refused = std::string(error.what()).find("levels") != std::string::npos;
        }
      });
      EXPECT_LE(stack, kMostStack) << levels << " times " << text.open;
      EXPECT_NE(read, refused) << levels << " times " << text.open;
      EXPECT_TRUE(read || levels > 100) << text.open;
      EXPECT_TRUE(refused || levels < 600 || text.open[0] == '!') << text.open;  // !!x is x
    }
  }
}

// A tree that grows by a level a step.
struct Growth {
  const char* name;
  Expr leaf;
  std::function<Expr(const Expr&)> step;
};

std::vector<Growth> growths(const Buffer& floats, const Buffer& ints) {
  const Symbols& s = symbols();
  const Expr mask = s.key < s.query;
  return {
      {"tanh", s.score, [](const Expr& e) { return tanh(e); }},
      {"abs exp", s.score, [](const Expr& e) { return e.node().op == Op::abs ? exp(e) : abs(e); }},
      {"-sqrt", s.score, [](const Expr& e) { return e.node().op == Op::neg ? sqrt(e) : -e; }},
      {"e + key", s.score, [&s](const Expr& e) { return e + s.key; }},
      {"key * e", s.score, [&s](const Expr& e) { return s.key * e; }},
      {"e / key", s.score, [&s](const Expr& e) { return e / s.key; }},
      {"min", s.score, [&s](const Expr& e) { return min(s.key, e); }},
      {"select", s.score, [mask](const Expr& e) { return select(mask, e, 2.5F); }},
      {"times a load", floats[s.key], [&](const Expr& e) { return e * floats[s.key]; }},
      {"-floor", sqrt(s.key),
       [](const Expr& e) { return e.node().op == Op::floor ? -e : floor(e); }},
      {"index", s.key, [&](const Expr& e) { return ints[e]; }},
      {"shift", s.key, [&s](const Expr& e) { return e << s.query; }},
      {"to_int", s.key,
       [](const Expr& e) { return e.type() == Type::int32 ? to_float(e) : to_int(e); }},
      {"condition", s.head < 3, [mask, &s](const Expr& e) { return select(e, mask, s.key < 3); }},
      {"e && mask", s.head < 3, [mask](const Expr& e) { return e && mask; }},
      {"mask && e", s.head < 3, [mask](const Expr& e) { return mask && e; }},
      {"mask || e", s.head < 3, [mask](const Expr& e) { return mask || e; }},
      {"mask == e", s.head < 3, [mask](const Expr& e) { return mask == e; }},
  };
}

Expr deepest(const Growth& growth) {
  Expr e = growth.leaf;
  for (int i = 0; i < kMaxDepth && e.node().depth < kMaxDepth; ++i) e = growth.step(e);
  return e;
}

Problem problem_of(const Expr& e) {
  Problem p;
  p.batch = p.heads_q = p.heads_k = 1;
  p.seqlen_q = p.seqlen_k = p.head_dim = p.head_dim_v = 16;
  (e.type() == Type::boolean ? p.mask : p.score) = e;
  return p;
}

// Calls use(name, operation) for all that walks a tree; each operation takes two equal trees.
template <class Use>
void for_each_operation(const std::vector<Buffer>& buffers_of_text, const Use& use) {
  static const Tile tile{.query_max = 9, .key_max = 9, .seqlen_q = 10, .seqlen_k = 10};
  static const Point at{.score = 1, .query = 3, .key = 4, .seqlen_q = 10, .seqlen_k = 10};
  const auto is_float = [](const Expr& e) { return e.type() == Type::float32; };
  using Tree = const Expr&;
  use("to_string", [](Tree e, Tree) { to_string(e); });
  use("parse", [&](Tree e, Tree) { parse(to_string(e), buffers_of_text); });
  use("same", [](Tree e, Tree other) { EXPECT_TRUE(same(e, other)); });
  use("depends_on", [](Tree e, Tree) { EXPECT_FALSE(depends_on(e, Op::batch)); });
  use("buffers", [](Tree e, Tree) { EXPECT_LE(buffers(e).size(), 1U); });
  use("substitute", [](Tree e, Tree) { substitute(e, Op::key, symbols().head); });
  use("derivative", [&](Tree e, Tree) {
    if (is_float(e)) derivative(e);
  });
  use("load_derivatives", [&](Tree e, Tree) {
    if (is_float(e)) load_derivatives(e, "floats");
  });
  use("evaluate<float>", [](Tree e, Tree) { evaluate<float>(e, at); });
  use("evaluate<double>", [](Tree e, Tree) { evaluate<double>(e, at); });
  use("bounds_of", [](Tree e, Tree) { bounds_of(e, tile); });
  use("compile", [](Tree e, Tree) { compile(e); });
  use("plans_alike", [](Tree e, Tree other) { EXPECT_TRUE(plans_alike(e, other)); });
  use("plan_hash", [](Tree e, Tree other) { EXPECT_EQ(plan_hash(e), plan_hash(other)); });
  use("without_data", [](Tree e, Tree) { without_data(e); });
  use("text of a problem", [](Tree e, Tree) { attn::to_string(problem_of(e)); });
  use("rename_buffer", [](Tree e, Tree) { core::rename_buffer(e, "floats", "other"); });
  use("over_own_keys", [](Tree e, Tree) { core::over_own_keys(e, 4); });
  use("sees_first_keys", [&](Tree e, Tree) {
    Problem p = problem_of(e);
    p.seqlen_prefix = 8;
    core::sees_first_keys(p, 4);
  });
  use("ranks", [](Tree e, Tree) { dist::Rewriter({{Op::key, symbols().head}})(e); });
  use("mask_bounds", [&](Tree e, Tree) {
    if (is_float(e) || e.type() == Type::int32) return;
    cuda::mask_bounds(e);
    cuda::mask_bounds(e, true);
    cuda::buffers_matter(e, tile);
  });
  use("print_slope", [&](Tree e, Tree) {
    if (is_float(e)) cuda::print_slope(e, TanhSlope::exponentials);
  });
}

TEST(SmallStack, DeepTreesAreWalked) {
  if (kIsSanitized) GTEST_SKIP() << "the stack is not that of other builds";
  const std::vector<float> float_data(64);
  const std::vector<std::int32_t> int_data(64);
  const std::vector<Buffer> both{Buffer("floats", tensor(float_data.data(), {64})),
                                 Buffer("ints", tensor(int_data.data(), {64}))};
  for (const Growth& growth : growths(both[0], both[1])) {
    Expr e = deepest(growth);
    const Expr other = deepest(growth);
    ASSERT_EQ(e.node().depth, kMaxDepth) << growth.name;
    for_each_operation(both, [&](const char* name, const auto& operation) {
      const std::size_t stack = stack_of([&] {
        try {
          operation(e, other);
        } catch (const Error& error) {  // a derivative may have more levels than are accepted
          EXPECT_NE(std::string(error.what()).find("levels"), std::string::npos) << error.what();
        }
      });
      EXPECT_LE(stack, kMostStack) << name << " of " << growth.name;
    });
    EXPECT_LE(stack_of([&] { e = Expr(); }), kMostStack) << "the end of " << growth.name;
  }
}

}  // namespace
}  // namespace attn::expr
