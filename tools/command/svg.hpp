// Line plots with logarithmic axes, as SVG.
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

}  // namespace attn::command
