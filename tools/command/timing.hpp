// Timing of calls.
#pragma once

#include <functional>
#include <vector>

namespace attn::command {

struct TimingRule {
  int min_calls = 3;
  double seconds = 1;  // calls go on until this much time has passed
  int max_calls = 10'000;
};

struct Timing {
  std::vector<double> seconds;  // of each call, in order; a first call before is not counted
  // Processor time of the process during each call, all threads together; of a call on a GPU none.
  std::vector<double> processor_seconds;
  double median() const;
  double processor_median() const;
  double minimum() const;
};

Timing time_calls(const std::function<void()>& call, const TimingRule& rule);

}  // namespace attn::command
