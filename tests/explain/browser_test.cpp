// The page's own scripts in a real browser: what they compute against the library.
#include "browser.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>

namespace attn::explain {
namespace {

constexpr Tiling kBlocks[] = {{16, 64}, {32, 32}, {64, 8}};
constexpr const char* kAlgorithms[] = {"standard", "flash_attention", "flash_attention_2",
                                       "block_sparse"};

// Whether the tiles of the mask are known without made-up buffers, which `attn io` does not make.
bool is_counted(const Problem& p) {
  if (p.type_o.given() && p.type_o != p.dtype) return false;
  if (p.mask.empty()) return true;
  const auto buffers = expr::buffers(p.mask);
  return std::all_of(buffers.begin(), buffers.end(),
                     [](const auto& buffer) { return buffer->tensor().data != nullptr; });
}

class BrowserModels : public Browser {
 protected:
  // The page's models against `attn io --json`, byte for byte: of every third problem, which have
  // the same blocks.
  void compare_with_io(const std::vector<Request>& requests, const Json& results, int kind,
                       const std::string& phase) const {
    std::vector<std::size_t> asked;
    std::ofstream problems(folder_ / "problems");
    for (auto i = static_cast<std::size_t>(kind); i < requests.size(); i += 3) {
      const Problem& p = requests[i].problem;
      // Paged K and V have no backward pass.
      if (!is_counted(p) || (phase == "backward" && p.layout_k == Layout::paged)) continue;
      asked.push_back(i);
      problems << to_string(p) << "\n";
    }
    problems.close();
    ASSERT_FALSE(asked.empty());
    const std::string line = fmt::format(
        "'{}' io '@{}' --algorithm {} --phase {} --block-q {} --block-k {} --json '{}' >'{}' 2>&1",
        ATTN_COMMAND, (folder_ / "problems").native(), fmt::join(kAlgorithms, ","), phase,
        kBlocks[kind].block_q, kBlocks[kind].block_k, (folder_ / "io.json").native(),
        (folder_ / "log").native());
    ASSERT_EQ(std::system(line.c_str()), 0) << load("log");
    const Json rows = Json::parse(load("io.json"))["results"];
    ASSERT_EQ(rows.size(), asked.size() * std::size(kAlgorithms));
    for (std::size_t r = 0; r < rows.size(); ++r) {
      const Json& row = rows[r];
      const Json& models = results[asked[r / std::size(kAlgorithms)]]["models"][phase];
      for (const std::string direction : {"read_bytes", "written_bytes"}) {
        EXPECT_EQ(models[row["algorithm"].get<std::string>()][direction], row["model"][direction])
            << row["problem"] << phase << row["algorithm"] << direction;
        EXPECT_EQ(models["compulsory"][direction], row["compulsory"][direction])
            << row["problem"] << phase << direction;
      }
    }
  }
};

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
  EXPECT_NE(between(document_text, R"(id="listing")", "</ol>").find("forward_sm80.cuh:"),
            std::string::npos);
  const std::string memories = between(document_text, R"(id="memories")", "</section>");
  for (const char* part : {"Slow memory", "nothing moves in this step", "On chip", "S, P"}) {
    EXPECT_NE(memories.find(part), std::string::npos) << part;
  }
  const std::string loads = between(document(page("t", data), "#flash_attention_2/4x4/3"),
                                    R"(id="memories")", "</section>");
  EXPECT_NE(loads.find("reads K 32 B, V 32 B"), std::string::npos) << loads;
  const std::string shown = document_text.substr(0, document_text.find(R"(<script type=)"));
  for (const char* part : {">undefined<", ">NaN<", "undefined ", "[object "}) {
    EXPECT_EQ(shown.find(part), std::string::npos) << part;
  }
}

// The step that a link at the top leads to, as text.
TEST_F(Browser, IdeaLeadsToStepsThatShowIt) {
  const std::string text = page("t", problem_json(request("n4096_h2_d64_causal_bf16"), 64));
  const std::string idea = between(document(text), R"(id="idea")", "</ol>");
  std::vector<std::string> links;
  for (std::size_t at = 0; (at = idea.find("href=\"", at)) != std::string::npos; ++at) {
    links.push_back(between(idea.substr(at), "href=\"", "\""));
  }
  ASSERT_EQ(links.size(), 3U) << idea;
  const auto explanation = [&](const std::string& step) {
    return between(document(text, step), R"(id="explanation")", "</div>");
  };
  EXPECT_NE(explanation(links[0]).find("Scores of one tile"), std::string::npos);
  const std::string rescaled = explanation(links[1]);
  EXPECT_NE(rescaled.find("Rescale what is there"), std::string::npos) << rescaled;
  EXPECT_NE(rescaled.find("l = 0."), std::string::npos) << rescaled;  // a factor below 1
  EXPECT_EQ(rescaled.find(" · 0.000"), std::string::npos) << rescaled;
  EXPECT_NE(explanation(links[2]).find("The weights again"), std::string::npos);
  // Of the first tile of some rows no sum can shrink.
  const std::string first = explanation("#flash_attention_2/4x4/6");
  EXPECT_NE(first.find("Nothing is there yet"), std::string::npos) << first;
}

// Several problems in one start. ATTN_EXPLAIN_PROBLEMS=1000 takes more of them.
TEST_F(BrowserModels, WalksEndAtTheReferenceAndCountWhatTheModelsSay) {
  const char* wanted = std::getenv("ATTN_EXPLAIN_PROBLEMS");
  const int problems = wanted == nullptr ? 60 : std::atoi(wanted);
  Json list = Json::array();
  std::vector<Request> requests;
  for (int i = 0; i < problems; ++i) {
    requests.push_back(random_request(1000 + static_cast<std::uint64_t>(i)));
    requests.back().block_q = kBlocks[i % 3].block_q;
    requests.back().block_k = kBlocks[i % 3].block_k;
    list.push_back(problem_json(requests.back(), 4));
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
  for (int kind = 0; kind < 3; ++kind) {
    for (const char* phase : {"forward", "backward"}) {
      compare_with_io(requests, results, kind, phase);
    }
  }
}

}  // namespace
}  // namespace attn::explain
