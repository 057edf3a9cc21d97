#include "command/svg.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <limits>

namespace attn::command {
namespace {

constexpr double kWidth = 400, kHeight = 300;  // of the area inside a panel's axes
constexpr double kLeft = 80, kTop = 64, kBottom = 52, kRight = 36;
constexpr double kLegendRow = 20;

// The colours of Okabe and Ito, which people of every colour vision tell apart; marks differ too.
constexpr std::array<const char*, 7> kColours{"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                              "#e69f00", "#56b4e9", "#000000"};

std::string escape(const std::string& text) {
  std::string result;
  for (const char c : text) {
    if (c == '<') {
      result += "&lt;";
    } else if (c == '>') {
      result += "&gt;";
    } else if (c == '&') {
      result += "&amp;";
    } else if (static_cast<unsigned char>(c) >= 0x20) {
      result += c;
    }
  }
  return result;
}

// A logarithmic axis from pixel `from` to pixel `to`, over whole powers of `base`.
class Axis {
 public:
  Axis(double base, double from, double to) : base_(base), from_(from), to_(to) {}

  void cover(double value) {
    const double exponent = std::log(value) / std::log(base_);
    min_ = std::min(min_, std::floor(exponent + 1e-9));
    max_ = std::max(max_, std::ceil(exponent - 1e-9));
  }
  // An axis of one value is widened, one without values spans one power.
  void finish() {
    if (min_ > max_) min_ = max_ = 0;
    if (min_ == max_) ++max_;
  }
  double pixel(double value) const {
    const double exponent = std::log(value) / std::log(base_);
    return from_ + (to_ - from_) * (exponent - min_) / (max_ - min_);
  }
  // Powers of the base from the smallest number on, at most about ten.
  std::vector<double> ticks() const {
    const double step = std::ceil((max_ - min_) / 10);
    std::vector<double> result;
    for (double e = min_; e <= max_; e += step) result.push_back(std::pow(base_, e));
    return result;
  }

 private:
  double base_, from_, to_;
  double min_ = std::numeric_limits<double>::infinity();
  double max_ = -std::numeric_limits<double>::infinity();
};

class Writer {
 public:
  template <class... T>
  void add(fmt::format_string<T...> format, T&&... values) {
    fmt::format_to(std::back_inserter(text_), format, std::forward<T>(values)...);
    text_ += '\n';
  }
  void label(double x, double y, const char* anchor, double size, const std::string& text) {
    add(R"(<text x="{:.1f}" y="{:.1f}" text-anchor="{}" font-size="{}">{}</text>)", x, y, anchor,
        size, escape(text));
  }
  void line(double x1, double y1, double x2, double y2, const char* colour) {
    add(R"(<line x1="{:.1f}" y1="{:.1f}" x2="{:.1f}" y2="{:.1f}" stroke="{}"/>)", x1, y1, x2, y2,
        colour);
  }
  // A shape of its own for each of the first three series, then again.
  void mark(double x, double y, std::size_t series, const char* colour) {
    switch (series % 3) {
      case 0:
        return add(R"(<circle cx="{:.1f}" cy="{:.1f}" r="3.5" fill="{}"/>)", x, y, colour);
      case 1:
        return add(R"(<rect x="{:.1f}" y="{:.1f}" width="7" height="7" fill="{}"/>)", x - 3.5,
                   y - 3.5, colour);
      default:
        return add(R"(<path d="M {:.1f} {:.1f} l 4.5 8 h -9 z" fill="{}"/>)", x, y - 5, colour);
    }
  }
  void begin(double width, double height) {
    add(R"(<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {0:.0f} {1:.0f}" )"
        R"(width="{0:.0f}" height="{1:.0f}" font-family="sans-serif" fill="#202020">)",
        width, height);
    add(R"(<rect width="100%" height="100%" fill="#ffffff"/>)");
  }
  std::string end() && {
    add("</svg>");
    return std::move(text_);
  }

 private:
  std::string text_;
};

void draw_panel(Writer& out, const Panel& panel, double left,
                const std::vector<std::string>& names) {
  const double right = left + kWidth;
  const double bottom = kTop + kHeight;
  Axis x(2, left, right);
  Axis y(panel.y_base, bottom, kTop);
  for (const Series& series : panel.series) {
    for (const auto& [px, py] : series.points) {
      x.cover(px);
      y.cover(py);
    }
  }
  x.finish();
  y.finish();

  out.label(left + kWidth / 2, kTop - 12, "middle", 14, panel.title);
  out.label(left + kWidth / 2, bottom + 42, "middle", 13, panel.x_label);
  for (const double tick : x.ticks()) {
    out.line(x.pixel(tick), kTop, x.pixel(tick), bottom, "#e0e0e0");
    out.label(x.pixel(tick), bottom + 18, "middle", 12, fmt::format("{:.0f}", tick));
  }
  for (const double tick : y.ticks()) {
    out.line(left, y.pixel(tick), right, y.pixel(tick), "#e0e0e0");
    out.label(left - 8, y.pixel(tick) + 4, "end", 12, panel.format_y(tick));
  }
  out.line(left, bottom, right, bottom, "#404040");
  out.line(left, kTop, left, bottom, "#404040");

  for (const Series& series : panel.series) {
    const auto index = static_cast<std::size_t>(std::find(names.begin(), names.end(), series.name) -
                                                names.begin());
    const char* colour = kColours[index % kColours.size()];
    std::string path;
    for (const auto& [px, py] : series.points) {
      path += fmt::format("{:.1f},{:.1f} ", x.pixel(px), y.pixel(py));
    }
    out.add(R"(<polyline points="{}" fill="none" stroke="{}" stroke-width="2"/>)", path, colour);
    for (const auto& [px, py] : series.points) out.mark(x.pixel(px), y.pixel(py), index, colour);
  }
}

}  // namespace

std::string render_bars(const std::string& title, const std::string& subtitle,
                        const std::vector<Bar>& bars) {
  constexpr double kNames = 150, kRow = 26, kBar = 18, kTexts = 210;
  double most = 0;
  for (const Bar& bar : bars) most = std::max(most, bar.value);
  Writer out;
  out.begin(kNames + kWidth + kTexts, kTop + kRow * static_cast<double>(bars.size()) + 16);
  out.label(16, 26, "start", 16, title);
  out.label(16, 46, "start", 13, subtitle);
  for (std::size_t i = 0; i < bars.size(); ++i) {
    const double y = kTop + kRow * static_cast<double>(i);
    const double width = most > 0 ? std::max(1.0, kWidth * bars[i].value / most) : 0;
    out.label(kNames - 8, y + kBar - 4, "end", 13, bars[i].name);
    out.add(R"(<rect x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}" fill="{}"/>)", kNames, y,
            width, kBar, kColours[0]);
    out.label(kNames + width + 8, y + kBar - 4, "start", 13, bars[i].text);
  }
  out.line(kNames, kTop - 6, kNames, kTop + kRow * static_cast<double>(bars.size()), "#404040");
  return std::move(out).end();
}

std::string render_svg(const std::string& title, const std::vector<Panel>& panels) {
  std::vector<std::string> names;
  for (const Panel& panel : panels) {
    for (const Series& series : panel.series) {
      if (std::find(names.begin(), names.end(), series.name) == names.end()) {
        names.push_back(series.name);
      }
    }
  }
  const double panel_width = kLeft + kWidth + kRight;
  const double width = panel_width * static_cast<double>(panels.size());
  const double legend_top = kTop + kHeight + kBottom;
  const double height = legend_top + kLegendRow * static_cast<double>(names.size()) + 16;

  Writer out;
  out.begin(width, height);
  out.label(width / 2, 26, "middle", 16, title);
  for (std::size_t i = 0; i < panels.size(); ++i) {
    draw_panel(out, panels[i], panel_width * static_cast<double>(i) + kLeft, names);
  }
  for (std::size_t i = 0; i < names.size(); ++i) {
    const char* colour = kColours[i % kColours.size()];
    const double y = legend_top + kLegendRow * static_cast<double>(i) + 8;
    out.line(kLeft, y, kLeft + 28, y, colour);
    out.mark(kLeft + 14, y, i, colour);
    out.label(kLeft + 36, y + 4, "start", 13, names[i]);
  }
  return std::move(out).end();
}

}  // namespace attn::command
