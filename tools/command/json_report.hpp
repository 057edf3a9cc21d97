// The --json file of a command.
#pragma once

#include <cstdio>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "command/interrupt.hpp"
#include "verify/compare.hpp"

namespace attn::command {

using Json = nlohmann::ordered_json;

// {"command", "date", "version", "commit", "machine", "complete", "results": [rows]}:
// docs/command.md. What is added is written whatever ends the command: save(), an exception that
// leaves the scope, or an interrupt; "complete" is false for the last two. Without a row nothing is
// written then.
class JsonReport {
 public:
  // An empty path: nothing is ever written. "-": standard output. Throws Error(io) where the path
  // cannot be written, before any work is done.
  JsonReport(std::string path, std::string command_line);
  JsonReport(const JsonReport&) = delete;
  JsonReport& operator=(const JsonReport&) = delete;
  ~JsonReport();

  // The stream for text that people read: standard error where the JSON takes standard output.
  std::FILE* text() const { return path_ == "-" ? stderr : stdout; }

  void add(Json row);
  // A member of "machine".
  void set_machine(const std::string& key, Json value);
  // Everything is added.
  void save();

 private:
  void write_locked(bool complete);
  void save_unfinished() noexcept;

  std::string path_, command_line_;
  std::mutex mutex_;  // between the work and an interrupt
  Json machine_, rows_ = Json::array();
  bool saved_ = false;
  OnInterrupt on_interrupt_;
};

// {"tensor", "share" of what is allowed (1 or less passes), "error", "allowed", "where",
// "expected", "got"}; numbers that JSON lacks (NaN, infinities) are null.
Json comparison_json(const verify::Comparison& comparison);

}  // namespace attn::command
