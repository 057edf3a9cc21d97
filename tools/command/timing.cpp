#include "command/timing.hpp"

#include <algorithm>
#include <chrono>
#include <ctime>

namespace attn::command {

namespace {

double median_of(std::vector<double> sorted) {
  std::sort(sorted.begin(), sorted.end());
  const std::size_t n = sorted.size();
  return (sorted[(n - 1) / 2] + sorted[n / 2]) / 2;
}

double processor_time() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

}  // namespace

double Timing::median() const { return median_of(seconds); }
double Timing::processor_median() const { return median_of(processor_seconds); }

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
    const double processor = processor_time();
    call();
    timing.seconds.push_back(since(start));
    timing.processor_seconds.push_back(processor_time() - processor);
  }
  return timing;
}

}  // namespace attn::command
