// A progress bar for people: drawn on stderr when that is a terminal, silent otherwise.
#pragma once

#include <cstdint>
#include <string_view>

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
  std::int64_t total_;
  bool terminal_;
  bool drawn_ = false;
};

}  // namespace attn::command
