// The page as a file: whole, small, without a network.
#include "explain/page.hpp"

#include <gtest/gtest.h>

#include <regex>

#include "attn/error.hpp"
#include "explain/source_lines.hpp"
#include "explain_test_util.hpp"

namespace attn::explain {
namespace {

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t n = 0;
  for (std::size_t at = 0; (at = text.find(part, at)) != std::string::npos; ++at) ++n;
  return n;
}

TEST(Page, NeedsNoNetwork) {
  const std::string text =
      page("a <b> & c", problem_json(request("n256_d64_mask(key<4||key<=query)"), 64));
  EXPECT_NE(text.find("<title>a &lt;b&gt; &amp; c"), std::string::npos);
  for (const char* part : {"<link", " src=", "@import", "url(http", "fetch(", "XMLHttpRequest",
                           "import(", "%data%", "%title%"}) {
    EXPECT_EQ(text.find(part), std::string::npos) << part;
  }
  EXPECT_EQ(count(text, "<script"), count(text, "</script>"));
  EXPECT_EQ(count(text, "<style"), count(text, "</style>"));
}

TEST(Page, HoldsItsDataWhateverTheTextsAre) {
  const Json data{{"text", "</script><b>&\"'\\ \xe2\x80\xa8"}, {"number", 0.1}};
  const std::string text = page("t", data);
  const std::string open = R"(id="data">)";
  const std::size_t begin = text.find(open) + open.size();
  EXPECT_EQ(Json::parse(text.substr(begin, text.find("</script>", begin) - begin)), data);
}

TEST(Page, RefusesWhatItCannotShow) {
  const auto refused = [](const Request& r, ErrorCode code, std::string_view part) {
    try {
      problem_json(r, 64);
      ADD_FAILURE() << to_string(r.problem) << " is not refused";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), code) << error.what();
      EXPECT_NE(std::string_view(error.what()).find(part), std::string_view::npos) << error.what();
    }
  };
  refused(request("n0_d8"), ErrorCode::invalid_argument, "seqlen_q is 0");
  refused(request("sq4_sk0_d8"), ErrorCode::invalid_argument, "seqlen_k is 0");
  refused(request("n8_h2_d8_score(score+w[query,key])_buffer(w:f32:40000x40000)"),
          ErrorCode::out_of_memory, "buffer w");
  Request r = request("b2_n8_h2_d8");
  r.batch = 2;
  refused(r, ErrorCode::invalid_argument, "batch is 2");
  r.batch = 1;
  r.head = 2;
  refused(r, ErrorCode::invalid_argument, "head is 2");
}

// Each step that the table names is still in the kernel, and a page shows it.
TEST(Page, NamesLinesOfTheKernels) {
  const Json json = problem_json(request("n8_d8"), 8)["sources"];
  for (const SourceLine& line : source_lines()) {
    EXPECT_GT(number_of(line), 0) << line.file << ": " << line.text;
    EXPECT_EQ(json[std::string(line.algorithm)][std::string(line.step)][1], number_of(line));
  }
  EXPECT_EQ(number_of({"", "", "kernels/softmax.cuh", "//"}), 1);
  EXPECT_EQ(number_of({"", "", "kernels/softmax.cuh", "no such text"}), 0);
}

// Counts over all heads are the sum of those of each.
TEST(ProblemJson, TilingsAreOfAllHeads) {
  Request r = request("b3_hq4_hk2_n40_d8_mask(key<=query+head*3-batch)");
  const Json data = problem_json(r, 64);
  for (const Json& tiling : data["tilings"]) {
    TileCounts expected;
    for (std::int32_t b = 0; b < 3; ++b) {
      for (std::int32_t h = 0; h < 4; ++h) {
        MaskedScores s(r.problem);
        s.scores.batch = b;
        s.scores.head = h;
        expected += count_tiles(s.scores, {tiling["block_q"], tiling["block_k"]});
      }
    }
    EXPECT_EQ(tiling["counts"], to_json(expected)) << tiling;
  }
}

// Any problem: random ones, and each case of the conformance list.
TEST(ProblemJson, TakesEveryProblem) {
  for (std::uint64_t seed = 1; seed <= 100; ++seed) {
    const Request r = random_request(seed);
    EXPECT_LE(page("t", problem_json(r, 64)).size(), kMaxPageBytes) << to_string(r.problem);
  }
  for (const verify::ListedCase& listed : verify::listed_cases()) {
    const Request r{.problem = verify::parse_case(listed.descriptor).problem};
    const Problem& p = r.problem;
    if (p.seqlen_q == 0 || p.seqlen_k == 0 || p.key_list > 0 || p.seqlen_prefix > 0) continue;
    EXPECT_NO_THROW(problem_json(r, 16)) << listed.descriptor;
  }
}

}  // namespace
}  // namespace attn::explain
