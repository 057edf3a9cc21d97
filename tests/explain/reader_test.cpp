// The page of `attn explain` as a reader uses it: keys, pointer, sliders, addresses, in a real
// browser.
#include <fmt/format.h>

#include <string>
#include <vector>

#include "attn/attn.hpp"
#include "browser.hpp"

namespace attn::explain {
namespace {

constexpr const char* kResults = R"(<pre id="results">)";
// What scripts below are written with.
const std::string kBefore = std::string(kResults) + R"js(</pre><script>
  const shown = (id) => byId(id).textContent;
  const press = (key, target = document.body) =>
    target.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true }));
  const slide = (id, value) => {
    byId(id).value = value;
    byId(id).dispatchEvent(new Event("input", { bubbles: true }));
  };
  const chosen = () => document.querySelector("[role=tab][aria-selected=true]").id;
  const results = {};
)js";
// As JSON that HTML leaves as it is.
const std::string kAfter = R"js(
  byId("results").textContent = JSON.stringify(results).replace(/[<>&]/g,
    (character) => "\\u00" + character.charCodeAt(0).toString(16));
</script>)js";

// The page with a script that uses it as a reader does; what the script puts into `results`.
class Reader : public Browser {
 protected:
  Json results_of(const std::string& descriptor, const std::string& script,
                  const std::string& flags = "") const {
    std::string text = page("t", problem_json(request(descriptor), 64));
    text += kBefore + script + kAfter;
    const std::string document_text = document(text, "", flags);
    Json results = Json::parse(between(document_text, kResults, "</pre>"), nullptr, false);
    EXPECT_FALSE(results.is_discarded()) << document_text.substr(document_text.size() - 500);
    return results;
  }
};

TEST_F(Reader, Keys) {
  const Json results = results_of("n256_h2_d64_causal_bf16", R"js(
    press("End", byId("walk")); results.last = shown("counter"); results.atLast = location.hash;
    press("Home", byId("walk")); results.first = shown("counter");
    press("ArrowRight"); press("ArrowRight"); press("ArrowLeft"); results.second = shown("counter");
    results.address = location.hash;
    for (let i = 0; i < 3; ++i) press("ArrowRight");  // to a step that has a sentence for each row
    press("ArrowUp", byId("walk")); press("ArrowUp", byId("walk")); press("ArrowDown", byId("walk"));
    results.row = shown("explanation");
    const before = chosen(); press("]"); results.next = chosen(); press("["); results.back = chosen() === before;
    press(" ", byId("walk")); results.plays = shown("play");
    press("ArrowRight"); results.pauses = shown("play");
    press("ArrowRight", byId("position")); results.slider = shown("counter");
  )js");
  const std::string last = results["last"];  // "step 45 of 45"
  const std::string count = last.substr(last.rfind(' ') + 1);
  EXPECT_EQ(last, "step " + count + " of " + count);
  EXPECT_EQ(results["atLast"], "#flash_attention_2/4x4/" + count);
  EXPECT_EQ(results["first"], "step 1 of " + count);
  EXPECT_EQ(results["second"], "step 2 of " + count);
  EXPECT_EQ(results["address"], "#flash_attention_2/4x4/2");
  // The third of the sample's rows 0, 23, 46, 69, ..., where the walk began at the fourth.
  EXPECT_NE(results["row"].get<std::string>().find("query 46: "), std::string::npos)
      << results["row"];
  EXPECT_EQ(results["next"], "tab-flash_decoding");
  EXPECT_TRUE(results["back"]);
  EXPECT_EQ(results["plays"], "Pause");
  EXPECT_EQ(results["pauses"], "Play");
  EXPECT_EQ(results["slider"], "step 2 of " + results["second"].get<std::string>().substr(10));
}

