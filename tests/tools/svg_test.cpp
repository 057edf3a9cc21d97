#include "command/svg.hpp"

#include <gtest/gtest.h>

#include "command/command.hpp"
#include "xml_check.hpp"

namespace attn::command {
namespace {

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t n = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
  return n;
}

TEST(Svg, LinesLegendAndTicks) {
  const auto format = [](double y) { return std::to_string(static_cast<int>(y)) + " units"; };
  const Series a{"a < b & c", {{128, 1}, {256, 20}, {512, 999}}};
  const Series b{"second", {{128, 3}, {512, 30}}};
  const std::string svg =
      render_svg("title", {{"left", "x", 10, {a, b}, format}, {"right", "x", 2, {b}, format}});
  EXPECT_EQ(xml_error(svg), "");
  EXPECT_EQ(count(svg, "<polyline"), 3U);
  EXPECT_EQ(count(svg, ">a &lt; b &amp; c</text>"), 1U);
  EXPECT_EQ(count(svg, ">second</text>"), 1U);
  for (const char* tick : {">128<", ">256<", ">512<", ">1 units<", ">1000 units<", ">32 units<"}) {
    EXPECT_GE(count(svg, tick), 1U) << tick;
  }
  EXPECT_EQ(count(svg, "nan"), 0U);
  EXPECT_EQ(count(svg, "inf"), 0U);
}

TEST(Svg, Bars) {
  const std::string svg = render_bars("t", "s", {{"a & b", 1, "one"}, {"c", 4, "four"}});
  EXPECT_EQ(xml_error(svg), "");
  EXPECT_EQ(count(svg, ">a &amp; b</text>"), 1U);
  EXPECT_EQ(count(svg, ">four</text>"), 1U);
  EXPECT_EQ(count(svg, R"(width="100.0" height="18.0")"), 1U) << svg;  // in proportion
  EXPECT_EQ(count(svg, R"(width="400.0" height="18.0")"), 1U) << svg;
  for (const std::vector<Bar>& bars : {std::vector<Bar>{}, std::vector<Bar>{{"zero", 0, ""}}}) {
    const std::string empty = render_bars("t", "s", bars);
    EXPECT_EQ(xml_error(empty), "");
    EXPECT_EQ(count(empty, "nan"), 0U);
  }
}

TEST(Svg, PointsAndNothing) {
  const auto format = [](double) { return std::string("y"); };
  for (const std::vector<Series>& series :
       {std::vector<Series>{}, std::vector<Series>{{"point", {{64, 64}}}}}) {
    const std::string svg = render_svg("t", {{"p", "x", 10, series, format}});
    EXPECT_EQ(xml_error(svg), "");
    EXPECT_EQ(count(svg, "nan"), 0U);
    EXPECT_EQ(count(svg, "inf"), 0U);
  }
}

TEST(XmlCheck, FindsErrors) {
  EXPECT_NE(xml_error(""), "");
  EXPECT_NE(xml_error("<a><b></a></b>"), "");
  EXPECT_NE(xml_error("<a x=1/>"), "");
  EXPECT_NE(xml_error("<a>x & y</a>"), "");
  EXPECT_NE(xml_error("<a/><b/>"), "");
}

TEST(Format, SecondsAndBytes) {
  EXPECT_EQ(format_seconds(1.5e-3), "1.50 ms");
  EXPECT_EQ(format_seconds(2), "2.00 s");
  EXPECT_EQ(format_seconds(123e-6), "123 us");
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(1023), "1023 B");
  EXPECT_EQ(format_bytes(1536), "1.50 KiB");
  EXPECT_EQ(format_bytes(0x1p30), "1.00 GiB");
}

}  // namespace
}  // namespace attn::command
