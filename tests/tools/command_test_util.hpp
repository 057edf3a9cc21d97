// Runs the built command as a shell would.
#pragma once

#include <fmt/format.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstdlib>
#include <string>

#include "io_test_util.hpp"

namespace attn::io {

inline constexpr const char* kSample = ATTN_SOURCE_DIR "/examples/data/minilm_layer3.safetensors";

struct Result {
  int code = -1;
  std::string out, err;
  std::string text() const {
    return fmt::format("exit {}\nstdout: {}\nstderr: {}", code, out, err);
  }
  bool out_has(std::string_view part) const { return out.find(part) != std::string::npos; }
  bool err_has(std::string_view part) const { return err.find(part) != std::string::npos; }
};

class Command : public IoTest {
 protected:
  Result attn(const std::string& arguments) const {
    const std::string line = fmt::format("'{}' {} >'{}' 2>'{}'", ATTN_COMMAND, arguments,
                                         path("out").native(), path("err").native());
    const int status = std::system(line.c_str());
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, load(path("out")), load(path("err"))};
  }
  // Refused with this code and one line on stderr that has every part.
  void expect_refused(const std::string& arguments, int code,
                      std::initializer_list<std::string_view> parts) const {
    SCOPED_TRACE(arguments);
    const Result result = attn(arguments);
    EXPECT_EQ(result.code, code) << result.text();
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.text();
    EXPECT_TRUE(result.err.starts_with("attn: ")) << result.text();
    for (const std::string_view part : parts) EXPECT_TRUE(result.err_has(part)) << result.text();
  }
  std::string quoted(const std::string& name) const { return "'" + path(name).native() + "'"; }
};

}  // namespace attn::io
