// A progress bar for people: drawn on stderr when that is a terminal, silent otherwise. Cleared
// when the process is interrupted.
#pragma once

#include <cstdint>
#include <mutex>
#include <string_view>

#include "command/interrupt.hpp"

namespace attn::command {

class Progress {
 public:
  explicit Progress(std::int64_t total);
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  ~Progress();  // clears the bar

  void show(std::int64_t done, std::string_view text);
  void clear();  // before other lines are printed

 private:
  void clear_locked();

  std::int64_t total_;
  bool terminal_;
  std::mutex mutex_;
  bool drawn_ = false;
  bool ended_ = false;  // by an interrupt: nothing is drawn any more
  OnInterrupt on_interrupt_;
};

}  // namespace attn::command
