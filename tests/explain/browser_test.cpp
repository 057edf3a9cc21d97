// The page's own scripts in a real browser: what they compute against the library.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "explain/page.hpp"
#include "explain_test_util.hpp"

namespace attn::explain {
namespace {

namespace fs = std::filesystem;

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

  // The document after its scripts have run. As root a browser needs --no-sandbox.
  std::string document(const std::string& text, const std::string& step = "") const {
    std::ofstream(folder_ / "page.html") << text;
    const std::string line = fmt::format(
        "timeout 300 {} --headless --disable-gpu --no-sandbox --disable-dev-shm-usage "
        "--user-data-dir='{}' --virtual-time-budget=2000 --dump-dom 'file://{}{}' >'{}' 2>'{}'",
        program_, (folder_ / "profile").native(), (folder_ / "page.html").native(), step,
        (folder_ / "document").native(), (folder_ / "log").native());
    EXPECT_EQ(std::system(line.c_str()), 0) << load("log");
    return load("document");
  }

 private:
  std::string load(const char* name) const {
    std::ifstream file(folder_ / name, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  std::string program_;
  fs::path folder_;
};

std::string between(const std::string& text, const std::string& open, const std::string& close) {
  const std::size_t begin = text.find(open);
  if (begin == std::string::npos) return {};
  const std::size_t from = begin + open.size();
  return text.substr(from, text.find(close, from) - from);
}

// Every script of the page, none of its elements.
std::string scripts() {
  std::string all;
  const std::string text = page("", Json::object());
  for (std::size_t at = 0; (at = text.find("<script>", at)) != std::string::npos; ++at) {
    all += text.substr(at, text.find("</script>", at) + 9 - at) + "\n";
  }
  return all;
}

TEST_F(Browser, PageShowsTheStepOfItsAddress) {
  const Json data = problem_json(request("n256_hq4_hk2_d64_causal_sink_bf16"), 64);
  const std::string document_text = document(page("t", data), "#flash_attention_2/4x4/5");
  EXPECT_NE(document_text.find("This page has checked itself"), std::string::npos);
  EXPECT_NE(between(document_text, R"(id="counter">)", "<").find("step 5 of "), std::string::npos);
  EXPECT_NE(between(document_text, R"(id="explanation")", "</div>").find("New maxima"),
            std::string::npos);
  const std::string shown = document_text.substr(0, document_text.find(R"(<script type=)"));
  for (const char* part : {">undefined<", ">NaN<", "undefined ", "[object "}) {
    EXPECT_EQ(shown.find(part), std::string::npos) << part;
  }
}

// Several problems in one start. ATTN_EXPLAIN_PROBLEMS=1000 takes more of them.
TEST_F(Browser, WalksEndAtTheReferenceAndCountWhatTheModelsSay) {
  const char* wanted = std::getenv("ATTN_EXPLAIN_PROBLEMS");
  const int problems = wanted == nullptr ? 60 : std::atoi(wanted);
  Json list = Json::array();
  for (int i = 0; i < problems; ++i) {
    list.push_back(problem_json(random_request(1000 + static_cast<std::uint64_t>(i)), 4));
  }
  std::string text = list.dump(-1, ' ', true);
  for (std::size_t at = 0; (at = text.find('<', at)) != std::string::npos;) {
    text.replace(at, 1, "\\u003c");
  }
  const std::string document_text = document(
      R"(<!DOCTYPE html><meta charset="utf-8"><script type="application/json" id="problems">)" +
      text + "</script>\n" + scripts() + R"(<pre id="results"></pre><script>
        const problems = JSON.parse(document.getElementById("problems").textContent);
        document.getElementById("results").textContent = JSON.stringify(problems.map(selfCheck));
      </script>)");
  const Json results =
      Json::parse(between(document_text, R"(<pre id="results">)", "</pre>"), nullptr, false);
  ASSERT_FALSE(results.is_discarded()) << document_text.substr(document_text.size() - 500);
  ASSERT_EQ(results.size(), static_cast<std::size_t>(problems));
  for (int i = 0; i < problems; ++i) {
    const Json& result = results[static_cast<std::size_t>(i)];
    const Json& data = list[static_cast<std::size_t>(i)];
    SCOPED_TRACE(data["problem"]["text"]);
    EXPECT_TRUE(result["passed"]) << result.dump();
    ASSERT_TRUE(result["error"].is_number()) << result.dump();
    EXPECT_LE(result["error"], 1e-9);
    EXPECT_EQ(result["counts"], 0);
  }
}

}  // namespace
}  // namespace attn::explain
