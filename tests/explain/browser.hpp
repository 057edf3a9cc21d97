// A page in a real browser.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "explain/page.hpp"
#include "explain_test_util.hpp"

namespace attn::explain {

namespace fs = std::filesystem;

// What stands between the first `open` and the next `close`; empty where there is none.
inline std::string between(const std::string& text, const std::string& open,
                           const std::string& close) {
  const std::size_t begin = text.find(open);
  if (begin == std::string::npos) return {};
  const std::size_t from = begin + open.size();
  return text.substr(from, text.find(close, from) - from);
}

class Browser : public testing::Test {
 protected:
  void SetUp() override {
    for (const char* name : {"chromium", "chromium-browser", "google-chrome"}) {
      if (std::system(fmt::format("command -v {} >/dev/null 2>&1", name).c_str()) == 0) {
        program_ = name;
        break;
      }
    }
    if (program_.empty()) GTEST_SKIP() << "no browser is installed (Debian's package chromium)";
    folder_ = fs::temp_directory_path() / fmt::format("attn_browser_{}", ::getpid());
    fs::create_directories(folder_);
  }
  void TearDown() override {
    if (!folder_.empty()) fs::remove_all(folder_);
  }

  // The document after its scripts have run. As root a browser needs --no-sandbox. flags: more of
  // the browser's options.
  std::string document(const std::string& text, const std::string& step = "",
                       const std::string& flags = "") const {
    std::ofstream(folder_ / "page.html") << text;
    const std::string line = fmt::format(
        "timeout 300 {} --headless --disable-gpu --no-sandbox --disable-dev-shm-usage "
        "--user-data-dir='{}' --virtual-time-budget=2000 {} --dump-dom 'file://{}{}' >'{}' 2>'{}'",
        program_, (folder_ / "profile").native(), flags, (folder_ / "page.html").native(), step,
        (folder_ / "document").native(), (folder_ / "log").native());
    EXPECT_EQ(std::system(line.c_str()), 0) << load("log");
    return load("document");
  }

  std::string load(const char* name) const {
    std::ifstream file(folder_ / name, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  fs::path folder_;

 private:
  std::string program_;
};

}  // namespace attn::explain
