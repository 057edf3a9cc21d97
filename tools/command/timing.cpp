#include "command/timing.hpp"

#include <algorithm>
#include <chrono>

namespace attn::command {

double Timing::median() const {
  std::vector<double> sorted = seconds;
  std::sort(sorted.begin(), sorted.end());
  const std::size_t n = sorted.size();
  return (sorted[(n - 1) / 2] + sorted[n / 2]) / 2;
}

double Timing::minimum() const { return *std::min_element(seconds.begin(), seconds.end()); }

Timing time_calls(const std::function<void()>& call, const TimingRule& rule) {
  using Clock = std::chrono::steady_clock;
  const auto since = [](Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
  };
  call();
  Timing timing;
  const Clock::time_point begin = Clock::now();
  while (
      static_cast<int>(timing.seconds.size()) < rule.max_calls &&
      (static_cast<int>(timing.seconds.size()) < rule.min_calls || since(begin) < rule.seconds)) {
    const Clock::time_point start = Clock::now();
    call();
    timing.seconds.push_back(since(start));
  }
  return timing;
}

}  // namespace attn::command
