#include "command/json_report.hpp"

#include <fmt/format.h>

#include <array>
#include <ctime>
#include <exception>
#include <utility>

#include "attn/machine.hpp"
#include "attn/version.hpp"
#include "command/commit.hpp"
#include "command/message.hpp"
#include "io/file.hpp"
#include "io/output_file.hpp"

namespace attn::command {
namespace {

Json machine_json() {
  const Machine machine = describe_machine();
  return {{"cpu", machine.cpu},
          {"cpus", machine.cpus},
          {"l1d_bytes", machine.l1d_bytes},
          {"l2_bytes", machine.l2_bytes},
          {"l3_bytes", machine.l3_bytes},
          {"memory_bytes", machine.memory_bytes}};
}

}  // namespace

JsonReport::JsonReport(std::string path, std::string command_line)
    : path_(std::move(path)),
      command_line_(std::move(command_line)),
      on_interrupt_([this] { save_unfinished(); }) {
  if (path_.empty()) return;
  if (path_ != "-") io::OutputFile::check(path_);
  machine_ = machine_json();
}

JsonReport::~JsonReport() { save_unfinished(); }

void JsonReport::add(Json row) {
  const std::scoped_lock lock(mutex_);
  rows_.push_back(std::move(row));
}

void JsonReport::set_machine(const std::string& key, Json value) {
  const std::scoped_lock lock(mutex_);
  machine_[key] = std::move(value);
}

void JsonReport::save() {
  const std::scoped_lock lock(mutex_);
  saved_ = true;
  if (path_.empty()) return;
  write_locked(true);
  if (path_ != "-") fmt::print("results written to {}\n", shown(path_));
}

void JsonReport::save_unfinished() noexcept {
  const std::scoped_lock lock(mutex_);
  if (path_.empty() || saved_ || rows_.empty()) return;
  saved_ = true;
  try {
    write_locked(false);
    tell(fmt::format("attn: ended early; the {} results so far are written to {}\n", rows_.size(),
                     shown(path_)));
  } catch (const std::exception& error) {
    std::fputs(error.what(), stderr);
  }
}

Json comparison_json(const verify::Comparison& comparison) {
  return {{"tensor", comparison.tensor}, {"share", comparison.share()},
          {"error", comparison.error},   {"allowed", comparison.allowed},
          {"where", comparison.where},   {"expected", comparison.expected},
          {"got", comparison.got}};
}

namespace {

// The time in UTC, as ISO 8601 writes it.
std::string now() {
  const std::time_t seconds = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&seconds, &utc);
  std::array<char, 32> text{};
  const std::size_t length = std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%SZ", &utc);
  return {text.data(), length};
}

}  // namespace

void JsonReport::write_locked(bool complete) {
  const Json json{
      {"command", command_line_}, {"date", now()},       {"version", ATTN_VERSION_STRING},
      {"commit", kCommit},        {"machine", machine_}, {"complete", complete},
      {"results", rows_}};
  const std::string text = json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
  if (path_ == "-") {
    fmt::print("{}", text);
    std::fflush(stdout);
    return;
  }
  io::OutputFile file(path_);
  file.write(text);
  file.commit();
}

}  // namespace attn::command
