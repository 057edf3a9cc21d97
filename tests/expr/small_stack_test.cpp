// Text that is nested as deep as it may be, on a thread with a stack of 128 KB.
#include <gtest/gtest.h>
#include <pthread.h>

#include <functional>
#include <string>

#include "attn/error.hpp"
#include "attn/expr.hpp"

namespace attn::expr {
namespace {

// Runs on a thread with so many bytes of stack.
void on_stack_of(std::size_t bytes, const std::function<void()>& body) {
  pthread_attr_t attributes;
  ASSERT_EQ(pthread_attr_init(&attributes), 0);
  ASSERT_EQ(pthread_attr_setstacksize(&attributes, bytes), 0);
  pthread_t thread{};
  const auto run = [](void* argument) -> void* {
    (*static_cast<const std::function<void()>*>(argument))();
    return nullptr;
  };
  ASSERT_EQ(pthread_create(&thread, &attributes, run, const_cast<std::function<void()>*>(&body)),
            0);
  pthread_join(thread, nullptr);
  pthread_attr_destroy(&attributes);
}

std::string repeat(const std::string& text, int times) {
  std::string all;
  for (int i = 0; i < times; ++i) all += text;
  return all;
}

TEST(SmallStack, NestedTextIsReadOrRefused) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || !defined(__OPTIMIZE__)
  GTEST_SKIP() << "functions take more stack here";
#endif
  struct Nested {
    const char *open, *inside, *close;
  };
  for (const Nested& text :
       {Nested{"(", "score", ")"}, Nested{"-(", "score", ")"}, Nested{"!", "(key<3)", ""},
        Nested{"exp(", "score", ")"}, Nested{"exp((", "score", "))"}, Nested{"(key*", "query", ")"},
        Nested{"min(key,", "query", ")"}}) {
    for (const int levels : {100, 250, 300, 600, 100'000}) {
      bool refused = false, read = false;
      on_stack_of(std::size_t{128} << 10, [&] {
        try {
          const Expr e =
              parse(repeat(text.open, levels) + text.inside + repeat(text.close, levels));
          read = !e.empty() && !to_string(e).empty();
        } catch (const Error& error) {
          refused = std::string(error.what()).find("levels") != std::string::npos;
        }
      });
      EXPECT_NE(read, refused) << levels << " times " << text.open;
      EXPECT_TRUE(read || levels > 100) << text.open;
      EXPECT_TRUE(refused || levels < 600 || text.open[0] == '!') << text.open;  // !!x is x
    }
  }
}

}  // namespace
}  // namespace attn::expr
