// The subcommands of `attn`, and what they share.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "attn/context.hpp"
#include "attn/plan.hpp"

namespace attn::command {

// What the process returns.
enum ExitCode : int {
  kOk = 0,
  kWrong = 1,         // a check failed or a result is wrong
  kBadInput = 2,      // usage, a malformed problem or file
  kNotAvailable = 3,  // backend, instruction set, kernel or memory
};

// Each adds one subcommand; its callback writes the exit code to `status` and throws attn::Error.
void add_info(CLI::App& app, int& status);
void add_compile(CLI::App& app, int& status);
void add_run(CLI::App& app, int& status);
void add_check(CLI::App& app, int& status);
void add_bench(CLI::App& app, int& status, const std::string& command_line);

// Options that several subcommands have. Empty text means "not given".
struct RunOptions {
  std::string algorithm{}, backend{}, isa{}, device{}, kernel{};
  int threads = 0;  // 0: one for each CPU
};
void add_algorithm_option(CLI::App& app, std::string& algorithm);
void add_backend_option(CLI::App& app, std::string& backend);
void add_isa_option(CLI::App& app, std::string& isa);
void add_threads_option(CLI::App& app, int& threads);
void add_device_option(CLI::App& app, std::string& device);
void add_kernel_option(CLI::App& app, std::string& kernel);

// "cpu" (also where the text is empty), "cuda" or "cuda:1". Throws Error(invalid_argument);
// Error(unavailable) for a GPU that is not there.
Device parse_device(const std::string& text);

PlanOptions plan_options(const RunOptions& options);
// Warnings of the library go to stderr.
Context make_context(const RunOptions& options);

// "1.5 ms", "20 GiB": three significant digits.
std::string format_seconds(double seconds);
std::string format_bytes(double bytes);

}  // namespace attn::command