TEST_F(Reader, TileMapProvesWhatIsPointedAt) {
  const char* const descriptor = "n256_h2_d64_mask(key<=query&&query-key<100)_f32";
  // Rows of a tile, which differ between instruction sets.
  const std::int64_t rows = make_plan(parse_problem(descriptor), Phase::forward).block_q;
  ASSERT_EQ(64 % rows, 0);
  const std::string script = fmt::format("const rows = {}, tiles = 256 / rows;", rows) + R"js(
    const map = document.querySelector(".tile-map");
    const box = map.getBoundingClientRect();
    const point = (row, column) => {
      map.dispatchEvent(new PointerEvent("pointermove", { bubbles: true,
        clientX: box.left + box.width * (column + 0.5) / 4, clientY: box.top + box.height * (row + 0.5) / tiles }));
      return shown("map-proof");
    };
    results.full = point(64 / rows, 0); results.mixed = point(0, 0); results.empty = point(0, 3);
    press("ArrowDown", map); results.below = shown("map-proof");
    press("ArrowRight", map); results.edge = shown("map-proof");
  )js";
  const Json results = results_of(descriptor, script);
  const auto has = [&](const char* name, const std::vector<std::string>& parts) {
    for (const std::string& part : parts) {
      EXPECT_NE(results[name].get<std::string>().find(part), std::string::npos)
          << name << ": " << part << " in " << results[name];
    }
  };
  has("empty", {"Tile (0, 3)", fmt::format("query ∈ [0, {}]", rows - 1), "key ∈ [192, 255]",
                "all of ✗ never", "key <= query ✗ never", "query - key",
                fmt::format("∈ [−255, −{}]", 193 - rows), "Empty"});
  has("mixed", {"Tile (0, 0)", "~ sometimes", "Mixed"});
  has("full", {fmt::format("Tile ({}, 0)", 64 / rows), fmt::format("query ∈ [64, {}]", 63 + rows),
               "all of ✓ always", "Full"});
  has("below", {"Tile (1, 3)"});
  has("edge", {"Tile (1, 3)"});
}

TEST_F(Reader, SlidersCountBytesAndSayWhatDoesNotFit) {
  const Json results = results_of("n4096_h2_d128_f32", R"js(
    byId("memory").value = [...byId("memory").options].findIndex((option) => option.text.startsWith("H100"));
    byId("memory").dispatchEvent(new Event("change"));
    slide("block-q", 0); slide("block-k", 0);
    results.small = [shown("block-q-value"), shown("fit"), shown("bytes-bars")];
    slide("block-q", byId("block-q").max); slide("block-k", byId("block-k").max);
    results.large = [shown("block-q-value"), shown("fit"), shown("bytes-bars")];
    results.over = document.querySelector("#fit .verdict").className;
    byId("phase").value = "backward";
    byId("phase").dispatchEvent(new Event("change"));
    results.backward = [shown("fit"), shown("bytes-bars")];
  )js");
  EXPECT_NE(results["small"][0], results["large"][0]);
  EXPECT_NE(results["small"][1].get<std::string>().find("✓ fits"), std::string::npos);
  const std::string large = results["large"][1];
  EXPECT_NE(large.find("✗ does not fit: "), std::string::npos) << large;
  EXPECT_NE(large.find("H100: shared memory of a block has 227 KiB"), std::string::npos) << large;
  EXPECT_EQ(results["over"], "verdict over");
  EXPECT_NE(results["small"][2], results["large"][2]);
  EXPECT_NE(results["backward"][1], results["large"][2]);
}

// Each step of every algorithm.
TEST_F(Reader, EveryStepNamesALineOfAKernel) {
  const Json results = results_of("n256_h2_d64_causal_bf16", R"js(
    results.without = [];
    results.steps = 0;
    for (const algorithm of kAlgorithms) {
      byId(`tab-${algorithm.name}`).click();
      for (;;) {
        const line = document.querySelector("#listing [aria-current=step] .here");
        if (!/^\w+\.cuh:[1-9]\d*$/.test(line?.textContent ?? "")) results.without.push(location.hash);
        ++results.steps;
        if (byId("next").disabled) break;
        byId("next").click();
      }
    }
  )js");
  EXPECT_TRUE(results["without"].empty()) << results["without"].dump();
  EXPECT_GT(results["steps"], 100);
}

TEST_F(Reader, LessMotionAndTheDark) {
  const std::string script = R"js(
    results.ground = getComputedStyle(document.body).backgroundColor;
    results.dark = matchMedia("(prefers-color-scheme: dark)").matches;
    results.still = matchMedia("(prefers-reduced-motion: reduce)").matches;
    const moves = (element) => getComputedStyle(element).transitionDuration.split(", ").some((time) => parseFloat(time) > 0);
    results.moving = [...document.querySelectorAll("*")].filter(moves).length;
  )js";
  const Json plain = results_of("n64_h1_d16_f32", script);
  const Json other =
      results_of("n64_h1_d16_f32", script,
                 "--force-prefers-reduced-motion --blink-settings=preferredColorScheme=0");
  EXPECT_FALSE(plain["still"]);
  EXPECT_GT(plain["moving"], 0);
  EXPECT_TRUE(other["still"]);
  EXPECT_EQ(other["moving"], 0);
  ASSERT_NE(plain["dark"], other["dark"]);
  EXPECT_NE(plain["ground"], other["ground"]);
}

}  // namespace
}  // namespace attn::explain
