// Messages show the beginning of what a user wrote and how long it is, whatever was written.
#include "core/text/echo.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "attn/attn.hpp"
#include "core/platform/platform.hpp"

namespace attn {
namespace {

TEST(Echo, ShowsShortTextsWhole) {
  EXPECT_EQ(core::echo("b1_n8"), "b1_n8");
  EXPECT_EQ(core::echo(std::string(60, 'x')), std::string(60, 'x'));
  EXPECT_EQ(core::echo(std::string(61, 'x')), std::string(60, 'x') + "... (61 bytes)");
}

TEST(Echo, MessagesAreShortWhateverIsWritten) {
  const std::string hostile(1 << 20, 'x');
  const expr::Symbols& s = expr::symbols();
  std::string group = "(query", sum = "query";
  for (int i = 0; i < 60; ++i) group += "+key";
  for (int i = 0; i < 40; ++i) sum += "+" + group + ")";
  std::vector<float> x(4);
  const Tensor t = tensor(x.data(), {1, 1, 1, 4});
  const Inputs inputs{.q = t, .k = t, .v = t};
  const Outputs outputs{.o = t};
  Inputs with_buffer = inputs;
  with_buffer.buffers = {{hostile, t}};
  Problem long_mask;
  long_mask.mask = expr::parse(sum + " < 3");
  expr::Expr many_buffers = s.key == s.key;
  for (int i = 0; i < 100; ++i) {
    const expr::Buffer buffer(fmt::format("{:x>50}", i), tensor(x.data(), {4}));
    many_buffers = many_buffers && buffer[s.key] > 0;
  }
  const std::vector<std::pair<const char*, std::function<void()>>> calls = {
      {"token", [&] { parse_problem(hostile); }},
      {"descriptor", [&] { parse_problem("b1_n8_h1_d8_mask(key<" + sum + ")_nonsense"); }},
      {"value of a token", [&] { parse_problem("b1_n" + hostile); }},
      {"second token", [&] { parse_problem("b1_b1_mask(key<" + sum + ")"); }},
      {"dtype", [&] { parse_dtype(hostile); }},
      {"backend", [&] { parse_backend(hostile); }},
      {"algorithm", [&] { parse_algorithm(hostile); }},
      {"instruction set", [&] { parse_instruction_set(hostile); }},
      {"activation", [&] { parse_activation(hostile); }},
      {"word of an expression", [&] { expr::parse(hostile); }},
      {"number of an expression", [&] { expr::parse(std::string(1 << 20, '9')); }},
      {"operand", [&] { (void)(expr::parse(sum) && true); }},
      {"buffer name", [&] { expr::Buffer(hostile, t); }},
      {"scalar name", [&] { expr::scalar(hostile, s.query); }},
      {"derivative", [&] { expr::derivative(expr::parse(sum)); }},
      {"classify", [&] { expr::classify(expr::parse(sum), {}); }},
      {"substitute", [&] { expr::substitute(s.score, expr::Op::score, expr::parse(sum)); }},
      {"name of a binding", [&] { forward({}, with_buffer, outputs); }},
      {"problem", [&] { forward(long_mask, inputs, {}); }},
      {"names of buffers", [&] { forward({.mask = many_buffers}, with_buffer, outputs); }},
      {"cache folder", [&] { core::PrivateFolder(std::string("/") + hostile); }},
      {"kernel",
       [&] { make_plan(parse_problem("b1_n8_h1_d8"), Phase::forward, {.kernel = hostile}); }},
      {"rung", [&] { make_plan(MatmulProblem{.m = 1, .n = 1, .k = 1}, {.rung = hostile}); }},
  };
  for (const auto& [what, call] : calls) {
    try {
      call();
      ADD_FAILURE() << what << " was accepted";
    } catch (const Error& error) {
      const std::string message = error.what();
      EXPECT_LT(message.size(), 1500) << what << ": " << message.substr(0, 200);
      EXPECT_GT(message.size(), 20) << what;
    }
  }
}

}  // namespace
}  // namespace attn
