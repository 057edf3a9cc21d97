// Line plots with logarithmic axes, and bars, as SVG.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace attn::command {

struct Series {
  std::string name;
  std::vector<std::pair<double, double>> points;  // x ascending; both positive
};

struct Panel {
  std::string title, x_label;
  double y_base = 10;  // y ticks stand at powers of it
  std::vector<Series> series;
  std::function<std::string(double)> format_y;  // of a tick
};

// Panels side by side, x ticks at powers of two; one legend: series of the same name look the same
// in every panel.
std::string render_svg(const std::string& title, const std::vector<Panel>& panels);

struct Bar {
  std::string name;
  double value = 0;  // not negative
  std::string text;  // beside its end
};

// A horizontal bar each, in their order, from zero; `subtitle` names the unit.
std::string render_bars(const std::string& title, const std::string& subtitle,
                        const std::vector<Bar>& bars);

}  // namespace attn::command
